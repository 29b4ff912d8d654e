"""Are two local workers at least 1.6 times as fast as one, and does a worker stay below 2 GB without growing?

    python benchmarks/bench_workers.py --weights ../shared/weights/vit_tiny_patch16_224.safetensors

The same units are done by one worker and by two, one thread each, in turn and repeated; what counts is the ratio of the
medians. Starting the workers and loading the model is not timed: every worker has done a unit before. Storing the rows
is. Without weights it runs on the bundled model and images, whose units are so short that the driver weighs more.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from sightline import __version__
from sightline.bench.engines.local import LocalEngine
from sightline.bench.images import open_images, split
from sightline.bench.plan import make_plan
from sightline.bench.store.rows import UnitResult
from sightline.bench.store.store import Store
from sightline.bench.unit import Manifest, RunConfig, Unit

METHODS = ["gae", "ixg", "rollout", "smooth_grad(samples=4)"]
METRICS = {"real": ["insertion(step=1792)", "deletion(step=1792)"], "bundled": ["insertion(step=16)"]}
CLAIM, ROOM = 1.6, 2048.0  # times as fast; MB


class Timed:
    """An engine of some workers, and what was seen of it."""

    def __init__(self, engine: LocalEngine, store: Store) -> None:
        self.engine, self.store = engine, store
        self.seconds: list[float] = []
        self.resident: list[float] = []  # MB of the largest worker, after every unit

    def warm(self, units: list[Unit]) -> None:
        """Let every worker do a unit."""
        engine = self.engine
        while len(engine.workers) < engine.max_workers or not all(worker.model for worker in engine.workers):
            self.engine.run(units, self._done, lambda _: True)
        self.resident.clear()

    def go(self, units: list[Unit]) -> None:
        """Do all units once."""
        begun = time.perf_counter()
        self.engine.run(units, self._done, lambda _: True)
        self.seconds.append(time.perf_counter() - begun)

    def _done(self, unit: Unit, result: UnitResult) -> None:
        self.store.write(unit.key, result.rows, result.maps)
        self.resident.append(max(_resident(worker.process.pid) for worker in self.engine.workers))

    def grown(self) -> float:
        """Return by how many MB the last quarter is above the first."""
        quarter = max(1, len(self.resident) // 4)
        return max(self.resident[-quarter:]) - max(self.resident[:quarter])


def _resident(process: int) -> float:
    pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def planned(engine: LocalEngine, asked: Any, config: RunConfig) -> list[Unit]:
    """Return the units to be done."""
    model = f"file:{asked.weights}@timm/vit_tiny_patch16_224" if asked.weights else "bundled/shapes-vit"
    metrics = METRICS["real" if asked.weights else "bundled"]
    settings = {"name": "workers", "models": [model], "methods": METHODS, "metrics": metrics, "controls": False}
    plan = make_plan({**settings, "dataset": config.dataset, "batch": asked.batch})
    found = engine.describe([model], plan.expanded().recipes, plan.expanded().metrics)
    chunks = split(open_images(config.dataset), asked.batch, asked.images)
    manifest = Manifest(plan.model_dump(mode="json"), config, "images", chunks, tuple(found), version=__version__)
    return list(manifest.units())


def arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, help="safetensors file of timm's vit_tiny_patch16_224")
    parser.add_argument("--dataset", help="a data set or a folder; with weights the sample photographs by default")
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--batch", type=int, default=2, help="images of a unit")
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    asked.weights = asked.weights and asked.weights.resolve()
    own = "../shared/data/imagenet-samples" if asked.weights else f"shapes(count={asked.images})"
    config = RunConfig(asked.dataset or own)
    console = Console()
    with ExitStack() as stack:
        found = {}
        for workers in (1, 2):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            engine = stack.enter_context(LocalEngine(config, workers=workers))
            found[workers] = Timed(engine, Store(folder))
        units = planned(found[1].engine, asked, config)
        for timed in found.values():
            timed.warm(units[:4])
        for _ in range(asked.repeats):
            for workers, timed in found.items():
                timed.go(units)
                console.print(f"{workers} at work: {len(units)} units in {timed.seconds[-1]:.1f} s")
    one, two = (statistics.median(timed.seconds) for timed in found.values())
    largest = max(max(timed.resident) for timed in found.values())
    grown = max(timed.grown() for timed in found.values())
    console.print(f"two workers are {one / two:.2f} times as fast as one; claimed: at least {CLAIM}")
    console.print(f"a worker holds {largest:.0f} MB at most, claimed: below {ROOM:.0f}; it grew by {grown:.0f} MB")


if __name__ == "__main__":
    main()
