"""Packs: the rows of many finished units in one Parquet file, beside an index of what it holds.

::

    packs/<name>.rows.parquet    the rows, with the columns of every unit file
    packs/<name>.index.parquet   one line per unit and metric: how many rows, and the moments of their values

The index is written last: a pack is there when its index is. It also says how long the rows file is, and its digest.
Only units whose every image was scored are packed. Such a unit never changes, so a file of it in ``units/``, left by a
writer that was stopped, says the same and is not read.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sightline.bench.running_means import Cell, Moments
from sightline.bench.store.packed_units import PackColumns, PackedUnits, as_numbers, read_columns
from sightline.bench.store.rows import open_parquet
from sightline.bench.unit_keys import text_of, words_of
from sightline.extras import require

if TYPE_CHECKING:
    from sightline.bench.store.store import Store

__all__ = ["FOLDER", "INDEX", "ROWS", "Pack", "PackIndex", "index_schema"]

FOLDER, ROWS, INDEX = "packs", ".rows.parquet", ".index.parquet"
SIZE, DIGEST = b"sightline.size", b"sightline.digest"  # of the rows file, in the metadata of the index
NAMES = ("model", "recipe", "metric")
LOOKS = 20  # times that a listing is repeated when packs are merged while it is read


@dataclass(frozen=True, eq=False)
class Pack:
    """One pack.

    Attributes:
        name: of its two files, without their endings.
        size: bytes of the rows file.
        digest: of the rows file.
        columns: the units it holds.
    """

    name: str
    size: int
    digest: str
    columns: PackColumns

    @property
    def rows_name(self) -> str:
        """The name of the rows file in the store."""
        return f"{FOLDER}/{self.name}{ROWS}"

    @property
    def index_name(self) -> str:
        """The name of the index in the store."""
        return f"{FOLDER}/{self.name}{INDEX}"


def index_schema() -> Any:
    """Return the columns of an index as a pyarrow schema."""
    arrow = require("pyarrow")
    texts = [(name, arrow.string()) for name in ("unit", *NAMES)]
    whole = [(name, arrow.int64()) for name in ("rows", "count")]
    return arrow.schema([*texts, *whole, ("mean", arrow.float64()), ("squares", arrow.float64())])


@dataclass
class PackIndex:
    """Which units are packed, and where; a unit in several packs counts in the first of them by name.

    Attributes:
        store: it belongs to.
        packs: those that are whole, by name.
        damaged: names of packs whose rows are gone or have another length.
        units: by key; none of them is a Python object.
    """

    store: Store
    packs: dict[str, Pack] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    units: PackedUnits = field(default_factory=PackedUnits)

    def refresh(self) -> PackIndex:
        """Look for packs that came or went since the last time, and return itself."""
        for _ in range(LOOKS):
            sizes = self._settled_sizes()
            names = {name.removesuffix(INDEX) for name in sizes if name.endswith(INDEX)}
            if names == self.packs.keys() | self.damaged:
                return self
            try:
                self._load(names, sizes)
            except FileNotFoundError:  # merged into another in this very moment
                continue
        return self

    def whole_names(self) -> list[str]:
        """Return the names of the packs that are whole, in order, as they are now; no index is read but its metadata.

        Raises:
            FileNotFoundError: a pack was merged into another in this very moment.
        """
        sizes = self._settled_sizes()
        names = sorted(name.removesuffix(INDEX) for name in sizes if name.endswith(INDEX))
        return [name for name in names if sizes.get(name + ROWS) == self._told_size(name)]

    def _told_size(self, name: str) -> int:
        """Return how long the rows file of a pack is, as its index says."""
        with self.store.files.open(self.store.path(f"{FOLDER}/{name}{INDEX}"), "rb") as file:
            return int(open_parquet(file).schema_arrow.metadata[SIZE])

    def _load(self, names: set[str], sizes: dict[str, int]) -> None:
        packs = {name: self.packs.get(name) or self._read(name) for name in names - self.damaged}
        damaged = {name for name, pack in packs.items() if sizes.get(name + ROWS) != pack.size}
        if any(not self._is_there(name) for name in damaged):
            raise FileNotFoundError
        self.damaged = (self.damaged & names) | damaged
        self.packs = {name: packs[name] for name in sorted(packs) if name not in self.damaged}
        self.units = PackedUnits([pack.columns for pack in self.packs.values()])

    def _settled_sizes(self) -> dict[str, int]:
        """Return a listing that the next one repeats: one taken while packs are merged may lack the old and the new."""
        sizes = self.sizes()
        for _ in range(LOOKS):
            before, sizes = sizes, self.sizes()
            if before == sizes:
                break
        return sizes

    def sizes(self) -> dict[str, int]:
        """Return the size of every file of the folder, by name."""
        store = self.store
        if store.folder is not None:
            return _local_sizes(store.folder / FOLDER)
        store.files.invalidate_cache()
        try:
            listed = store.files.ls(store.path(FOLDER), detail=True)
        except FileNotFoundError:
            return {}
        return {PurePosixPath(entry["name"]).name: int(entry["size"] or 0) for entry in listed}

    def _is_there(self, name: str) -> bool:
        return f"{name}{INDEX}" in self.sizes()

    def _read(self, name: str) -> Pack:
        entries = self.entries(name, ["unit", "rows"])
        metadata = entries.schema.metadata or {}
        return Pack(name, int(metadata[SIZE]), metadata[DIGEST].decode(), read_columns(name, entries))

    def entries(self, name: str, columns: list[str] | None = None) -> Any:
        """Return the index of a pack as a pyarrow table, its names encoded; or some columns of it.

        Raises:
            FileNotFoundError: the pack was merged into another meanwhile.
        """
        data = self.store.read_file(f"{FOLDER}/{name}{INDEX}")
        return open_parquet(io.BytesIO(data), read_dictionary=NAMES).read(columns, use_threads=False)

    def moments(self, places: NDArray[np.intp]) -> dict[Cell, Moments]:
        """Return the moments of some of `units`, by model, recipe and metric; one index at a time is held.

        Raises:
            FileNotFoundError: a pack was merged into another meanwhile.
        """
        wanted = np.zeros(len(self.units.rows), dtype=bool)
        wanted[places] = True
        found: dict[Cell, Moments] = {}
        for columns, own in self.units.of_packs(wanted):
            if own.any():
                entries = self.entries(columns.pack, [*NAMES, "count", "mean", "squares"])
                for cell, moments in _moments(entries, own[columns.places]).items():
                    found[cell] = found.get(cell, Moments()) + moments
        return found

    def files_of(self, keys: Sequence[str]) -> dict[str, list[str]]:
        """Return, for each rows file, the keys among these that are to be read from it."""
        packed = list(compress(keys, self.units.holds(keys)))
        wanted = np.zeros(len(self.units.rows), dtype=bool)
        wanted[self.units.find(words_of(packed))] = True
        parts = ((self.packs[columns.pack], columns.words[own]) for columns, own in self.units.of_packs(wanted))
        return {pack.rows_name: list(text_of(words)) for pack, words in parts if len(words)}


def _local_sizes(folder: Path) -> dict[str, int]:
    """Return the size of every file of a local folder; one that is removed meanwhile is left out, the others stay."""
    sizes = {}
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name[0] != ".":
                with suppress(FileNotFoundError):
                    sizes[entry.name] = entry.stat().st_size
    return sizes


def _moments(entries: Any, mask: NDArray[np.bool_]) -> dict[Cell, Moments]:
    """Put the moments of the entries together that a mask chooses."""
    names, texts = [], []
    for name in NAMES:
        encoded = entries[name].unify_dictionaries().combine_chunks()
        names.append(as_numbers(encoded.indices)[mask])
        texts.append(encoded.dictionary.to_pylist())
    count, mean, squares = (as_numbers(entries[name])[mask] for name in ("count", "mean", "squares"))
    codes, places = _number(*names)
    total = np.bincount(codes, count, len(places))
    centre = np.bincount(codes, count * mean, len(places)) / np.maximum(total, 1)
    spread = np.bincount(codes, squares + count * (mean - centre[codes]) ** 2, len(places))
    found = {}
    for code, place in enumerate(places.tolist()):
        model, recipe, metric = (text[own[place]] for text, own in zip(texts, names, strict=True))
        found[model, recipe, metric] = Moments(int(total[code]), float(centre[code]), float(spread[code]))
    return found


def _number(*columns: Any) -> tuple[Any, Any]:
    """Number the different combinations of some columns of numbers; return them, and where each comes first."""
    together = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        together = together * (int(column.max(initial=0)) + 1) + column
    _, places, codes = np.unique(together, return_index=True, return_inverse=True)
    return codes, places
