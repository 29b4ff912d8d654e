"""Status: how much of a run its store holds. Reading it changes nothing, and loads no model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sightline.bench.running_means import Failure, RunningMeans
from sightline.bench.store.packs import PackedUnit
from sightline.bench.store.store import Store
from sightline.bench.unit import Manifest, Unit
from sightline.bench.unit_slots import UnitSlot, slots_of, unit_at

__all__ = ["Progress", "Status", "UnitStates", "is_complete", "read_states", "status_of"]


@dataclass(frozen=True)
class UnitStates:
    """The units of a run, by what the store holds of them.

    Attributes:
        scored: keys of those that are there, every image scored.
        failed: keys of those that are there with images that could not be scored.
        damaged: keys of those whose file cannot be read.
        missing: keys of those that are not there.
        means: what the first two say.
        stamps: of the files of those that failed.
    """

    scored: set[str]
    failed: set[str]
    damaged: set[str]
    missing: set[str]
    means: RunningMeans
    stamps: dict[str, str]


def read_states(store: Store, manifest: Manifest, slots: Sequence[UnitSlot] | None = None) -> UnitStates:
    """Read what the store holds of a run, or of some of its units: the index of packs, and files that are in none."""
    slots = slots_of(manifest) if slots is None else slots
    states = UnitStates(set(), set(), set(), set(), RunningMeans(), {})
    loose = store.loose_keys()
    packed = store.packs.refresh().units
    for slot in slots:
        unit = packed.get(slot.key)
        if unit is not None and _is_whole(unit, manifest, slot):
            states.scored.add(slot.key)
    states.means.add_scored(states.scored, store.packs.moments(states.scored))
    for slot in slots:
        if slot.key in states.scored:
            continue
        if slot.key in loose:
            _read_state(store, unit_at(manifest, slot), slot.key, states)
        else:
            states.missing.add(slot.key)
    return states


def _is_whole(packed: PackedUnit, manifest: Manifest, slot: UnitSlot) -> bool:
    metrics = len(manifest.models[slot.model].metrics)
    return (packed.rows, packed.metrics) == (len(manifest.chunks[slot.chunk].images) * metrics, metrics)


def _read_state(store: Store, unit: Unit, key: str, states: UnitStates) -> None:
    """Read a unit that has a file of its own, and note its state."""
    stamp = store.stamp(key)
    try:
        table = store.read(key)
    except FileNotFoundError:
        states.missing.add(key)
        return
    if table is None or not is_complete(unit, table):
        states.damaged.add(key)
    elif states.means.add(table):
        states.scored.add(key)
    else:
        states.failed.add(key)
        states.stamps[key] = stamp


def is_complete(unit: Unit, table: Any) -> bool:
    """Tell whether a table holds one row for each image and metric of a unit."""
    wanted = {(image, metric) for image in unit.images for metric in unit.metrics}
    if not {"image", "metric", "unit", "flag", "value"} <= set(table.column_names) or len(table) != len(wanted):
        return False
    stored = set(zip(table["image"].to_pylist(), table["metric"].to_pylist(), strict=True))
    return stored == wanted and set(table["unit"].to_pylist()) == {unit.key}


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
    """What a store holds of its run.

    Attributes:
        manifest: of the run.
        total: units of the plan.
        done: those that are stored.
        failed: those of them with images that could not be scored.
        damaged: paths of files that cannot be read.
        progress: by model and recipe.
        failures: images that could not be scored.
    """

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

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "run": self.manifest.name,
            "models": [model.model for model in self.manifest.models],
            "dataset": self.manifest.dataset,
            "images": sum(len(chunk.images) for chunk in self.manifest.chunks),
            "units": {
                "total": self.total,
                "done": self.done,
                "with_failures": self.failed,
                "damaged": len(self.damaged),
            },
            "complete": self.complete,
            "packages": [asdict(package) for package in self.manifest.packages],
            "damaged": list(self.damaged),
            "progress": [asdict(progress) for progress in self.progress],
            "failures": [asdict(failure) for failure in self.failures],
            "skipped": [{"image": image, "reason": reason} for image, reason in self.manifest.skipped],
            "left_out": [
                {"model": model.model, "recipe": recipe, "reason": reason}
                for model in self.manifest.models
                for recipe, reason in model.left_out
            ],
        }


def status_of(url: str) -> Status:
    """Return what a store holds of its run."""
    store = Store(url)
    manifest = store.manifest()
    slots = slots_of(manifest)
    states = read_states(store, manifest, slots)
    names = [model.model for model in manifest.models]
    stored = states.scored | states.failed
    total: Counter[tuple[str, str]] = Counter((names[slot.model], slot.recipe) for slot in slots)
    done = Counter((names[slot.model], slot.recipe) for slot in slots if slot.key in stored)
    failures = tuple(states.means.failures.values())
    failed = Counter((failure.model, failure.recipe) for failure in failures)
    return Status(
        manifest,
        total=len(slots),
        done=len(stored),
        failed=len(states.failed),
        damaged=tuple(sorted([*map(store.unit_path, states.damaged), *map(store.pack_path, store.packs.damaged)])),
        progress=tuple(Progress(*key, done[key], count, failed[key]) for key, count in total.items()),
        failures=failures,
    )
