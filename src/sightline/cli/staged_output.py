"""Write a command's files all or none.

Everything goes into a hidden folder first and is moved to its place when the run is done. A run that fails, or that
Ctrl-C stops, leaves the output folder as it was.
"""

from __future__ import annotations

import io
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image, PngImagePlugin

from sightline import __version__
from sightline.errors import OutputError
from sightline.files import write_output

__all__ = ["StagedOutput", "safe", "staged_output"]

MAKER = "sightline"


@dataclass
class StagedOutput:
    """Files that are staged for a folder.

    Attributes:
        folder: where they will be.
        staging: where they are until then.
        taken: names of subfolders already given away, in lower case.
    """

    folder: Path
    staging: Path
    taken: set[str] = field(default_factory=lambda: {"index.html"})

    def subfolder(self, name: str) -> str:
        """Return a name for a subfolder that no other image of the run has."""
        wanted = safe(name) or "image"
        free, number = wanted, 1
        while free.lower() in self.taken:  # lower case: some file systems take Cat and cat for the same
            number += 1
            free = f"{wanted}-{number}"
        self.taken.add(free.lower())
        return free

    def png(self, name: str, picture: Image.Image, facts: dict[str, str]) -> Path:
        """Write a picture, which carries in its metadata what it shows; return the path it will have."""
        texts = PngImagePlugin.PngInfo()
        for key, value in {"Software": f"{MAKER} {__version__}", **facts}.items():
            texts.add_itxt(key, value.encode("utf-8", "replace").decode())
        buffer = io.BytesIO()
        picture.save(buffer, format="PNG", pnginfo=texts)
        write_output(self.staging / name, buffer.getvalue())
        return self.folder / name

    def commit(self) -> None:
        """Move every file to its place, and remove the pictures of an earlier run that they replace."""
        fresh = [path.relative_to(self.staging) for path in sorted(self.staging.rglob("*")) if path.is_file()]
        try:
            for name in fresh:
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                (self.staging / name).replace(self.folder / name)
        except OSError as error:
            raise OutputError(f"cannot write into {self.folder}: {(error.strerror or str(error)).lower()}") from error
        for parent in {name.parent for name in fresh if len(name.parts) > 1}:
            _sweep(self.folder / parent, {name.name for name in fresh if name.parent == parent})


@contextmanager
def staged_output(folder: Path) -> Iterator[StagedOutput]:
    """Stage files for a folder; they are moved there if the block ends well, and removed if it does not."""
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    output = StagedOutput(folder, folder / f".sightline-{secrets.token_hex(6)}.part")
    try:
        _make(output.staging, folder)
        yield output
        output.commit()
    finally:
        shutil.rmtree(output.staging, ignore_errors=True)
        for parent in made:  # innermost first; a folder that holds something stays
            with suppress(OSError):
                parent.rmdir()


def _make(staging: Path, folder: Path) -> None:
    try:
        staging.mkdir(parents=True)
    except OSError as error:
        blocked = isinstance(error, FileExistsError | NotADirectoryError)
        reason = "it is a file, or lies in one" if blocked else (error.strerror or str(error)).lower()
        raise OutputError(f"cannot write into {folder}: {reason}; choose another --out") from error


def safe(text: str) -> str:
    """Return a file name for any text, on any system: letters, digits and a few signs."""
    return re.sub(r"[^\w.=+-]+", "-", text).strip("-. ")[:80]


def _sweep(folder: Path, fresh: set[str]) -> None:
    """Remove pictures that an earlier run left here; others' files are not touched."""
    for path in folder.glob("*.png"):
        if path.name not in fresh and _is_ours(path):
            with suppress(OSError):
                path.unlink()


def _is_ours(path: Path) -> bool:
    try:
        with Image.open(path) as picture:
            return str(picture.info.get("Software", "")).startswith(f"{MAKER} ")
    except OSError:
        return False
