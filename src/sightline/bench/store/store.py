"""The store: the only truth about a run, in a folder or a bucket.

::

    plan.json                     the manifest of the run
    units/<2 hex>/<key>.parquet   one file per finished unit
    packs/                        finished units that were folded together, see `packs`
    maps/<key>.safetensors        maps of a unit's first images, at float16 and at most one in size
    claims/                       who is at work on what, see `claims`
    corrupt/                      files that could not be read, moved here

A file is complete or not there at all. Only drivers write, so a store may be anything that fsspec reaches.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from sightline.bench.stats.reduce import reduction_of
from sightline.bench.store.packs import INDEX, ROWS, PackIndex
from sightline.bench.store.row_query import VIEW, open_rows
from sightline.bench.store.rows import FAILED, complete_columns, decode
from sightline.bench.store.scores import read_matrices
from sightline.bench.store.store_files import StoreFiles
from sightline.bench.store.unit_tables import read_packed, read_part, read_units
from sightline.bench.unit import Manifest
from sightline.bench.unit_slots import each_slot
from sightline.errors import InputError, OutputError
from sightline.extras import require

__all__ = [
    "Store",
    "read_flagged",
    "read_maps",
    "read_maps_and_enlarge",
    "read_parts",
    "read_rows",
    "read_scores",
]

PLAN = "plan.json"
FEW = 4096  # files of single units that are opened for every model and metric again


@dataclass(frozen=True)
class Store(StoreFiles):
    """A folder or an fsspec url that holds the rows of a run."""

    def unit_path(self, key: str) -> str:
        """Return the path of a unit's rows."""
        return self.path(f"units/{key[:2]}/{key}.parquet")

    def pack_path(self, name: str) -> str:
        """Return the path of a pack's rows."""
        return self.path(f"packs/{name}{ROWS}")

    @cached_property
    def packs(self) -> PackIndex:
        """The packs, as they were when last looked at."""
        return PackIndex(self)

    # ---- writing -----------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Check that the store can be written, before anything is computed, and remove what drivers that died left.

        Raises:
            OutputError: it cannot.
        """
        probe = f".probe-{secrets.token_hex(6)}"
        try:
            self._write(probe, b"sightline")
            self.files.rm_file(self.path(probe))
        except Exception as error:  # every file system has its own way of saying no
            raise OutputError(
                f"cannot write into the store {self.url}: {_reason(error)}; choose another --store"
            ) from None
        self._remove_orphans()

    def write_manifest(self, manifest: Manifest) -> None:
        """Write ``plan.json``."""
        text = json.dumps(manifest.to_json(), separators=(",", ":"))
        try:
            self._write(PLAN, text.encode())
        except OSError as error:
            raise OutputError(f"cannot write into the store {self.url}: {_reason(error)}") from None

    def write(self, key: str, rows: bytes, maps: bytes | None = None) -> None:
        """Write a finished unit; its rows come last, so that a unit that is there is complete.

        Raises:
            OutputError: it could not be written, for instance because the disk is full; nothing is left of it.
        """
        try:
            if maps is not None:
                self._write(f"maps/{key}.safetensors", maps)
            self._write(f"units/{key[:2]}/{key}.parquet", rows)
        except OSError as error:
            raise OutputError(f"cannot write into the store {self.url}: {_reason(error)}") from error

    def quarantine(self, key: str) -> str:
        """Move a unit's damaged file to ``corrupt/`` and return its name there."""
        name = f"corrupt/{key}-{secrets.token_hex(3)}.parquet"
        try:
            self.files.makedirs(self.path("corrupt"), exist_ok=True)
            self.files.mv(self.unit_path(key), self.path(name))
        except OSError as error:
            if self.has(key):  # otherwise another driver was faster
                raise OutputError(f"cannot move a damaged file in the store {self.url}: {_reason(error)}") from None
        return name

    def quarantine_pack(self, name: str) -> str:
        """Move a damaged pack to ``corrupt/``, its index first, and return its name there."""
        for ending in (INDEX, ROWS):
            with suppress(FileNotFoundError):
                self.files.makedirs(self.path("corrupt"), exist_ok=True)
                self.files.mv(self.path(f"packs/{name}{ending}"), self.path(f"corrupt/{name}{ending}"))
        return f"corrupt/{name}{ROWS}"

    # ---- reading -----------------------------------------------------------------------------------------------

    def manifest(self) -> Manifest:
        """Read ``plan.json``.

        Raises:
            InputError: there is none, or it cannot be read.
        """
        if not self.exists(PLAN):
            raise InputError(f"{self.url} is no store: it has no {PLAN}; start one with `sightline bench run PLAN`")
        try:
            return Manifest.from_json(json.loads(self.read_file(PLAN)))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"the {PLAN} of {self.url} cannot be read ({type(error).__name__}: {error}); run the plan again"
            ) from None

    def has(self, key: str) -> bool:
        """Tell whether a unit is there now."""
        if self.folder is not None:
            is_loose = (self.folder / "units" / key[:2] / f"{key}.parquet").exists()
        else:
            self.files.invalidate_cache()
            is_loose = bool(self.files.exists(self.unit_path(key)))
        return is_loose or key in self.packs.refresh().units  # in this order: a file goes when its pack has come

    def stamp(self, key: str) -> str:
        """Return something that changes when a unit's file is written again; empty where there is none."""
        try:
            facts = self.files.info(self.unit_path(key))
        except OSError:
            return ""
        return str([facts.get(name) for name in ("ETag", "LastModified", "mtime", "ino", "created", "size")])

    def keys(self) -> set[str]:
        """Return the keys of all units that are there."""
        loose = self.loose_keys()  # before the packs: a file goes when its pack has come
        return loose | set(self.packs.refresh().units)

    def loose_keys(self) -> set[str]:
        """Return the keys of units that have a file of their own."""
        return set(self.each_loose_key())

    def each_loose_key(self) -> Iterator[str]:
        """Yield what `loose_keys` returns, without holding all of it where the store is a folder."""
        names = _names_below(self.folder / "units") if self.folder is not None else self._names_in_bucket()
        return (name.removesuffix(".parquet") for name in names if name.endswith(".parquet") and name[0] != ".")

    def _names_in_bucket(self) -> Iterator[str]:
        self.files.invalidate_cache()
        with suppress(FileNotFoundError):
            yield from (PurePosixPath(path).name for path in self.files.find(self.path("units")))

    def read(self, key: str) -> Any:
        """Read a unit's rows as a pyarrow table; None where they are damaged."""
        if key not in self.packs.units:
            try:
                return self.read_loose(key)
            except FileNotFoundError:
                if key not in self.packs.refresh().units:
                    raise
        return read_packed(self, key)

    def read_loose(self, key: str) -> Any:
        """Read the rows of a unit from its own file as a pyarrow table; None where they are damaged."""
        arrow = require("pyarrow")
        try:
            return decode(self.files.cat_file(self.unit_path(key)))
        except FileNotFoundError:
            raise
        except (arrow.ArrowException, OSError, ValueError, KeyError, EOFError, TypeError):
            return None


