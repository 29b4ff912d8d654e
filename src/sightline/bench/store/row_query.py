"""The rows of a run as one view of DuckDB over Parquet files, none of which is read before it is asked for.

Packs of a folder are read where they lie. Packs of a bucket, and units in files of their own where there are many, are
copied into a temporary folder first. What DuckDB itself cannot hold within its memory it writes there, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.bench.store.packs import FOLDER, ROWS
from sightline.bench.store.rows import complete_columns, schema
from sightline.bench.store.unit_query import LOOSE, HeldUnits, open_units
from sightline.bench.store.unit_tables import read_one_by_one
from sightline.bench.unit import Manifest
from sightline.extras import require

if TYPE_CHECKING:
    from sightline.bench.store.store import Store

__all__ = ["VIEW", "open_rows"]

VIEW = "run_rows"
FEW = 1024  # files of single units that are opened where they lie
TOGETHER = 65_536  # rows of single units that are copied at a time


@contextmanager
def open_rows(store: Store, manifest: Manifest, images: Collection[str] | None = None) -> Iterator[Any]:
    """Open a connection to DuckDB in which the view `VIEW` holds the rows of a run, with all columns.

    Args:
        store: that holds them.
        manifest: of the run.
        images: ids of those whose units alone are read; all by default.

    Raises:
        duckdb.Error: a file is damaged or goes while it is read.
    """
    with open_units(store, manifest, images) as (units, base, folder):
        _make_view(units, base, folder)
        yield base


def _make_view(units: HeldUnits, base: Any, folder: Path) -> None:
    arrow = require("pyarrow")
    wanted = units.wanted_of_packs()
    paths = {name: _local(units.store, f"{FOLDER}/{name}{ROWS}", folder) for name in wanted}
    whole = [paths[name] for name, count in wanted.items() if count == units.packs[name]]
    whole += _single_units(units, folder)
    base.register("no_rows", schema().empty_table())
    parts = ["select * from no_rows"]  # names the columns that files of earlier versions lack
    if whole:
        parts.append(f"select * from {_parquet(whole)}")
    for place, (name, count) in enumerate(units.packs.items()):
        if 0 < wanted.get(name, 0) < count:
            base.register("chosen", arrow.table([arrow.array(units.keys_in(place), "string")], ["key"]))
            base.execute(f"create table chosen_{place} as select key::uuid as wanted_unit from chosen")
            base.unregister("chosen")
            same = "try_cast(rows.unit as uuid) = wanted_unit"
            parts.append(f"select rows.* from {_parquet([paths[name]])} as rows semi join chosen_{place} on {same}")
    base.execute(f"create view {VIEW} as {' union all by name '.join(parts)}")


def _local(store: Store, name: str, folder: Path) -> str:
    """Return the path of a file of the store on this machine; one in a bucket is copied first."""
    if store.folder is not None:
        return store.path(name)
    path = folder / Path(name).name
    store.files.get_file(store.path(name), str(path))
    return str(path)


def _parquet(paths: Sequence[str]) -> str:
    """Return the table of some Parquet files in SQL."""
    texts = ", ".join("'" + path.replace("'", "''") + "'" for path in paths)
    return f"read_parquet([{texts}], union_by_name = true)"


def _single_units(units: HeldUnits, folder: Path) -> list[str]:
    """Return files with the rows of units that have a file of their own; many are copied into one."""
    keys = units.keys_in(LOOSE)
    if units.store.folder is not None and len(keys) <= FEW:
        return [units.store.unit_path(key) for key in keys]
    path = folder / "units.parquet"
    arrow, parquet = require("pyarrow"), require("pyarrow.parquet")
    waiting: list[Any] = []
    with parquet.ParquetWriter(str(path), schema(), compression="zstd") as writer:
        for table in read_one_by_one(units.store, keys):
            waiting.append(complete_columns(table))
            if sum(map(len, waiting)) >= TOGETHER:
                writer.write_table(arrow.concat_tables(waiting))
                waiting.clear()
        writer.write_table(arrow.concat_tables([schema().empty_table(), *waiting]))
    return [str(path)]
