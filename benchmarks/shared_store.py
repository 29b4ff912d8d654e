"""How much drivers on one store do twice: real processes, real files and claims, units that take a moment each.

::

    python benchmarks/shared_store.py                              # 4 drivers, 2 400 units of 10 ms
    python benchmarks/shared_store.py --drivers 8 --units 12000 --folder /shared/scratch    # on a network file system

Every driver is a process of its own that goes on with the same run, as ``sightline bench resume`` does on each machine
of a cluster: it claims units, stores their rows, folds them into packs now and then, and waits for the others. Only
the computation is replaced, by a pause. A unit that two drivers compute is done twice; claims are there to make that
rare. `benchmarks/shared_work.py` simulates larger runs, drivers that are killed and workers that die.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sightline.bench.driver import Driver
from sightline.bench.outcome import Callback
from sightline.bench.store.rows import UnitResult, encode, make_row
from sightline.bench.store.store import Store
from sightline.bench.unit import Chunk, Manifest, ModelInfo, RunConfig, Unit

METHODS, METRIC, MOST = 12, "single_deletion", 0.01


class PausingEngine:
    """An engine that waits instead of computing."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def run(
        self,
        units: Sequence[Unit],
        on_done: Callable[[Unit, UnitResult], None],
        is_needed: Callable[[Unit], bool],
    ) -> None:
        for unit in units:
            if is_needed(unit):
                time.sleep(random.uniform(0.5, 1.5) * self.seconds)
                rows = [make_row(unit, unit.key, METRIC, image, "{}", value=0.5) for image in unit.images]
                on_done(unit, UnitResult(unit.key, encode(rows)))


def make_store(folder: str, units: int) -> None:
    """Write the plan of a run of about as many units, each of one method and two images."""
    chunks = tuple(Chunk((f"a{place}", f"b{place}"), str(place)) for place in range(max(units // METHODS, 1)))
    model = ModelInfo("none", "0", tuple(f"smooth_grad(samples={count})" for count in range(METHODS)), (METRIC,))
    store = Store(folder)
    store.prepare()
    store.write_manifest(Manifest({"name": "shared", "maps": 0}, RunConfig("none"), "none", chunks, (model,)))


def drive(folder: str, seconds: float) -> None:
    """Be one driver, and tell what it has done; a line on standard input starts it."""
    store = Store(folder)
    driver = Driver(store, store.manifest(), Callback())
    print("ready", flush=True)
    sys.stdin.readline()
    outcome = driver.compute_missing(PausingEngine(seconds))  # type: ignore[arg-type]
    print(json.dumps({"computed": outcome.computed, "total": outcome.total, "complete": outcome.complete}))


def measure(folder: str, drivers: int, seconds: float) -> dict[str, float]:
    """Let drivers begin at the same moment, and count what they have done together."""
    words = [sys.executable, __file__, "--drive", folder, "--seconds", str(seconds)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(words, **pipes) for _ in range(drivers)]  # type: ignore[call-overload]
    try:
        for process in processes:
            process.stdout.readline()  # it is ready
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        told = [json.loads(process.communicate()[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
    computed, units = sum(one["computed"] for one in told), told[0]["total"]
    return {
        "drivers": drivers,
        "units": units,
        "fewest_of_a_driver": min(one["computed"] for one in told),
        "computed": computed,
        "done_twice": computed - units,
        "share_done_twice": (computed - units) / units,
        "complete": int(all(one["complete"] for one in told) and not _claims_left(folder)),
    }


def _claims_left(folder: str) -> bool:
    return any((Path(folder) / "claims").rglob("*.claim"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--drivers", type=int, default=4)
    parser.add_argument("--units", type=int, default=2400)
    parser.add_argument("--seconds", type=float, default=0.01, help="of a unit, in the mean")
    parser.add_argument("--folder", type=Path, help="where the store is made and removed again; a temporary folder")
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.drive:
        drive(given.drive, given.seconds)
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        make_store(folder, given.units)
        found = measure(folder, given.drivers, given.seconds)
    for name, value in found.items():
        print(f"{name:18} {value:,.4f}" if isinstance(value, float) else f"{name:18} {value:,}")
    if not found["complete"] or found["share_done_twice"] > MOST:
        raise SystemExit("the run is not complete, or more than one unit in a hundred was done twice")


if __name__ == "__main__":
    main()
