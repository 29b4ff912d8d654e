"""The store: the only truth about a run, in a folder or a bucket.

::

    plan.json                     the manifest of the run
    units/<2 hex>/<key>.parquet   one file per finished unit
    maps/<key>.safetensors        maps of a unit's first images, at float16 and at most one in size
    corrupt/                      files that could not be read, moved here

A file is complete or not there at all. Only drivers write, so a store may be anything that fsspec reaches.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from sightline.bench.store.rows import complete_columns, decode, schema
from sightline.bench.unit import Manifest
from sightline.errors import InputError, OutputError, SightlineWarning
from sightline.extras import require
from sightline.files import TEMPORARY, is_orphan, write_atomically

__all__ = ["Store", "read_maps", "read_rows"]

PLAN = "plan.json"
DAMAGED = "it is damaged or cut short"


@dataclass(frozen=True)
class Store:
    """A folder or an fsspec url."""

    url: str

    @cached_property
    def _location(self) -> tuple[Any, str]:
        """The file system, and the path of the store on it."""
        core = require("fsspec.core")
        try:
            location: tuple[Any, str] = core.url_to_fs(self.url)
        except (ValueError, ImportError) as error:
            raise InputError(f"the store {self.url} cannot be opened: {error}") from None
        return location

    @property
    def files(self) -> Any:
        """The file system."""
        return self._location[0]

    @cached_property
    def folder(self) -> Path | None:
        """Its path on this machine; None for a bucket."""
        local = require("fsspec.implementations.local").LocalFileSystem
        return Path(self._location[1]) if isinstance(self.files, local) else None

    def path(self, name: str) -> str:
        """Return the path of a file of the store on its file system."""
        return str(PurePosixPath(self._location[1]) / name)

    def unit_path(self, key: str) -> str:
        """Return the path of a unit's rows."""
        return self.path(f"units/{key[:2]}/{key}.parquet")

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
        text = json.dumps(manifest.to_json(), indent=1)
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

    def _write(self, name: str, data: bytes) -> None:
        if self.folder is None:
            self.files.makedirs(str(PurePosixPath(self.path(name)).parent), exist_ok=True)
            self.files.pipe_file(self.path(name), data)
        else:
            write_atomically(self.folder / name, data)

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

    def _remove_orphans(self) -> None:
        """Remove temporary files whose writer is dead."""
        if self.folder is None:
            return
        for path in self.folder.rglob(f".*{TEMPORARY}"):
            with suppress(OSError):
                if is_orphan(path):
                    path.unlink()

    # ---- reading -----------------------------------------------------------------------------------------------

    def manifest(self) -> Manifest:
        """Read ``plan.json``.

        Raises:
            InputError: there is none, or it cannot be read.
        """
        if not self.files.exists(self.path(PLAN)):
            raise InputError(f"{self.url} is no store: it has no {PLAN}; start one with `sightline bench run PLAN`")
        try:
            return Manifest.from_json(json.loads(self.files.cat_file(self.path(PLAN))))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"the {PLAN} of {self.url} cannot be read ({type(error).__name__}: {error}); run the plan again"
            ) from None

    def has(self, key: str) -> bool:
        """Tell whether a unit is there now."""
        if self.folder is not None:
            return (self.folder / "units" / key[:2] / f"{key}.parquet").exists()
        self.files.invalidate_cache()
        return bool(self.files.exists(self.unit_path(key)))

    def keys(self) -> set[str]:
        """Return the keys of all units that are there."""
        self.files.invalidate_cache()
        try:
            paths = self.files.find(self.path("units"))
        except FileNotFoundError:
            return set()
        names = (PurePosixPath(path).name for path in paths)
        return {name.removesuffix(".parquet") for name in names if name.endswith(".parquet") and name[0] != "."}

    def read(self, key: str) -> Any:
        """Read a unit's rows as a pyarrow table; None where they are damaged."""
        arrow = require("pyarrow")
        try:
            return decode(self.files.cat_file(self.unit_path(key)))
        except FileNotFoundError:
            raise
        except (arrow.ArrowException, OSError, ValueError, KeyError, EOFError, TypeError):
            return None


def _reason(error: BaseException) -> str:
    """Say why a file system refused."""
    code = getattr(error, "errno", None)
    if code == errno.ENOSPC:
        return "the disk is full"
    if code in (errno.EEXIST, errno.ENOTDIR):
        return "it is a file, or lies in one"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()


# ---- all rows ------------------------------------------------------------------------------------------------------


def read_rows(store: str | os.PathLike[str], run: str | None = None) -> Any:
    """Return the rows of a store as a pandas frame, sorted by model, recipe, metric and image.

    Args:
        store: a folder or an fsspec url.
        run: a plan's name; by default the rows of the plan that the store was last run with, and only those.

    A file that cannot be read is named in a warning and left out.
    """
    opened = Store(os.fspath(store))
    table = _read_units(opened, sorted(_keys_of(opened, run)))
    frame = table.to_pandas(types_mapper=_types().get)
    frame = frame if run is None else frame[frame["run"] == run]
    order = ["model", "recipe", "metric", "image"]
    same = [*order, "weights", "seed", "recipe_source", "metric_source"]  # what other code computed stays beside it
    frame = frame.drop_duplicates(same, keep="last") if run is not None else frame
    return frame.sort_values(order, kind="stable", ignore_index=True)


def _types() -> dict[Any, Any]:
    arrow, pandas = require("pyarrow"), require("pandas")
    return {arrow.int64(): pandas.Int64Dtype()}


def _keys_of(store: Store, run: str | None) -> set[str]:
    """Return the keys of the units to read: those of the manifest, or all where another run is asked for."""
    there = store.keys()
    if not store.files.exists(store.path(PLAN)):
        if not there:
            store.manifest()  # says what is wrong
        return there
    manifest = store.manifest()
    return there & {unit.key for unit in manifest.units()} if run in (None, manifest.name) else there


def _read_units(store: Store, keys: list[str]) -> Any:
    """Read units into one pyarrow table: a folder at once by DuckDB; one by one in a bucket, or where that fails."""
    arrow = require("pyarrow")
    if not keys:
        return schema().empty_table()
    if store.folder is not None:
        duckdb = require("duckdb")
        with suppress(duckdb.Error, arrow.ArrowException), duckdb.connect(":memory:") as base:
            files = [store.unit_path(key) for key in keys]
            query = "select * from read_parquet($files, union_by_name = true)"
            return complete_columns(base.sql(query, params={"files": files}).to_arrow_table())
    return arrow.concat_tables([schema().empty_table(), *_read_one_by_one(store, keys)])


def _read_one_by_one(store: Store, keys: list[str]) -> Iterable[Any]:
    for key in keys:
        try:
            table = store.read(key)
        except FileNotFoundError:  # another driver has just moved it
            continue
        if table is None:
            message = f"left out {store.unit_path(key)}: {DAMAGED}; `sightline bench resume` makes it anew"
            warnings.warn(message, SightlineWarning, stacklevel=4)
            continue
        yield complete_columns(table)


def read_maps(store: str | os.PathLike[str], unit: str) -> dict[str, Any]:
    """Return the maps that a unit kept, by image id: float16 on the map's own grid, divided by their largest size."""
    from safetensors import numpy as safetensors

    opened = Store(os.fspath(store))
    try:
        maps: dict[str, Any] = safetensors.load(opened.files.cat_file(opened.path(f"maps/{unit}.safetensors")))
    except FileNotFoundError:
        return {}
    return maps
