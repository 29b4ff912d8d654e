"""How evenly drivers share a large run: utilisation and completeness, simulated with a clock of its own.

::

    python benchmarks/shared_work.py                           # 375 000 units, 1 driver of 64 workers, 1 % failures
    python benchmarks/shared_work.py --drivers 4 --workers 16  # 4 drivers on one store, one of them killed half-way

The drivers, their queues, claims and leases are those of a real run: ImageNet's 50 000 validation images in chunks of
8, 60 methods, one model. Only what lies around them is simulated: time is a number, the store is a dictionary, and a
worker takes for a unit a time drawn from a long-tailed distribution instead of computing it. One task in a hundred
kills its worker, which takes a while to start again. A unit over which three workers died is failed; as a user would,
the run is then resumed once more. Utilisation is the time that workers spent on units whose rows were stored, divided
by the time that workers were there. The table is complete when every method has every image.
"""

from __future__ import annotations

import argparse
import heapq
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

from sightline.bench import driver as driver_module
from sightline.bench.driver import Driver
from sightline.bench.engines.messages import unpack
from sightline.bench.engines.queue import Task, TaskEngine, TaskQueue
from sightline.bench.outcome import Callback, Outcome
from sightline.bench.store.claims import LEASE, RENEWALS, Claims
from sightline.bench.store.packed_units import PackedUnits
from sightline.bench.store.rows import decode as decode_parquet
from sightline.bench.unit import Chunk, Manifest, ModelInfo, RunConfig, Unit

METHODS, BATCH, METRIC = 60, 8, "single_deletion"
RESTART = 20.0  # seconds to start a worker again
MEAN, SPREAD = 8.0, 0.8  # of a unit's duration in seconds, lognormal


class Killed(Exception):
    """A driver was killed."""


class Clock:
    """Simulated time for threads that take turns: the one that wakes first runs, alone."""

    def __init__(self) -> None:
        self.now, self._count = 0.0, 0
        self._sleeping: list[tuple[float, int, threading.Event]] = []
        self._turn = threading.Semaphore(0)
        self._errors: list[BaseException] = []

    def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        if self._sleeping and self._sleeping[0][0] <= until:
            wake = threading.Event()
            self._count += 1
            heapq.heappush(self._sleeping, (until, self._count, wake))
            self._turn.release()
            wake.wait()
        else:
            self.now = until  # nobody else wakes before

    def run(self, functions: Sequence[Callable[[], None]]) -> None:
        """Run functions, each in a thread of its own, until all have ended."""
        for function in functions:
            wake = threading.Event()
            self._count += 1
            heapq.heappush(self._sleeping, (0.0, self._count, wake))
            threading.Thread(target=self._call, args=(function, wake), daemon=True).start()
        while self._sleeping:
            self.now, _, wake = heapq.heappop(self._sleeping)
            wake.set()
            self._turn.acquire()
        if self._errors:
            raise self._errors[0]

    def _call(self, function: Callable[[], None], wake: threading.Event) -> None:
        wake.wait()
        try:
            function()
        except BaseException as error:
            self._errors.append(error)
        finally:
            self._turn.release()


class MemoryStore:
    """What a driver and its claims ask of a store, in dictionaries."""

    folder = None
    url = "memory"

    def __init__(self) -> None:
        self.rows: dict[str, bytes] = {}
        self.data: dict[str, bytes] = {}
        self.files = SimpleNamespace(cat_file=self._read, ls=lambda *_, **__: list(self.data))
        self.packs = SimpleNamespace(
            units=PackedUnits(), damaged=set(), moments=lambda _: {}, refresh=lambda: self.packs
        )

    def _read(self, name: str) -> bytes:
        if name not in self.data:
            raise FileNotFoundError(name)
        return self.data[name]

    def path(self, name: str) -> str:
        return name

    def create(self, name: str, data: bytes) -> bool:
        return self.data.setdefault(name, data) is data

    def write_file(self, name: str, data: bytes, *, sync: bool = True) -> None:
        self.data[name] = data

    def remove(self, name: str) -> None:
        self.data.pop(name, None)

    def write(self, key: str, rows: bytes, maps: bytes | None = None) -> None:
        self.rows[key] = rows

    def has(self, key: str) -> bool:
        return key in self.rows

    def stamp(self, key: str) -> str:
        return str(id(self.rows.get(key)))

    def loose_keys(self) -> set[str]:
        return set(self.rows)

    def read(self, key: str) -> Any:
        if key not in self.rows:
            raise FileNotFoundError(key)
        return driver_module.decode(self.rows[key])


