"""How evenly drivers share a large run: utilisation and completeness, simulated with a clock of its own.

::

    python benchmarks/shared_work.py        # 375 000 units, 4 drivers of 16 workers, 1 % of tasks kill their worker

The queues, the claims and their leases are those of a real run; units are not computed: each takes a time drawn from
a long-tailed distribution, and the store is a dictionary. One driver is killed half-way, so that its claims have to
expire and be taken over, and its workers are lost for the rest. Utilisation is the time that workers spent on units
whose rows were stored, divided by the time that workers were there.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from sightline.bench.engines.queue import Task, TaskQueue
from sightline.bench.store.claims import LEASE, RENEWALS, Claims

MODELS, RESTART, LOOK = 4, 20.0, 2.0  # seconds to start a worker again, and between two looks at claims
MEAN, SPREAD = 8.0, 0.8  # of a unit's duration in seconds, lognormal


class MemoryStore:
    """What claims ask of a store, in a dictionary."""

    folder = None

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.files = SimpleNamespace(cat_file=self._read, ls=lambda *_, **__: list(self.data))

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


class SimulatedClaims(Claims):
    """Claims whose signs of life are given by the simulation and not by a thread."""

    def _start(self) -> None:
        if not self._beats:
            self.beat()


@dataclass
class SimulatedDriver:
    """One driver: its queue, its claims, and what its workers do."""

    world: World
    index: int
    claims: SimulatedClaims
    alive: bool = True
    waiting: list[int] = field(default_factory=list)  # units that others have claimed
    busy: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        first = self.world.dice.randrange(self.world.units)
        self.queue = TaskQueue(map(self.task, [*range(first, self.world.units), *range(first)]))

    def task(self, unit: int) -> Task:
        def is_needed() -> bool:
            return self.is_needed(unit)

        task = Task(self.world.model_of(unit), bytes, lambda *_: None, lambda: self.world.store_rows(unit), is_needed)
        self.world.unit_of[id(task)] = unit
        return task

    def is_needed(self, unit: int) -> bool:
        """As `Driver._is_needed`, whose second look is not needed where nothing happens in between."""
        if unit in self.world.done:
            return False
        if not self.claims.take(str(unit)):
            self.waiting.append(unit)
            return False
        return True

    def next_task(self, model: str) -> Task | None:
        task = self.queue.next_task(model, self.busy)
        if task is None and self.waiting:  # as `Driver._wait_for_others`
            left = [unit for unit in self.waiting if unit not in self.world.done]
            free = [unit for unit in left if not self.claims.is_taken(str(unit))]
            self.waiting = [unit for unit in left if unit not in set(free)]
            for unit in free:
                one = self.task(unit)
                self.queue.waiting.setdefault(one.model, type(next(iter(self.queue.waiting.values())))()).append(one)
            task = self.queue.next_task(model, self.busy) if free else None
        return task


class World:
    """The clock, the store and all drivers."""

    def __init__(self, units: int, drivers: int, workers: int, failures: float, seed: int) -> None:
        self.units, self.workers, self.failures = units, workers, failures
        self.dice, self.now = random.Random(seed), 0.0
        self.done: set[int] = set()
        self.unit_of: dict[int, int] = {}
        self.executed = self.deaths = 0
        self.useful = 0.0
        self.store, self.events, self.number = MemoryStore(), [], 0
        self.drivers = [SimulatedDriver(self, index, self.new_claims(index)) for index in range(drivers)]

    def new_claims(self, index: int) -> SimulatedClaims:
        owner, store = f"machine-{index}.1.x", self.store
        return SimulatedClaims(store, lease=LEASE, clock=lambda: self.now, owner=owner)  # type: ignore[arg-type]

    def model_of(self, unit: int) -> str:
        return f"model-{unit * MODELS // self.units}"

    def store_rows(self, unit: int) -> None:
        self.done.add(unit)

    def at(self, when: float, kind: str, *what: Any) -> None:
        self.number += 1
        heapq.heappush(self.events, (when, self.number, kind, what))

    def run(self) -> dict[str, float]:
        for driver in self.drivers:
            self.at(LEASE / RENEWALS, "beat", driver)
            for _ in range(self.workers):
                self.at(0.0, "idle", driver, "")
        half_way = MEAN * self.units / (self.workers * len(self.drivers)) / 2
        self.at(half_way, "kill", self.drivers[-1])
        ended = 0.0
        while self.events and len(self.done) < self.units:
            self.now, _, kind, what = heapq.heappop(self.events)
            getattr(self, f"on_{kind}")(*what)
            ended = self.now
        whole = self.workers * (len(self.drivers) - 1) * ended + self.workers * min(half_way, ended)
        return {
            "units": self.units,
            "stored": len(self.done),
            "executed": self.executed,
            "workers_killed": self.deaths,
            "hours": ended / 3600,
            "utilisation": self.useful / whole,
        }

    def on_beat(self, driver: SimulatedDriver) -> None:
        if driver.alive:
            driver.claims.beat()
            driver.claims.observe()
            self.at(self.now + LEASE / RENEWALS, "beat", driver)

    def on_kill(self, driver: SimulatedDriver) -> None:
        driver.alive = False

    def on_idle(self, driver: SimulatedDriver, model: str) -> None:
        if not driver.alive:
            return
        task = driver.next_task(model)
        if task is None:
            self.at(self.now + LOOK, "idle", driver, model)
            return
        driver.busy[task.model] += 1
        seconds = self.dice.lognormvariate(0.0, SPREAD) * MEAN / 2.718281828 ** (SPREAD**2 / 2)
        dies = self.dice.random() < self.failures
        self.at(self.now + seconds * (self.dice.random() if dies else 1.0), "end", driver, task, seconds, dies)

    def on_end(self, driver: SimulatedDriver, task: Task, seconds: float, dies: bool) -> None:
        if not driver.alive:
            return
        driver.busy[task.model] -= 1
        if dies:
            self.deaths += 1
            driver.queue.worker_died(task)
            self.at(self.now + RESTART, "idle", driver, task.model)
            return
        unit = self.unit_of[id(task)]
        self.executed += 1
        self.useful += seconds if unit not in self.done else 0.0
        self.store_rows(unit)
        driver.claims.release(str(unit))
        self.on_idle(driver, task.model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--units", type=int, default=375_000)
    parser.add_argument("--drivers", type=int, default=4)
    parser.add_argument("--workers", type=int, default=16, help="of each driver")
    parser.add_argument("--failures", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    found = World(given.units, given.drivers, given.workers, given.failures, given.seed).run()
    for name, value in found.items():
        print(f"{name:15} {value:,.4f}" if isinstance(value, float) else f"{name:15} {value:,}")
    if found["stored"] != given.units or found["utilisation"] < 0.95:
        raise SystemExit("the table is not complete, or workers were idle too long")


if __name__ == "__main__":
    main()
