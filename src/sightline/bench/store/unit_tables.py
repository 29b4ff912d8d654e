"""The rows of many units as one pyarrow table, from packs and from files of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

from sightline.bench.store.rows import complete_columns, open_parquet, schema
from sightline.errors import warn
from sightline.extras import require

if TYPE_CHECKING:
    from sightline.bench.store.store import Store

__all__ = ["read_one_by_one", "read_packed", "read_part", "read_units"]

DAMAGED = "it is damaged or cut short"
BATCH = 100_000  # rows that are read at a time where they are encoded
LOOKS = 4  # times that units are looked for again when they are folded while they are read


def read_units(store: Store, keys: Sequence[str]) -> Any:
    """Read units: a folder at once by DuckDB; file by file in a bucket, or where that fails."""
    arrow = require("pyarrow")
    if store.folder is not None:
        duckdb = require("duckdb")
        for _ in range(LOOKS):
            before = set(store.packs.refresh().packs)
            with suppress(duckdb.Error, arrow.ArrowException):
                return _query(store, keys)
            if set(store.packs.refresh().packs) == before:
                break
    loose = compress(keys, ~store.packs.refresh().units.holds(keys))
    tables = [*_read_packs(store, keys), *read_one_by_one(store, loose)]
    return arrow.concat_tables([schema().empty_table(), *tables])


def read_part(
    store: Store, keys: Sequence[str], model: str, metric: str, *, encoded: bool = False, curves: bool = True
) -> Any:
    """Read the rows of one model and metric from units of a folder; no others are held in memory.

    Args:
        store: a folder.
        keys: of the units.
        model: its id.
        metric: its recipe.
        encoded: whether texts are encoded by dictionaries, since most of them are the same in many rows.
        curves: whether curves are read; they are missing else.

    Raises:
        duckdb.Error: a file is damaged, or was folded into a pack meanwhile.
    """
    chosen = _Query(
        "where model = $model and metric = $metric", (("model", model), ("metric", metric)), encoded, curves
    )
    return _query(store, keys, chosen)


@dataclass(frozen=True)
class _Query:
    """Which rows are read, and how."""

    where: str = ""
    values: tuple[tuple[str, str], ...] = ()
    encoded: bool = False
    curves: bool = True

    def columns(self, rows: str, *, without: str = "") -> str:
        replaced = "" if self.curves else " replace (null::double[] as curve)"
        return f"{rows}*{f' exclude ({without})' if without else ''}{replaced}"


def _query(store: Store, keys: Sequence[str], asked: _Query = _Query()) -> Any:
    """Read units of a folder by DuckDB."""
    arrow, duckdb = require("pyarrow"), require("duckdb")
    packed = {store.path(name): units for name, units in store.packs.files_of(keys).items()}
    loose = list(map(store.unit_path, compress(keys, ~store.packs.units.holds(keys))))
    tables = [_encoded(schema().empty_table()) if asked.encoded else schema().empty_table()]
    with duckdb.connect(":memory:") as base:
        if loose:
            query = f"select {asked.columns('')} from read_parquet($files, union_by_name = true) {asked.where}"
            tables += _collected(base.sql(query, params={"files": loose, **dict(asked.values)}), encoded=asked.encoded)
        if packed:
            pairs = [(path, unit) for path, units in packed.items() for unit in units]
            columns = [list(column) for column in zip(*pairs, strict=True)]
            base.register("wanted", arrow.table(columns, ["wanted_file", "wanted_unit"]))
            query = (
                f"select {asked.columns('rows.', without='filename')} from read_parquet($files, filename = true) as "
                f"rows semi join wanted on rows.filename = wanted_file and rows.unit = wanted_unit {asked.where}"
            )
            params = {"files": list(packed), **dict(asked.values)}
            tables += _collected(base.sql(query, params=params), encoded=asked.encoded)
    joined = arrow.concat_tables(tables)
    return joined.unify_dictionaries() if asked.encoded else joined


def _collected(found: Any, *, encoded: bool) -> Iterator[Any]:
    """Yield what a query finds; in batches, each encoded before the next is read, where that is asked for."""
    if not encoded:
        yield complete_columns(found.to_arrow_table())
        return
    arrow = require("pyarrow")
    for batch in found.to_arrow_reader(BATCH):
        yield _encoded(complete_columns(arrow.Table.from_batches([batch])))


def _encoded(table: Any) -> Any:
    """Return a table whose texts are encoded by dictionaries."""
    for place, name in enumerate(table.column_names):
        if table.schema.types[place] == require("pyarrow").string():
            table = table.set_column(place, name, table[name].dictionary_encode())
    return table


def _read_packs(store: Store, keys: Sequence[str]) -> Iterator[Any]:
    arrow, compute = require("pyarrow"), require("pyarrow.compute")
    for name, units in store.packs.files_of(keys).items():
        try:
            with store.files.open(store.path(name), "rb") as file:
                table = open_parquet(file).read(use_threads=False)
        except (arrow.ArrowException, OSError, ValueError):
            advice = "`sightline bench compact` puts it aside, and `sightline bench resume` makes its units anew"
            warn(f"left out {store.path(name)}: {DAMAGED}; {advice}", stacklevel=4)
            continue
        yield complete_columns(table.filter(compute.is_in(table["unit"], value_set=arrow.array(units, "string"))))


def read_one_by_one(store: Store, keys: Iterable[str]) -> Iterator[Any]:
    """Yield the rows of units, each read by itself; one that is damaged is named in a warning and left out."""
    for key in keys:
        try:
            table = store.read(key)
        except FileNotFoundError:  # another driver has just moved it
            continue
        if table is None:
            message = f"left out {store.unit_path(key)}: {DAMAGED}; `sightline bench resume` makes it anew"
            warn(message, stacklevel=4)
            continue
        yield complete_columns(table)


def read_packed(store: Store, key: str) -> Any:
    """Read the rows of one unit from its pack; None where they are damaged."""
    arrow, compute = require("pyarrow"), require("pyarrow.compute")
    name = store.packs.packs[store.packs.units[key].pack].rows_name
    try:
        with store.files.open(store.path(name), "rb") as file:
            source = open_parquet(file)
            table = source.read_row_groups(_groups_of(source, key), use_threads=False)
            return table.filter(compute.equal(table["unit"], key)).cast(schema())
    except FileNotFoundError:
        raise
    except (arrow.ArrowException, OSError, ValueError):
        return None


def _groups_of(source: Any, key: str) -> list[int]:
    """Return the row groups of a pack that may hold a unit, by the statistics of its keys."""
    place, groups = source.schema_arrow.get_field_index("unit"), []
    for number in range(source.num_row_groups):
        known = source.metadata.row_group(number).column(place).statistics
        if known is None or not known.has_min_max or known.min <= key <= known.max:
            groups.append(number)
    return groups
