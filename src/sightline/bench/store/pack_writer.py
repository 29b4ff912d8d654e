"""Writing of packs: rows of many units into one file, row group by row group, then the index that makes it count."""

from __future__ import annotations

import hashlib
import io
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from sightline.bench.store.packs import DIGEST, FOLDER, INDEX, ROWS, SIZE, index_schema
from sightline.bench.store.rows import schema
from sightline.extras import require

if TYPE_CHECKING:
    from sightline.bench.store.store import Store

__all__ = ["PackWriter", "new_pack", "summarise"]

GROUP = 65_536  # rows of a row group, about
ORDER = [(name, "ascending") for name in ("model", "metric", "recipe", "image")]


@contextmanager
def new_pack(store: Store, entries: Any = None) -> Iterator[PackWriter]:
    """Open a pack to be filled; it is there, whole, when the block ends without an error.

    Args:
        store: to write it into.
        entries: its index, a pyarrow table, where that is known; by default it is computed from the rows.

    Raises:
        OSError: it could not be written; whatever is left of it is not read by anybody.
    """
    parquet = require("pyarrow.parquet")
    name = secrets.token_hex(8)
    with store.open_new(f"{FOLDER}/{name}{ROWS}") as file:
        digesting = _DigestingFile(file)
        with parquet.ParquetWriter(digesting, schema(), compression="zstd") as rows:
            writer = PackWriter(name, rows, entries)
            yield writer
            writer.flush()
    store.write_file(f"{FOLDER}/{name}{INDEX}", _index(writer.entries, digesting))


class PackWriter:
    """A pack that is being written.

    Attributes:
        name: of the pack.
        entries: of its index so far, pyarrow tables.
    """

    def __init__(self, name: str, rows: Any, entries: Any = None) -> None:
        self.name = name
        self.entries: list[Any] = [] if entries is None else [entries]
        self._is_known = entries is not None
        self._rows = rows
        self._waiting: list[Any] = []

    def add(self, table: Any) -> None:
        """Add the rows of some units, each of them whole unless the index is known."""
        self._waiting.append(table)
        if sum(map(len, self._waiting)) >= GROUP:
            self.flush()

    def flush(self) -> None:
        """Write what is waiting as one row group."""
        if not self._waiting:
            return
        table = require("pyarrow").concat_tables(self._waiting)
        self._waiting.clear()
        if not self._is_known:
            self.entries.append(summarise(table))
        self._rows.write_table(table.sort_by(ORDER), row_group_size=max(len(table), 1))


def summarise(table: Any) -> Any:
    """Return the index of rows: one line per unit and metric, sorted by unit."""
    arrow = require("pyarrow")
    encoded = [table[name].combine_chunks().dictionary_encode() for name in ("unit", "metric")]
    units, metrics = (part.indices.to_numpy(zero_copy_only=False).astype(np.int64) for part in encoded)
    together = units * (int(metrics.max(initial=0)) + 1) + metrics
    _, places, codes, rows = np.unique(together, return_index=True, return_inverse=True, return_counts=True)
    value = table["value"].to_numpy()
    known = np.isfinite(value)
    value = np.where(known, value, 0.0)
    count = np.bincount(codes, known, len(places)).astype(np.int64)
    mean = np.bincount(codes, value, len(places)) / np.maximum(count, 1)
    squares = np.bincount(codes, known * (value - mean[codes]) ** 2, len(places))
    names = table.select(["unit", "model", "recipe", "metric"]).take(arrow.array(places))
    for column, numbers in (("rows", rows), ("count", count), ("mean", mean), ("squares", squares)):
        names = names.append_column(column, arrow.array(numbers))
    return names.sort_by("unit")


def _index(entries: list[Any], rows: _DigestingFile) -> bytes:
    arrow, parquet = require("pyarrow"), require("pyarrow.parquet")
    columns = index_schema()
    table = arrow.concat_tables(
        [columns.empty_table(), *(part.select(columns.names).cast(columns) for part in entries)]
    )
    table = table.replace_schema_metadata({SIZE: str(rows.size).encode(), DIGEST: rows.digest.hexdigest().encode()})
    buffer = io.BytesIO()
    parquet.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


class _DigestingFile(io.RawIOBase):
    """A file that is written and digested on the way; whoever opened it closes it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.blake2b(digest_size=16)
        self.size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._file.write(view)
        self.digest.update(view)
        self.size += view.nbytes
        return view.nbytes
