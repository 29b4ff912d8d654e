"""Files that are written: atomically, under names for any text, and pictures that say what they show.

An atomic write goes under another name, is synced, then renamed, so that nobody ever reads half of a file.
"""

from __future__ import annotations

import io
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import IO, TYPE_CHECKING

from sightline.errors import InputError, OutputError

if TYPE_CHECKING:
    from PIL import Image

__all__ = [
    "TEMPORARY",
    "check_folder",
    "file_name",
    "free_name",
    "host_name",
    "is_orphan",
    "open_atomically",
    "png_file",
    "sweep",
    "write_atomically",
    "write_by_suffix",
    "write_output",
    "write_pictures",
]

TEMPORARY = ".part"  # how the name of a file that is being written ends
MAKER = "sightline"  # what a picture of ours says it was made by
STALE = 24 * 3600.0  # seconds after which a temporary file belongs to nobody, wherever it came from


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it is there with all of `data` or not at all, even if the machine stops.

    Missing folders are made. What was there before stays until the new file is complete.

    Raises:
        OSError: the folder or the file cannot be written; nothing is left behind.
    """
    with open_atomically(path) as file:
        file.write(data)


@contextmanager
def open_atomically(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to be written piece by piece; it is there, whole, when the block ends without an error.

    Raises:
        OSError: the folder or the file cannot be written; nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A short name of its own: that of the file may be as long as file names can be.
    temporary = path.parent / f".sightline.{host_name()}.{os.getpid()}.{secrets.token_hex(4)}{TEMPORARY}"
    try:
        with temporary.open("xb") as file:
            yield file
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


# ---- folders of pictures --------------------------------------------------------------------------------------------


def check_folder(folder: Path) -> None:
    """Refuse a folder that is a file, lies in one, or cannot be written; nothing is made."""
    nearest = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists() or parent.is_symlink())
    if not nearest.is_dir():
        raise OutputError(f"cannot write into {folder}: it is a file, or lies in one; choose another --out")
    if not os.access(nearest, os.W_OK):
        raise OutputError(f"cannot write into {folder}: permission denied; choose another --out")


def file_name(words: str) -> str:
    """Return a file name for any text, on any system: letters, digits and a few signs."""
    return re.sub(r"[^\w.=+-]+", "-", words).strip("-. ")[:80]


def free_name(words: str, taken: set[str]) -> str:
    """Return a name for the files of an image that is not taken yet, and take it; `taken` is in lower case."""
    wanted = free = file_name(words) or "image"
    number = 1
    while free.lower() in taken:  # some file systems take Cat and cat for the same
        number += 1
        free = f"{wanted}-{number}"
    taken.add(free.lower())
    return free


def png_file(picture: Image.Image, facts: dict[str, str]) -> bytes:
    """Return a picture as a PNG file, which carries in its metadata what it shows."""
    from PIL import PngImagePlugin

    texts = PngImagePlugin.PngInfo()
    for key, value in {"Software": f"{MAKER} {version(MAKER)}", **facts}.items():
        texts.add_itxt(key, value.encode("utf-8", "replace").decode())
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", pnginfo=texts)
    return buffer.getvalue()


def sweep(folder: Path, fresh: set[str]) -> None:
    """Remove pictures that an earlier run left here; others' files are not touched."""
    for path in folder.glob("*.png"):
        if path.name not in fresh and _is_ours(path):
            with suppress(OSError):
                path.unlink()


def _is_ours(path: Path) -> bool:
    from PIL import Image

    try:
        with Image.open(path) as picture:
            return str(picture.info.get("Software", "")).startswith(f"{MAKER} ")
    except OSError:
        return False


def write_pictures(folder: Path, pictures: Sequence[tuple[str, Image.Image, dict[str, str]]]) -> list[Path]:
    """Write pictures into a folder, numbered, in place of those that an earlier run left there.

    Args:
        folder: made where it is missing.
        pictures: the title of each, the picture, and what it carries in its metadata.
    """
    width = len(str(len(pictures)))
    paths = [
        write_output(folder / f"{number:0{width}}-{file_name(title)}.png", png_file(picture, facts))
        for number, (title, picture, facts) in enumerate(pictures, 1)
    ]
    sweep(folder, {path.name for path in paths})
    return paths
