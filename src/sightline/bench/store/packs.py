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
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sightline.bench.running_means import Cell, Moments
from sightline.bench.store.rows import open_parquet
from sightline.extras import require

if TYPE_CHECKING:
    from sightline.bench.store.store import Store

__all__ = ["FOLDER", "INDEX", "ROWS", "Pack", "PackIndex", "PackedUnit", "index_schema"]

FOLDER, ROWS, INDEX = "packs", ".rows.parquet", ".index.parquet"
SIZE, DIGEST = b"sightline.size", b"sightline.digest"  # of the rows file, in the metadata of the index
NAMES = ("model", "recipe", "metric")
LOOKS = 20  # times that a listing is repeated when packs are merged while it is read


class PackedUnit(NamedTuple):
    """Where a unit lies, and how much of it there is."""

    pack: str
    rows: int
    metrics: int


@dataclass(frozen=True, eq=False)
class Pack:
    """One pack.

    Attributes:
        name: of its two files, without their endings.
        size: bytes of the rows file.
        digest: of the rows file.
        entries: the index, a pyarrow table.
        keys: of its units.
        places: for each entry, the index of its unit in `keys`.
    """

    name: str
    size: int
    digest: str
    entries: Any
    keys: list[str]
    places: Any

    @property
    def rows_name(self) -> str:
        """The name of the rows file in the store."""
        return f"{FOLDER}/{self.name}{ROWS}"

    @property
    def index_name(self) -> str:
        """The name of the index in the store."""
        return f"{FOLDER}/{self.name}{INDEX}"

    def units(self) -> Iterator[tuple[str, PackedUnit]]:
        """Yield what there is of each unit."""
        rows = (
            np.bincount(self.places, _numbers(self.entries["rows"].combine_chunks()), len(self.keys))
            .astype(int)
            .tolist()
        )
        metrics = np.bincount(self.places, minlength=len(self.keys)).tolist()
        same: dict[tuple[int, int], PackedUnit] = {}  # one object for all units of a size, since there may be millions
        for key, row_count, metric_count in zip(self.keys, rows, metrics, strict=True):
            size = (row_count, metric_count)
            yield key, same.get(size) or same.setdefault(size, PackedUnit(self.name, *size))


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
        units: by key.
    """

    store: Store
    packs: dict[str, Pack] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    units: dict[str, PackedUnit] = field(default_factory=dict)

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
        self.units = {}
        for pack in reversed(self.packs.values()):
            self.units.update(pack.units())

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
        data = self.store.files.cat_file(self.store.path(f"{FOLDER}/{name}{INDEX}"))
        entries = open_parquet(io.BytesIO(data), read_dictionary=["unit", *NAMES]).read(use_threads=False)
        metadata = entries.schema.metadata or {}
        units = entries["unit"].unify_dictionaries().combine_chunks()
        places = _numbers(units.indices)
        keys = units.dictionary.to_pylist()
        return Pack(name, int(metadata[SIZE]), metadata[DIGEST].decode(), entries, keys, places)

    def moments(self, units: Collection[str]) -> dict[Cell, Moments]:
        """Return the moments of some packed units, by model, recipe and metric."""
        wanted, found = set(units), []
        for pack in self.packs.values():
            own = np.array([key in wanted and self.units[key].pack == pack.name for key in pack.keys], dtype=bool)
            found.append(_columns(pack.entries, own[pack.places]))
        texts: list[dict[str, int]] = [{} for _ in NAMES]
        codes = [np.concatenate([_recode(part[place], texts[place]) for part in found] or [[]]) for place in range(3)]
        numbers = [np.concatenate([part[3 + place] for part in found] or [[]]) for place in range(3)]
        return _moments([list(text) for text in texts], [code.astype(np.int64) for code in codes], *numbers)

    def files_of(self, keys: Collection[str]) -> dict[str, list[str]]:
        """Return, for each rows file, the keys among these that are to be read from it."""
        files: dict[str, list[str]] = {}
        for key in keys:
            if key in self.units:
                files.setdefault(self.packs[self.units[key].pack].rows_name, []).append(key)
        return files


def _local_sizes(folder: Path) -> dict[str, int]:
    """Return the size of every file of a local folder; one that is removed meanwhile is left out, the others stay."""
    sizes = {}
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name[0] != ".":
                with suppress(FileNotFoundError):
                    sizes[entry.name] = entry.stat().st_size
    return sizes


def _numbers(array: Any) -> Any:
    """Return a pyarrow array of numbers, none missing, as numpy; pyarrow's own way imports pandas, which takes long."""
    if not len(array):
        return np.zeros(0)
    kind = {"double": "float64"}.get(str(array.type), str(array.type))
    return np.frombuffer(array.buffers()[1], dtype=kind)[array.offset : array.offset + len(array)]


def _columns(entries: Any, mask: Any) -> list[Any]:
    """Return the names, as codes with their texts, and the numbers of the entries that a mask chooses."""
    names = []
    for name in NAMES:
        encoded = entries[name].unify_dictionaries().combine_chunks()
        names.append((_numbers(encoded.indices)[mask], encoded.dictionary.to_pylist()))
    return [*names, *(_numbers(entries[name].combine_chunks())[mask] for name in ("count", "mean", "squares"))]


def _recode(encoded: tuple[Any, list[str]], texts: dict[str, int]) -> Any:
    """Return codes that mean the same in every pack; `texts` gets those that are new."""
    codes, own = encoded
    return np.array([texts.setdefault(text, len(texts)) for text in own], dtype=np.int64)[codes]


def _moments(texts: list[list[str]], names: list[Any], count: Any, mean: Any, squares: Any) -> dict[Cell, Moments]:
    """Put the moments of units together."""
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
