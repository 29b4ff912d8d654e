"""Atomic writes: under another name, synced, then renamed, so that nobody ever reads half of a file."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from sightline.errors import InputError, OutputError

__all__ = ["TEMPORARY", "host_name", "is_orphan", "write_atomically", "write_by_suffix", "write_output"]

TEMPORARY = ".part"  # how the name of a file that is being written ends
STALE = 24 * 3600.0  # seconds after which a temporary file belongs to nobody, wherever it came from


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it is there with all of `data` or not at all, even if the machine stops.

    Missing folders are made. What was there before stays until the new file is complete.

    Raises:
        OSError: the folder or the file cannot be written; nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A short name of its own: that of the file may be as long as file names can be.
    temporary = path.parent / f".sightline.{host_name()}.{os.getpid()}.{secrets.token_hex(4)}{TEMPORARY}"
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def write_output(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write a file that a user asked for, atomically, and return its path.

    Raises:
        OutputError: one sentence on why the folder or the file cannot be written.
    """
    path = Path(path)
    try:
        write_atomically(path, data)
    except OSError as error:
        blocked = isinstance(error, FileExistsError | NotADirectoryError)
        reason = "its folder is a file" if blocked else (error.strerror or str(error)).lower()
        raise OutputError(f"cannot write {path}: {reason}; choose a folder that can be written") from error
    return path


def write_by_suffix(path: str | os.PathLike[str], writers: Mapping[str, Callable[[], str | bytes]], thing: str) -> Path:
    """Write `thing` in the format that the ending of the name asks for, and return the path.

    Args:
        path: where to, such as ``ranking.html``.
        writers: by ending, what makes the contents.
        thing: what is written, for the sentence that refuses another ending.
    """
    make = writers.get(Path(path).suffix)
    if make is None:
        *others, last = writers
        raise InputError(f"got {str(path)!r} to save {thing} in; end it in {', '.join(others)} or {last}")
    contents = make()
    return write_output(path, contents if isinstance(contents, bytes) else contents.encode("utf-8", errors="replace"))


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # some file systems have no such thing
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def host_name() -> str:
    """Return this machine's name, in letters that a file name may have."""
    return "".join(letter for letter in socket.gethostname() if letter.isalnum() or letter == "-") or "host"


def is_orphan(temporary: Path) -> bool:
    """Tell whether the process that was writing a temporary file is gone."""
    if time.time() - temporary.stat().st_mtime > STALE:
        return True
    words = temporary.name.removesuffix(TEMPORARY).split(".")
    if len(words) < 4 or words[-3] != host_name() or not words[-2].isdigit():
        return False
    try:
        os.kill(int(words[-2]), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