def _names_below(folder: Path) -> Iterator[str]:
    """Yield the names of the files in the folders of a folder."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as folders:
        for inner in folders:
            with suppress(FileNotFoundError, NotADirectoryError), os.scandir(inner.path) as entries:
                yield from (entry.name for entry in entries)


def _reason(error: BaseException) -> str:
    """Say why a file system refused."""
    code = getattr(error, "errno", None)
    if code == errno.ENOSPC:
        return "the disk is full"
    if code in (errno.EEXIST, errno.ENOTDIR):
        return "it is a file, or lies in one"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()


# ---- all rows ------------------------------------------------------------------------------------------------------


def read_rows(store: str | os.PathLike[str], run: str | None = None, *, images: Collection[str] | None = None) -> Any:
    """Return the rows of a store as a pandas frame, sorted by model, recipe, metric and image.

    Args:
        store: a folder or an fsspec url.
        run: a plan's name; by default the rows of the plan that the store was last run with, and only those.
        images: ids of those whose units alone are read, of the plan that the store was last run with; all by default.

    A file that cannot be read is named in a warning and left out.
    """
    opened = Store(os.fspath(store))
    table = read_units(opened, sorted(_keys_of(opened, run))) if images is None else _read_units_of(opened, images)
    frame = table.to_pandas(types_mapper=_types().get)
    frame = frame if run is None else frame[frame["run"] == run]
    order = ["model", "recipe", "metric", "image"]
    same = [*order, "weights", "seed", "recipe_source", "metric_source"]  # what other code computed stays beside it
    frame = frame.drop_duplicates(same, keep="last") if run is not None else frame
    return frame.sort_values(order, kind="stable", ignore_index=True)


def _read_units_of(store: Store, images: Collection[str]) -> Any:
    """Read the units with some images as a pyarrow table; no others are listed in memory."""
    manifest = store.manifest()
    # Where a file is damaged, or is folded into another meanwhile, units are read one by one.
    with suppress(require("duckdb").Error, FileNotFoundError), open_rows(store, manifest, images) as base:
        return complete_columns(base.sql(f"select * from {VIEW}").to_arrow_table())
    return read_units(store, sorted(_keys_of(store, None, images)))


def read_parts(store: str | os.PathLike[str], run: str | None = None, *, compact: bool = False) -> Iterator[Any]:
    """Yield the rows that `read_rows` returns, a pandas frame for each model and metric, in their order.

    Of a folder whose units are folded only one such frame is held at a time.

    Args:
        store: a folder or an fsspec url.
        run: a plan's name, as `read_rows` takes it.
        compact: whether a frame holds equal texts once, and curves only where a metric's statistic is made of them, so
            that it takes a fraction of the memory; for tables.
    """
    opened, told = Store(os.fspath(store)), set()
    if opened.folder is not None and opened.exists(PLAN) and run in (None, opened.manifest().name):
        with suppress(require("duckdb").Error):  # a damaged file: all units are read then, and it is named
            for cell, part in _read_parts(opened, sorted(_keys_of(opened, run)), compact=compact):
                told.add(cell)
                yield part
            return
    for cell, part in read_rows(store, run).groupby(["model", "metric"], sort=True):
        if cell not in told:
            yield part


def read_scores(store: str | os.PathLike[str], run: str | None = None) -> Iterator[Any]:
    """Yield what a table is made of: a `ScoreMatrix` for each model and metric, in their order, one at a time.

    Where rows make no matrix, because an image has several of them or a file is damaged, a pandas frame of them comes
    in its place, as of `read_parts`.

    Args:
        store: a folder or an fsspec url.
        run: a plan's name, as `read_rows` takes it.

    Raises:
        InputError: rows come from several data sets, weights or versions of a method's code.
    """
    opened, told = Store(os.fspath(store)), set()
    manifest = opened.manifest() if opened.exists(PLAN) else None
    if manifest is not None and run in (None, manifest.name):
        # Where a file is damaged, or is folded into another meanwhile, the remaining rows are read as frames.
        with suppress(require("duckdb").Error, FileNotFoundError), open_rows(opened, manifest) as base:
            for cell, matrix in read_matrices(base, manifest):
                told.add(cell)
                yield _irregular_part(opened, *cell) if matrix is None else matrix
                del matrix
            return
    for part in read_parts(store, run, compact=True):
        if (part["model"].iloc[0], part["metric"].iloc[0]) not in told:
            yield part


def _irregular_part(store: Store, model: str, metric: str) -> Any:
    """Return the rows of a model and metric as a frame."""
    if store.folder is not None:
        return _as_frame(read_part(store, sorted(_keys_of(store, None)), model, metric, encoded=True))
    rows = read_rows(store.url)
    return rows[(rows["model"] == model) & (rows["metric"] == metric)]


def read_flagged(store: str | os.PathLike[str], most: int) -> Any:
    """Return rows that have a flag as a pandas frame, sorted as by `read_rows`, those of failures first where many.

    Args:
        store: a folder or an fsspec url; the rows are those of the plan that it was last run with.
        most: how many rows at most.
    """
    opened = Store(os.fspath(store))
    order = "model, recipe, metric, image"
    chosen = f"select * from {VIEW} where flag <> '' order by not starts_with(flag, '{FAILED}'), {order} limit {most}"
    with open_rows(opened, opened.manifest()) as base:
        table = complete_columns(base.sql(f"select * from ({chosen}) order by {order}").to_arrow_table())
    return _as_frame(table)


def _read_parts(store: Store, keys: list[str], *, compact: bool) -> Iterator[tuple[tuple[str, str], Any]]:
    """Read the parts of a folder one by one."""
    if (~store.packs.units.holds(keys)).sum() > FEW:
        raise require("duckdb").Error("too many files to open them again and again")
    for model in sorted(store.manifest().models, key=lambda model: model.model):
        for metric in sorted(model.metrics):
            store.packs.refresh()
            curves = not compact or reduction_of(metric).needs_curves
            table = read_part(store, keys, model.model, metric, encoded=compact, curves=curves)
            if len(table):
                yield (model.model, metric), _as_frame(table)


def _as_frame(table: Any) -> Any:
    """Return a table as a pandas frame; equal texts of an encoded one are one object each."""
    frame = table.to_pandas(types_mapper=_types().get)
    texts = [name for name in frame.columns if frame[name].dtype.name == "category"]
    return frame.assign(**{name: frame[name].astype(object) for name in texts})


def _types() -> dict[Any, Any]:
    arrow, pandas = require("pyarrow"), require("pandas")
    return {arrow.int64(): pandas.Int64Dtype()}


def _keys_of(store: Store, run: str | None, images: Collection[str] | None = None) -> set[str]:
    """Return the keys of the units to read: those of the manifest, or all where another run is asked for."""
    there = store.keys()
    if not store.exists(PLAN):
        if not there:
            store.manifest()  # says what is wrong
        return there
    manifest = store.manifest()
    if run not in (None, manifest.name):
        return there
    wanted = None if images is None else set(images)
    chosen = [wanted is None or not wanted.isdisjoint(chunk.images) for chunk in manifest.chunks]
    planned = {slot.key for slot in each_slot(manifest) if chosen[slot.chunk]}
    return {key for key in there if key in planned}  # the texts that the packs hold already


def read_maps(store: str | os.PathLike[str], unit: str) -> dict[str, Any]:
    """Return the maps that a unit kept, by image id: float16 on the map's own grid, divided by their largest size."""
    return read_maps_and_enlarge(store, unit)[0]


def read_maps_and_enlarge(store: str | os.PathLike[str], unit: str) -> tuple[dict[str, Any], str]:
    """Return the maps that a unit kept, and how they are enlarged: bilinear where the file does not say."""
    from safetensors import numpy as safetensors

    opened = Store(os.fspath(store))
    try:
        content: bytes = opened.files.cat_file(opened.path(f"maps/{unit}.safetensors"))
    except FileNotFoundError:
        return {}, "bilinear"
    maps: dict[str, Any] = safetensors.load(content)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return maps, header.get("__metadata__", {}).get("enlarge", "bilinear")
