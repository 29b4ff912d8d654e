"""Packed units: which units packs hold and how much of each, as columns of numbers; there may be millions of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sightline.bench.unit_keys import SIZE, KeyTable, Words, is_key, text_of, words_of, words_of_characters

__all__ = ["PackColumns", "PackedUnit", "PackedUnits", "as_numbers", "read_columns"]


class PackedUnit(NamedTuple):
    """Where a unit lies, and how much of it there is."""

    pack: str
    rows: int
    metrics: int


@dataclass(frozen=True, eq=False)
class PackColumns:
    """What one pack holds.

    Attributes:
        pack: its name.
        words: keys of its units, as numbers.
        rows: of each unit.
        metrics: of each unit.
        places: for each entry of the index, the place of its unit among `words`.
    """

    pack: str
    words: Words
    rows: NDArray[np.int32]
    metrics: NDArray[np.int32]
    places: NDArray[np.int32]


def read_columns(pack: str, entries: Any) -> PackColumns:
    """Return the columns of a pack from its index, a pyarrow table with ``unit`` and ``rows``.

    Raises:
        ValueError: it has something else where keys should be.
    """
    words = np.concatenate([np.zeros((0, 2), dtype=np.uint64), *map(_words, entries["unit"].chunks)])
    begins = np.ones(len(words), dtype=bool)  # the entries of a unit follow one another
    begins[1:] = (words[1:] != words[:-1]).any(axis=1)
    places, keys = (np.cumsum(begins) - 1).astype(np.int32), words[begins]
    table = KeyTable(keys)
    if not (own := table.is_first()).all():  # or not, in a file of somebody else
        numbers = np.cumsum(own) - 1
        places, keys = numbers[table.find(keys)][places].astype(np.int32), keys[own]
    rows = np.bincount(places, as_numbers(entries["rows"]), len(keys)).astype(np.int32)
    return PackColumns(pack, keys, rows, np.bincount(places, minlength=len(keys)).astype(np.int32), places)


def _words(texts: Any) -> Words:
    """Return the keys in an array of Arrow texts."""
    size = 2 * SIZE
    if not len(texts):
        return np.zeros((0, 2), dtype=np.uint64)
    ends = np.frombuffer(texts.buffers()[1], dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1]
    if texts.null_count or (np.diff(ends) != size).any():
        raise ValueError("a key has another length")
    return words_of_characters(np.frombuffer(texts.buffers()[2], dtype=np.uint8)[ends[0] : ends[-1]].reshape(-1, size))


def as_numbers(column: Any) -> NDArray[Any]:
    """Return Arrow numbers, none missing, as numpy; pyarrow's own way imports pandas, which takes long."""
    arrays = column.chunks if hasattr(column, "chunks") else [column]
    found = [_numbers(array) for array in arrays if len(array)]
    return found[0] if len(found) == 1 else np.concatenate(found or [np.zeros(0, dtype=np.int32)])


def _numbers(array: Any) -> NDArray[Any]:
    kind = {"double": "float64"}.get(str(array.type), str(array.type))
    return np.frombuffer(array.buffers()[1], dtype=kind)[array.offset : array.offset + len(array)]


class PackedUnits(Mapping[str, PackedUnit]):
    """The units of all packs by key; one in several packs counts in the first of them.

    Attributes:
        columns: of the packs, in order.
        rows: of each unit of all packs, one after the other.
        metrics: likewise.
    """

    def __init__(self, columns: Sequence[PackColumns] = ()) -> None:
        self.columns = tuple(columns)
        self.rows = np.concatenate([np.zeros(0, dtype=np.int32), *(own.rows for own in columns)])
        self.metrics = np.concatenate([np.zeros(0, dtype=np.int32), *(own.metrics for own in columns)])
        self._starts = np.cumsum([0, *(len(own.words) for own in columns)])
        words = [np.zeros((0, 2), dtype=np.uint64), *(own.words for own in columns)]
        self._table = KeyTable(np.concatenate(words))
        self._own = self._table.is_first()

    def __len__(self) -> int:
        return int(self._own.sum())

    def __iter__(self) -> Iterator[str]:
        return text_of(self._table.words[self._own])

    def __contains__(self, key: object) -> bool:
        return key in self._table

    def __getitem__(self, key: str) -> PackedUnit:
        if (place := self._table.place(key)) < 0:
            raise KeyError(key)
        pack = self.columns[int(np.searchsorted(self._starts, place, side="right")) - 1].pack
        return PackedUnit(pack, int(self.rows[place]), int(self.metrics[place]))

    def find(self, words: Words) -> NDArray[np.intp]:
        """Return the place of units in `rows` and `metrics`, -1 of those that are in no pack."""
        return self._table.find(words)

    def holds(self, keys: Sequence[str]) -> NDArray[np.bool_]:
        """Tell of each key whether its unit is in a pack."""
        found = np.fromiter(map(is_key, keys), dtype=bool, count=len(keys))
        found[found] = self.find(words_of(keys)) >= 0
        return found

    def own(self, pack: str) -> NDArray[np.bool_]:
        """Tell of each unit of a pack whether it counts there."""
        return next(own for columns, own in self.of_packs(self._own) if columns.pack == pack)

    def of_packs(self, of_units: NDArray[np.bool_]) -> Iterator[tuple[PackColumns, NDArray[np.bool_]]]:
        """Split what is said of the units of all packs into what is said of those of each."""
        for columns, start in zip(self.columns, self._starts.tolist(), strict=False):
            yield columns, of_units[start : start + len(columns.words)]
