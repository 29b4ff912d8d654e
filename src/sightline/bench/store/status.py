"""Status: how much of a run its store holds. Reading it changes nothing, and loads no model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.bench.running_means import Failure, RunningMeans
from sightline.bench.store.store import Store
from sightline.bench.unit import Manifest, Unit
from sightline.bench.unit_keys import KeyTable, words_of
from sightline.bench.unit_slots import UnitSlots, slots_of, unit_at

__all__ = ["Progress", "Status", "UnitStates", "is_complete", "read_states", "status_of"]

LOOKS = 20  # times that packs are looked at again when they are merged while they are read
MISSING, SCORED, FAILED, DAMAGED = range(4)


@dataclass(frozen=True, eq=False)
class UnitStates:
    """The units of a run, by what the store holds of them.

    Attributes:
        slots: of the units.
        states: of each: it is not there, or it is and every image was scored, or it is with images that could not be
            scored, or its file cannot be read.
        means: what those that are there say.
        stamps: of the files of those that failed.
    """

    slots: UnitSlots
    states: NDArray[np.int8]
    means: RunningMeans
    stamps: dict[str, str]

    @property
    def scored(self) -> UnitSlots:
        """Those that are there, every image scored."""
        return self.slots.chosen(self.states == SCORED)

    @property
    def failed(self) -> UnitSlots:
        """Those that are there with images that could not be scored."""
        return self.slots.chosen(self.states == FAILED)

    @property
    def damaged(self) -> UnitSlots:
        """Those whose file cannot be read."""
        return self.slots.chosen(self.states == DAMAGED)

    @property
    def missing(self) -> UnitSlots:
        """Those that are not there."""
        return self.slots.chosen(self.states == MISSING)

    @property
    def to_do(self) -> UnitSlots:
        """All that are not there with every image scored."""
        return self.slots.chosen(self.states != SCORED)


def read_states(store: Store, manifest: Manifest, slots: UnitSlots | None = None) -> UnitStates:
    """Read what the store holds of a run, or of some of its units: the index of packs, and files that are in none."""
    slots = slots_of(manifest) if slots is None else slots
    loose = words_of(store.loose_keys())  # before the packs: a file goes when its pack has come
    states = UnitStates(slots, np.full(len(slots), MISSING, dtype=np.int8), RunningMeans(), {})
    _read_packs(store, states)
    is_open = states.states == MISSING
    if len(loose) and is_open.any():
        is_open &= KeyTable(loose).find(slots.words) >= 0
        for index in np.flatnonzero(is_open).tolist():
            slot = slots[index]
            states.states[index] = _read_state(store, unit_at(manifest, slot), slot.key, states)
    return states


def _read_packs(store: Store, states: UnitStates) -> None:
    """Note which units are whole in packs, and what they say; again where packs are merged meanwhile."""
    slots, manifest = states.slots, states.slots.manifest
    metrics = np.array([len(model.metrics) for model in manifest.models], dtype=np.int32)
    images = np.array([len(chunk.images) for chunk in manifest.chunks], dtype=np.int32)
    for look in range(1, LOOKS + 1):
        packed = store.packs.refresh().units
        if not packed:
            return
        found = packed.find(slots.words)
        wanted = metrics[slots.models]
        whole = found >= 0
        whole &= (packed.metrics[found] == wanted) & (packed.rows[found] == images[slots.chunks] * wanted)
        try:
            moments = store.packs.moments(found[whole])
        except FileNotFoundError:
            if look == LOOKS:
                raise
            continue
        states.states[whole] = SCORED
        states.means.add_packed(KeyTable(slots.words[whole]), moments)
        return


def _read_state(store: Store, unit: Unit, key: str, states: UnitStates) -> int:
    """Read a unit that has a file of its own, note what it says, and return its state."""
    stamp = store.stamp(key)
    try:
        table = store.read(key)
    except FileNotFoundError:
        return MISSING
    if table is None or not is_complete(unit, table):
        return DAMAGED
    if states.means.add(table):
        return SCORED
    states.stamps[key] = stamp
    return FAILED


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
    states = read_states(store, manifest)
    failures = tuple(states.means.failures.values())
    damaged = [*map(store.unit_path, (slot.key for slot in states.damaged)), *map(store.pack_path, store.packs.damaged)]
    there = (states.states == SCORED) | (states.states == FAILED)
    return Status(
        manifest,
        total=len(states.slots),
        done=int(there.sum()),
        failed=len(states.failed),
        damaged=tuple(sorted(damaged)),
        progress=tuple(_progress(states, there, failures)),
        failures=failures,
    )


def _progress(states: UnitStates, there: NDArray[np.bool_], failures: tuple[Failure, ...]) -> Iterator[Progress]:
    """Yield how far each recipe is on each model."""
    manifest = states.slots.manifest
    failed = Counter((failure.model, failure.recipe) for failure in failures)
    for place, model in enumerate(manifest.models):
        recipes = states.slots.recipes[there & (states.slots.models == place)]
        done = np.bincount(recipes, minlength=len(model.recipes)).tolist()
        for recipe, count in zip(model.recipes, done, strict=True):
            if manifest.chunks:
                yield Progress(model.model, recipe, count, len(manifest.chunks), failed[model.model, recipe])
