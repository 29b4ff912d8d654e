"""The files of a store, in a folder or a bucket: written whole or not at all, created once, removed."""

from __future__ import annotations

import inspect
import io
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Any

from sightline.errors import InputError
from sightline.extras import require
from sightline.files import TEMPORARY, is_orphan, open_atomically

__all__ = ["StoreFiles"]

SETTLE = 0.2  # seconds to wait for writers that were faster, where a file cannot be created exclusively


@dataclass(frozen=True)
class StoreFiles:
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
        """Its path on this machine; None for a bucket.

        Raises:
            InputError: no folder can have that name.
        """
        if not any(mark in self.url for mark in ("://", "::", "~")):
            return _possible(Path(self.url).absolute())  # what fsspec would say, which takes long to import
        local = require("fsspec.implementations.local").LocalFileSystem
        return Path(self._location[1]) if isinstance(self.files, local) else None

    def path(self, name: str) -> str:
        """Return the path of a file of the store on its file system."""
        return str(PurePosixPath(self._location[1] if self.folder is None else self.folder) / name)

    def exists(self, name: str) -> bool:
        """Tell whether a file of the store is there."""
        if self.folder is not None:
            with suppress(PermissionError):  # nothing is there for who may not look
                return (self.folder / name).exists()
            return False
        return bool(self.files.exists(self.path(name)))

    def read_file(self, name: str) -> bytes:
        """Return what a file of the store holds.

        Raises:
            OSError: it is not there, or cannot be read.
        """
        if self.folder is not None:
            return (self.folder / name).read_bytes()
        data: bytes = self.files.cat_file(self.path(name))
        return data

    @contextmanager
    def open_new(self, name: str) -> Iterator[IO[bytes]]:
        """Open a file of the store to be written piece by piece; it is there when the block ends without an error."""
        if self.folder is not None:
            with open_atomically(self.folder / name) as file:
                yield file
            return
        path = self.path(name)
        self.files.makedirs(str(PurePosixPath(path).parent), exist_ok=True)
        buffer = io.BytesIO()  # a bucket takes a file whole
        yield buffer
        self.files.pipe_file(path, buffer.getvalue())

    def _write(self, name: str, data: bytes) -> None:
        with self.open_new(name) as file:
            file.write(data)

    def write_file(self, name: str, data: bytes, *, sync: bool = True) -> None:
        """Write a file of the store, whole or not at all; `sync=False` for one that may be lost with the machine."""
        if sync or self.folder is None:
            self._write(name, data)
            return
        path = self.folder / name
        temporary = path.with_name(f".{path.name}{TEMPORARY}")
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        temporary.replace(path)

    def create(self, name: str, data: bytes) -> bool:
        """Create a file that must not exist; return whether it was ours to create.

        In a bucket without exclusive creation that is a race, which the last writer wins.
        """
        if self.folder is not None:
            return _create(self.folder / name, data)
        path = self.path(name)
        self.files.invalidate_cache()
        if self.files.exists(path):
            return False
        if "mode" in inspect.signature(self.files.pipe_file).parameters:
            with suppress(ValueError, NotImplementedError):  # it knows the word, but cannot do it
                return self._create_exclusively(path, data)
        self.files.pipe_file(path, data)
        time.sleep(SETTLE)
        return bool(self.files.cat_file(path) == data)

    def _create_exclusively(self, path: str, data: bytes) -> bool:
        try:
            self.files.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        return True

    def remove(self, name: str) -> None:
        """Remove a file of the store, if it is there."""
        with suppress(FileNotFoundError):
            if self.folder is not None:
                (self.folder / name).unlink()
            else:
                self.files.rm_file(self.path(name))

    def age(self, name: str) -> float:
        """Return how many seconds ago a file was written, 0 where that is not known."""
        try:
            return time.time() - float(self.files.modified(self.path(name)).timestamp())
        except (OSError, NotImplementedError):
            return 0.0

    def _remove_orphans(self) -> None:
        """Remove temporary files whose writer is dead."""
        if self.folder is None:
            return
        for path in self.folder.rglob(f".*{TEMPORARY}"):
            with suppress(OSError):
                if is_orphan(path):
                    path.unlink()


def _create(path: Path, data: bytes) -> bool:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("xb") as file:
            file.write(data)
    except FileExistsError:
        return False
    return True


def _possible(folder: Path) -> Path:
    """Return a folder that is there or could be made; refuse one whose name is too long, or no name."""
    try:
        folder.lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{str(folder)!r} cannot be a store: {reason}; give a folder or an fsspec url") from None
    return folder
