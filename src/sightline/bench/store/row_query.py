"""The rows of a run as one view of DuckDB over Parquet files, none of which is read before it is asked for.

Packs of a folder are read where they lie. Packs of a bucket, and units in files of their own where there are many, are
copied into a temporary folder first. What DuckDB itself cannot hold within its memory it writes there, too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.bench.store.rows import complete_columns, schema
from sightline.bench.store.unit_tables import read_one_by_one
from sightline.extras import require

if TYPE_CHECKING:
    from sightline.bench.store.store import Store

__all__ = ["MEMORY", "VIEW", "open_rows"]

MEMORY = "512MB"  # that DuckDB may hold; the results it hands over come on top
THREADS = 2  # each of them holds what it reads
VIEW = "run_rows"
FEW = 1024  # files of single units that are opened where they lie
TOGETHER = 65_536  # rows of single units that are copied at a time


@contextmanager
def open_rows(store: Store, keys: Sequence[str]) -> Iterator[Any]:
    """Open a connection to DuckDB in which the view `VIEW` holds the rows of some units, with all columns.

    Raises:
        duckdb.Error: a file is damaged or goes while it is read.
    """
    duckdb = require("duckdb")
    with tempfile.TemporaryDirectory(prefix="sightline-rows-") as folder:
        settings = {"memory_limit": MEMORY, "threads": THREADS, "temp_directory": str(Path(folder) / "duckdb")}
        with duckdb.connect(":memory:", config=settings | {"preserve_insertion_order": False}) as base:
            _make_view(base, store, keys, Path(folder))
            yield base


def _make_view(base: Any, store: Store, keys: Sequence[str], folder: Path) -> None:
    packed = store.packs.files_of(keys)
    paths = {name: _local(store, name, folder) for name in packed}
    sizes = {pack.rows_name: len(pack.keys) for pack in store.packs.packs.values()}
    whole = [paths[name] for name, units in packed.items() if len(units) == sizes[name]]
    partly = {paths[name]: units for name, units in packed.items() if len(units) < sizes[name]}
    whole += _single_units(store, [key for key in keys if key not in store.packs.units], folder)
    base.register("no_rows", schema().empty_table())
    parts = ["select * from no_rows"]  # names the columns that files of earlier versions lack
    if whole:
        parts.append(f"select * from {_parquet(whole)}")
    if partly:
        base.register("wanted", _wanted(partly))
        parts.append(
            f"select * exclude (filename) from {_parquet(list(partly), filename=True)} as rows "
            "semi join wanted on rows.filename = wanted_file and rows.unit = wanted_unit"
        )
    base.execute(f"create view {VIEW} as {' union all by name '.join(parts)}")


def _parquet(paths: Sequence[str], *, filename: bool = False) -> str:
    """Return the table of some Parquet files in SQL."""
    texts = ", ".join("'" + path.replace("'", "''") + "'" for path in paths)
    return f"read_parquet([{texts}], union_by_name = true{', filename = true' if filename else ''})"


def _wanted(units: Mapping[str, Sequence[str]]) -> Any:
    """Return a table of files and those of their units that are wanted."""
    arrow = require("pyarrow")
    files = [place for place, own in enumerate(units.values()) for _ in own]
    names = arrow.DictionaryArray.from_arrays(arrow.array(files, "int32"), arrow.array(list(units), "string"))
    return arrow.table([names, [key for own in units.values() for key in own]], ["wanted_file", "wanted_unit"])


def _local(store: Store, name: str, folder: Path) -> str:
    """Return the path of a pack's rows on this machine."""
    if store.folder is not None:
        return store.path(name)
    path = folder / Path(name).name
    store.files.get_file(store.path(name), str(path))
    return str(path)


def _single_units(store: Store, keys: Sequence[str], folder: Path) -> list[str]:
    """Return files with the rows of units that have a file of their own; many are copied into one."""
    if store.folder is not None and len(keys) <= FEW:
        return [store.unit_path(key) for key in keys]
    path = folder / "units.parquet"
    arrow, parquet = require("pyarrow"), require("pyarrow.parquet")
    waiting: list[Any] = []
    with parquet.ParquetWriter(str(path), schema(), compression="zstd") as writer:
        for table in read_one_by_one(store, keys):
            waiting.append(complete_columns(table))
            if sum(map(len, waiting)) >= TOGETHER:
                writer.write_table(arrow.concat_tables(waiting))
                waiting.clear()
        writer.write_table(arrow.concat_tables([schema().empty_table(), *waiting]))
    return [str(path)]
