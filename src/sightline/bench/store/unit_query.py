"""The units of a run that its store holds, and which pack each is read from, beside a connection to DuckDB.

Keys are numbers: those of the plan are held, and those of one pack at a time are looked up among them. What does not
fit into DuckDB's memory goes to a temporary folder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sightline.bench.store.packed_units import read_columns
from sightline.bench.unit import Manifest
from sightline.bench.unit_keys import KeyTable, text_of, words_of
from sightline.bench.unit_slots import UnitSlots, slots_of
from sightline.extras import require

if TYPE_CHECKING:
    from sightline.bench.store.store import Store

__all__ = ["LOOSE", "MEMORY", "HeldUnits", "count_units", "open_units"]

MEMORY = "512MB"  # that DuckDB may hold; the results it hands over come on top
THREADS = 2  # each of them holds what it reads
LOOKS = 4  # times that packs are listed again when they are merged while they are read
MISSING, LOOSE = -2, -1  # in place of a pack: the unit is not there, or it has a file of its own


@dataclass(frozen=True, eq=False)
class HeldUnits:
    """The planned units of a run, and where they are.

    Attributes:
        store: that holds them.
        slots: of the units.
        where: of each, the place of the first pack that holds it, `LOOSE` or `MISSING`.
        packs: names of the packs by their place, and how many units each has.
    """

    store: Store
    slots: UnitSlots
    where: NDArray[np.int32]
    packs: dict[str, int] = field(default_factory=dict)

    def count(self) -> int:
        """Return how many units of the run are there."""
        return int((self.where != MISSING).sum())

    def wanted_of_packs(self) -> dict[str, int]:
        """Return, by the name of each pack, how many units are to be read from it."""
        counts = np.bincount(self.where[self.where >= 0], minlength=len(self.packs)).tolist()
        return {name: count for name, count in zip(self.packs, counts, strict=True) if count}

    def keys_in(self, place: int) -> list[str]:
        """Return the keys of the units that are to be read from a pack, or from files of their own, in order."""
        return sorted(text_of(self.slots.words[self.where == place]))


@contextmanager
def open_units(
    store: Store, manifest: Manifest, images: Collection[str] | None = None
) -> Iterator[tuple[HeldUnits, Any, Path]]:
    """Find the units of a run, or those with some of its images alone; open a connection to DuckDB and a folder.

    Both end with the block.

    Raises:
        duckdb.Error: an index of a pack is damaged.
    """
    units = _find_units(store, manifest, images)
    with tempfile.TemporaryDirectory(prefix="sightline-rows-") as folder:
        settings = {"memory_limit": MEMORY, "threads": THREADS, "temp_directory": str(Path(folder) / "duckdb")}
        settings["preserve_insertion_order"] = False
        with require("duckdb").connect(":memory:", config=settings) as base:
            yield units, base, Path(folder)


def count_units(store: Store, manifest: Manifest) -> int:
    """Return how many units of a run the store holds."""
    return _find_units(store, manifest).count()


def _find_units(store: Store, manifest: Manifest, images: Collection[str] | None = None) -> HeldUnits:
    slots = slots_of(manifest)
    if images is not None:
        wanted = set(images)
        chosen = np.array([not wanted.isdisjoint(chunk.images) for chunk in manifest.chunks], dtype=bool)
        slots = slots.chosen(chosen[slots.chunks])
    table = KeyTable(slots.words)
    loose = table.find(words_of(store.each_loose_key()))  # before the packs: a file goes when its pack has come
    units = HeldUnits(store, slots, np.full(len(slots), MISSING, dtype=np.int32))
    for look in range(1, LOOKS + 1):
        try:
            _look_into_packs(units, table)
            break
        except FileNotFoundError:  # merged meanwhile
            if look == LOOKS:
                raise
    only = loose[loose >= 0]
    units.where[only[units.where[only] == MISSING]] = LOOSE
    return units


def _look_into_packs(units: HeldUnits, table: KeyTable) -> None:
    """Note in which pack each unit is, the first of several."""
    arrow, packs = require("pyarrow"), units.store.packs
    units.packs.clear()
    units.where[:] = MISSING
    for place, name in enumerate(packs.whole_names()):
        try:
            words = read_columns(name, packs.entries(name, ["unit", "rows"])).words
        except (arrow.ArrowException, ValueError) as error:
            raise require("duckdb").Error(f"the index of the pack {name} is damaged: {error}") from None
        units.packs[name] = len(words)
        found = table.find(words)
        found = found[found >= 0]
        units.where[found[units.where[found] == MISSING]] = place
