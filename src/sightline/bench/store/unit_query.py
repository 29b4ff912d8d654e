"""The units of a run that its store holds, as tables of DuckDB: compared and counted there, none a Python object.

============  ==========================================================================================
``planned``   keys of the run's units, as its manifest has them
``held``      those of them that are in packs, each with the place of the first pack that holds it
``loose``     keys of units that have a file of their own and are in no pack, planned or not
============  ==========================================================================================

A key is kept as a number of 128 bits, DuckDB's UUID. What does not fit into DuckDB's memory goes to a temporary folder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.bench.store.packs import FOLDER, INDEX
from sightline.bench.unit import Manifest
from sightline.bench.unit_slots import each_slot
from sightline.extras import require

if TYPE_CHECKING:
    from sightline.bench.store.store import Store

__all__ = ["MEMORY", "HeldUnits", "count_units", "open_units"]

MEMORY = "512MB"  # that DuckDB may hold; the results it hands over come on top
THREADS = 2  # each of them holds what it reads
TOGETHER = 65_536  # keys that are handed over at a time
LOOKS = 4  # times that packs are listed again when they are merged while they are read


@dataclass(frozen=True, eq=False)
class HeldUnits:
    """The units of a run, in the tables above.

    Attributes:
        store: that holds them.
        base: the connection to DuckDB.
        folder: a temporary one.
        packs: names of the packs by their place, and how many units each has.
    """

    store: Store
    base: Any
    folder: Path
    packs: dict[str, int]

    def count(self) -> int:
        """Return how many units of the run are there."""
        there = "(select unit from held union all select unit from loose) as there"
        return int(self.base.sql(f"select count(*) from planned semi join {there} using (unit)").fetchall()[0][0])

    def wanted_of_packs(self) -> dict[str, int]:
        """Return, by the name of each pack, how many units are to be read from it."""
        counts = dict(self.base.sql("select pack, count(*) from held group by pack").fetchall())
        return {name: counts[place] for place, name in enumerate(self.packs) if place in counts}

    def loose_keys(self) -> Iterator[str]:
        """Yield the keys of the run's units that have a file of their own, in order."""
        found = self.base.sql("select replace(unit::varchar, '-', '') as key from loose semi join planned using (unit)")
        for batch in found.order("key").to_arrow_reader(TOGETHER):
            yield from batch.column("key").to_pylist()

    def local(self, name: str) -> str:
        """Return the path of a file of the store on this machine; one in a bucket is copied first."""
        if self.store.folder is not None:
            return self.store.path(name)
        path = self.folder / Path(name).name
        self.store.files.get_file(self.store.path(name), str(path))
        return str(path)


@contextmanager
def open_units(store: Store, manifest: Manifest, images: Collection[str] | None = None) -> Iterator[HeldUnits]:
    """List the units of a run, or those with some of its images alone, in a database that ends with the block.

    Raises:
        duckdb.Error: an index of a pack is damaged.
    """
    duckdb = require("duckdb")
    with tempfile.TemporaryDirectory(prefix="sightline-rows-") as folder:
        settings = {"memory_limit": MEMORY, "threads": THREADS, "temp_directory": str(Path(folder) / "duckdb")}
        with duckdb.connect(":memory:", config=settings | {"preserve_insertion_order": False}) as base:
            _fill(base, "planned", _planned_keys(manifest, images))
            _fill(base, "found", store.each_loose_key())  # before the packs: a file goes when its pack has come
            units = HeldUnits(store, base, Path(folder), {})
            _list_packs(units)
            yield units


def count_units(store: Store, manifest: Manifest) -> int:
    """Return how many units of a run the store holds."""
    with open_units(store, manifest) as units:
        return units.count()


def _planned_keys(manifest: Manifest, images: Collection[str] | None) -> Iterator[str]:
    wanted = None if images is None else set(images)
    chosen = [wanted is None or not wanted.isdisjoint(chunk.images) for chunk in manifest.chunks]
    return (slot.key for slot in each_slot(manifest) if chosen[slot.chunk])


def _fill(base: Any, table: str, keys: Iterable[str]) -> None:
    """Make a table of keys; what is no key is left out."""
    arrow = require("pyarrow")
    base.execute(f"create table {table} (unit uuid)")
    waiting = iter(keys)
    while some := list(islice(waiting, TOGETHER)):
        base.register("some_keys", arrow.table([arrow.array(some, "string")], ["key"]))
        base.execute(f"insert into {table} select try_cast(key as uuid) as unit from some_keys where unit is not null")
        base.unregister("some_keys")


def _list_packs(units: HeldUnits) -> None:
    """Make the tables of what packs hold and of what is in none; again where packs are merged meanwhile."""
    duckdb, base = require("duckdb"), units.base
    for look in range(1, LOOKS + 1):
        try:
            units.packs.clear()
            base.execute("create or replace table packed (unit uuid, pack integer)")
            for place, name in enumerate(units.store.packs.whole_names()):
                units.packs[name] = _list_pack(units, name, place)
            break
        except (duckdb.Error, FileNotFoundError):
            if look == LOOKS:
                raise
    base.execute("create table loose as select unit from found anti join packed using (unit)")
    base.execute(
        "create table held as select unit, min(pack) as pack from packed semi join planned using (unit) group by unit"
    )
    base.execute("drop table packed")
    base.execute("drop table found")


def _list_pack(units: HeldUnits, name: str, place: int) -> int:
    """List the units of a pack, and return how many there are."""
    index = units.local(f"{FOLDER}/{name}{INDEX}")
    query = "insert into packed select distinct unit::uuid, $place from read_parquet($index)"
    return int(units.base.execute(query, {"place": place, "index": index}).fetchall()[0][0])
