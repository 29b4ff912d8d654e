"""Whole files: written under another name, synced, then renamed, so that nobody ever sees half of one."""

from __future__ import annotations

import os
import secrets
import socket
import time
from contextlib import suppress
from pathlib import Path

from sightline.errors import OutputError

__all__ = ["PART", "host_name", "is_orphan", "write_atomically", "write_whole"]

PART = ".part"
OLD = 24 * 3600.0  # seconds after which a temporary file belongs to nobody, wherever it came from


def write_atomically(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write a file so that it is there as a whole or not at all, missing folders included, and return its path.

    Raises:
        OutputError: the folder or the file cannot be written.
    """
    path = Path(path)
    try:
        write_whole(path, data)
    except OSError as error:
        blocked = isinstance(error, FileExistsError | NotADirectoryError)
        reason = "its folder is a file" if blocked else (error.strerror or str(error)).lower()
        raise OutputError(f"cannot write {path}: {reason}; choose a folder that can be written") from error
    return path


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is there as a whole or not at all, even if the machine stops."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.parent / f".{path.name}.{host_name()}.{os.getpid()}.{secrets.token_hex(4)}{PART}"
    try:
        with part.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


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


def is_orphan(path: Path) -> bool:
    """Tell whether the process that wrote a temporary file is gone."""
    if time.time() - path.stat().st_mtime > OLD:
        return True
    words = path.name.removesuffix(PART).split(".")
    if len(words) < 4 or words[-3] != host_name() or not words[-2].isdigit():
        return False
    try:
        os.kill(int(words[-2]), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