@dataclass(frozen=True)
class PlainTable:
    """Rows of a unit as a driver reads them."""

    rows: list[dict[str, Any]]

    @property
    def column_names(self) -> list[str]:
        return list(self.rows[0])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> Any:
        return SimpleNamespace(to_pylist=lambda: [row[name] for row in self.rows])

    def select(self, _: Any) -> Any:
        return SimpleNamespace(to_pylist=lambda: self.rows)


class SimulatedClaims(Claims):
    """Claims whose signs of life are given by the simulation, and that a killed driver leaves behind."""

    is_dead = False

    def _start(self) -> None:
        if not self._beats:
            self.beat()

    def __exit__(self, *_: object) -> None:
        if not self.is_dead:
            super().__exit__(*_)


@dataclass(eq=False)
class SimulatedWorker:
    """A worker that takes its time."""

    model: str = ""
    group: str = ""
    task: Task | None = None


@dataclass(eq=False)
class SimulatedEngine(TaskEngine):
    """Workers whose tasks take a time drawn at random; some of them die."""

    world: World
    workers: list[SimulatedWorker]
    claims: SimulatedClaims
    killed_at: float
    _events: list[tuple[float, int, SimulatedWorker, float | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._next_beat = self.world.clock.now + LEASE / RENEWALS

    def run_tasks(self, queue: TaskQueue) -> None:
        """Send tasks to workers until each has its reply, as `LocalEngine` does."""
        world = self.world
        for worker in self.workers:
            if worker.task is None:
                self._assign(worker, queue)
        while len(queue) or any(worker.task is not None for worker in self.workers):
            when, _, worker, seconds = heapq.heappop(self._events)
            self._wait(when)
            task, worker.task = worker.task, None
            if task is None:  # it has started again
                self._assign(worker, queue)
            elif seconds is None:
                world.deaths += 1
                queue.worker_died(task)
                self._at(world.clock.now + RESTART, worker, None)
            else:
                self._finish(task, worker, seconds, queue)

    def _wait(self, when: float) -> None:
        """Wait, and give signs of life; or be killed meanwhile."""
        clock, until = self.world.clock, min(when, self.killed_at)
        while clock.now < until:
            clock.sleep(min(until - clock.now, self._next_beat - clock.now))
            if clock.now >= self._next_beat:
                self._next_beat = clock.now + LEASE / RENEWALS
                self.claims.beat()
                self.claims.observe()
        if clock.now >= self.killed_at:
            self.claims.is_dead = True
            raise Killed

    def _assign(self, worker: SimulatedWorker, queue: TaskQueue) -> None:
        busy = Counter(other.model for other in self.workers if other is not worker and other.task is not None)
        worker.task = queue.next_task(worker.model, busy, worker.group)
        if worker.task is None:
            return
        worker.model, worker.group = worker.task.model, worker.task.group
        seconds, dies = self.world.draw()
        ends = self.world.clock.now + (seconds * self.world.dice.random() if dies else seconds)
        self._at(ends, worker, None if dies else seconds)

    def _finish(self, task: Task, worker: SimulatedWorker, seconds: float, queue: TaskQueue) -> None:
        unit = unpack(task.message())[0]["unit"]
        key = self.world.keep(unit, seconds)
        self._assign(worker, queue)
        task.on_reply({"kind": "done", "key": key}, [key.encode()])

    def _at(self, when: float, worker: SimulatedWorker, seconds: float | None) -> None:
        self.world.number += 1
        heapq.heappush(self._events, (when, self.world.number, worker, seconds))


class World:
    """The clock, the store and all drivers."""

    def __init__(self, units: int, drivers: int, workers: int, failures: float, seed: int = 0) -> None:
        self.units, self.workers, self.failures = max(units // METHODS, 1) * METHODS, workers, failures
        self.clock, self.dice, self.number = Clock(), random.Random(seed), 0
        self.store, self.manifest = MemoryStore(), simulated_manifest(self.units)
        self.places: dict[str, tuple[str, str, list[str]]] = {}  # key -> model, method, images
        self.executed = self.deaths = 0
        self.useful = self.present = 0.0
        self.outcomes: list[Outcome] = []
        half_way = MEAN * self.units / (workers * drivers) / 2
        self.killed_at = [float("inf")] * (drivers - 1) + [half_way if drivers > 1 else float("inf")]

    def draw(self) -> tuple[float, bool]:
        """Return how long the next unit takes, and whether it kills its worker."""
        seconds = self.dice.lognormvariate(0.0, SPREAD) * MEAN / 2.718281828 ** (SPREAD**2 / 2)
        return seconds, self.dice.random() < self.failures

    def keep(self, unit: dict[str, Any], seconds: float) -> str:
        """Note what a worker has computed; return the unit's key."""
        key = Unit.from_json(unit).key
        self.places.setdefault(key, (unit["model"], unit["recipe"], unit["images"]))
        self.executed += 1
        self.useful += 0.0 if key in self.store.rows else seconds
        return key

    def decode(self, rows: bytes) -> Any:
        """Read rows: those of a worker are named by their key, those that a driver made of a failure are Parquet."""
        if rows.decode(errors="replace") not in self.places:
            return PlainTable(decode_parquet(rows).to_pylist())
        key = rows.decode()
        model, recipe, images = self.places[key]
        same = {"unit": key, "model": model, "recipe": recipe, "metric": METRIC, "value": 0.5, "flag": ""}
        return PlainTable([{**same, "image": image} for image in images])

    def drive(self, index: int, killed_at: float) -> None:
        """Be one driver: begin the run, or go on with it."""
        driver = Driver(self.store, self.manifest, Callback())  # type: ignore[arg-type]
        owner = f"machine-{index}.1.{self.number}"
        claims = SimulatedClaims(self.store, clock=lambda: self.clock.now, owner=owner)  # type: ignore[arg-type]
        nothing = SimpleNamespace(written=lambda: None, finish=lambda _: None)  # packs are another matter
        driver.claims, driver.folding = claims, nothing  # type: ignore[assignment]
        engine = SimulatedEngine(self, [SimulatedWorker() for _ in range(self.workers)], claims, killed_at)
        begun = self.clock.now
        with suppress(Killed):
            self.outcomes.append(driver.compute_missing(engine))
        self.present += self.workers * (self.clock.now - begun)

    def run(self) -> dict[str, float]:
        """Run the plan, and resume it where a unit has failed."""
        resumed = 0
        with self._simulated():
            self._drive_all()
            while not all(outcome.complete for outcome in self.outcomes):
                resumed += 1
                self.killed_at = [float("inf")] * len(self.killed_at)
                self._drive_all()
        means, images = self.outcomes[0].running_means.ranked(), self.units // METHODS * BATCH
        return {
            "units": self.units,
            "stored": len(self.store.rows),
            "executed": self.executed,
            "workers_killed": self.deaths,
            "resumed": resumed,
            "hours": self.clock.now / 3600,
            "utilisation": self.useful / self.present,
            "complete": int(len(means) == METHODS and {mean.count for mean in means} == {images}),
        }

    def _drive_all(self) -> None:
        self.outcomes.clear()
        self.clock.run([partial(self.drive, index, when) for index, when in enumerate(self.killed_at)])

    @contextmanager
    def _simulated(self) -> Iterator[None]:
        """Give drivers the simulated time, dice and rows."""
        before = {name: getattr(driver_module, name) for name in ("time", "random", "decode")}
        driver_module.time = SimpleNamespace(sleep=self.clock.sleep)  # type: ignore[assignment]
        driver_module.random = SimpleNamespace(SystemRandom=lambda: self.dice)  # type: ignore[assignment]
        driver_module.decode = self.decode
        try:
            yield
        finally:
            for name, value in before.items():
                setattr(driver_module, name, value)


def simulated_manifest(units: int) -> Manifest:
    """Return the manifest of a run of as many units, each of 8 images and one method."""
    names = [f"ILSVRC2012_val_{index:08}.JPEG" for index in range(units // METHODS * BATCH)]
    chunks = [Chunk(tuple(names[first : first + BATCH]), f"{first:x}") for first in range(0, len(names), BATCH)]
    model = ModelInfo("simulated/vit", "0", tuple(f"smooth_grad(samples={n})" for n in range(METHODS)), (METRIC,))
    plan = {"name": "simulated", "maps": 0}
    return Manifest(plan, RunConfig("imagenet"), "imagenet", tuple(chunks), (model,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--units", type=int, default=375_000)
    parser.add_argument("--drivers", type=int, default=1)
    parser.add_argument("--workers", type=int, default=64, help="of each driver")
    parser.add_argument("--failures", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    begun = time.process_time()
    found = World(given.units, given.drivers, given.workers, given.failures, given.seed).run()
    found["processor_seconds"] = time.process_time() - begun
    for name, value in found.items():
        print(f"{name:18} {value:,.4f}" if isinstance(value, float) else f"{name:18} {value:,}")
    if not found["complete"] or found["utilisation"] < 0.95 or found["executed"] > 1.01 * found["units"]:
        raise SystemExit("the table is not complete, workers were idle too long, or work was done twice")


if __name__ == "__main__":
    main()
