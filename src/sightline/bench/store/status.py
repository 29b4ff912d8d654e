"""Status: what a store holds of its run. It changes nothing, and loads no model."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from sightline.bench.running_means import Failure, Standings
from sightline.bench.store.store import Store
from sightline.bench.unit import Manifest, Unit

__all__ = ["Progress", "Status", "Survey", "status_of", "survey"]


@dataclass(frozen=True)
class Survey:
    """The units of a run, by what is to be done with them.

    Attributes:
        sound: keys of those that are there, every image scored.
        failed: keys of those that are there with images that could not be scored.
        damaged: keys of those whose file cannot be read.
        missing: keys of those that are not there.
        standings: what the first two say.
    """

    sound: set[str]
    failed: set[str]
    damaged: set[str]
    missing: set[str]
    standings: Standings


def survey(store: Store, units: list[Unit]) -> Survey:
    """Read whatever there is of a run."""
    found = Survey(set(), set(), set(), set(), Standings())
    there = store.keys()
    for unit in units:
        key = unit.key
        if key not in there:
            found.missing.add(key)
            continue
        try:
            table = store.read(key)
        except FileNotFoundError:
            found.missing.add(key)
            continue
        if table is None or not is_whole(unit, table):
            found.damaged.add(key)
        elif found.standings.add(table):
            found.sound.add(key)
        else:
            found.failed.add(key)
    return found


def is_whole(unit: Unit, table: Any) -> bool:
    """Tell whether a table holds one row for each image and metric of a unit."""
    wanted = {(image, metric) for image in unit.images for metric in unit.metrics}
    if not {"image", "metric", "unit", "flag", "value"} <= set(table.column_names) or len(table) != len(wanted):
        return False
    there = set(zip(table["image"].to_pylist(), table["metric"].to_pylist(), strict=True))
    return there == wanted and set(table["unit"].to_pylist()) == {unit.key}


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a recipe is on a model."""

    model: str
    recipe: str
    done: int
    total: int
    failed: int


@dataclass(frozen=True)
class Status:
    """What a store holds of its run."""

    manifest: Manifest
    total: int
    done: int
    failed: int
    damaged: tuple[str, ...]
    progress: tuple[Progress, ...]
    failures: tuple[Failure, ...]

    @property
    def complete(self) -> bool:
        """Whether every image was scored."""
        return self.done == self.total and not self.failures

    def json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "run": self.manifest.name,
            "models": [model.model for model in self.manifest.models],
            "dataset": self.manifest.dataset,
            "images": len(self.manifest.images),
            "units": {
                "total": self.total,
                "done": self.done,
                "with_failures": self.failed,
                "damaged": len(self.damaged),
            },
            "complete": self.complete,
            "damaged": list(self.damaged),
            "progress": [asdict(one) for one in self.progress],
            "failures": [asdict(one) for one in self.failures],
            "skipped": [{"image": image, "reason": reason} for image, reason in self.manifest.skipped],
            "left_out": [
                {"model": model.model, "recipe": recipe, "reason": reason}
                for model in self.manifest.models
                for recipe, reason in model.left_out
            ],
        }


def status_of(url: str) -> Status:
    """Look at a store."""
    store = Store(url)
    manifest = store.manifest()
    units = list(manifest.units())
    found = survey(store, units)
    total: Counter[tuple[str, str]] = Counter((unit.model, unit.recipe) for unit in units)
    there = found.sound | found.failed
    done = Counter((unit.model, unit.recipe) for unit in units if unit.key in there)
    failures = tuple(found.standings.failures.values())
    failed = Counter((one.model, one.recipe) for one in failures)
    return Status(
        manifest,
        total=len(units),
        done=len(there),
        failed=len(found.failed),
        damaged=tuple(sorted(store.unit_path(key) for key in found.damaged)),
        progress=tuple(Progress(*key, done[key], count, failed[key]) for key, count in total.items()),
        failures=failures,
    )
