"""Find image files and read them safely: a file becomes an upright RGB image, or one clear sentence.

An `ImageSource` is an image to explain together with what is known of it, whether a file or a sample of a data set.
"""

from __future__ import annotations

import glob
import io
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from sightline.errors import ImageError, InputError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "FORMATS",
    "LONGEST_NAME",
    "MAX_PIXELS",
    "SUFFIXES",
    "ImageSource",
    "check_file",
    "decode_image",
    "find_images",
    "image_files",
    "image_sources",
    "open_image",
    "peek_image",
    "read_image",
    "read_indices",
]

T = TypeVar("T")

MAX_PIXELS = 100_000_000
LONGEST_NAME = 255  # bytes of a file name, on every common file system
# Pillow is asked to try these and no other: for an EPS file, whatever its suffix, it would run Ghostscript.
FORMATS = ("JPEG", "PNG", "TIFF", "BMP", "GIF", "WEBP")
SUFFIXES = frozenset({".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})


# ---- images to explain ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ImageSource:
    """One image, and what its data set knows of it; a file is read when its turn comes.

    Attributes:
        path: of the file, or the name in the data set: what records and errors call it.
        name: what pictures and pages call it; different for each.
        stem: what the files written of it begin with.
        photograph: as stored, to be prepared as the model says; None where the file is still to be read.
        pixels: (3, height, width) in 0..1 where the data set composes them, which are normalised and not resized.
        classes: that it shows, by number; empty where that is not known.
        masks: of its objects, each (height, width), where the data set has them.
    """

    path: str
    name: str
    stem: str
    photograph: Any = None
    pixels: Tensor | None = None
    classes: tuple[int, ...] = ()
    masks: tuple[Tensor, ...] = ()


def image_sources(paths: Sequence[str | PathLike[str]]) -> tuple[list[ImageSource], list[tuple[str, InputError]]]:
    """List the images of paths, folders and patterns, none read yet; return also the paths that name none."""
    files, errors = image_files(paths)
    names = Counter(path.name for path in files)
    named = [(path, path.name if names[path.name] == 1 else str(path)) for path in files]
    return [ImageSource(str(path), name, path.stem) for path, name in named], errors


def image_files(paths: Sequence[str | PathLike[str]]) -> tuple[list[Path], list[tuple[str, InputError]]]:
    """List the images that paths, folders and patterns name, each once; return also those that name none, and why."""
    files: dict[Path, Path] = {}
    errors = []
    for path in [os.fspath(path) for path in paths]:
        try:
            for file in find_images(path):
                files.setdefault(file.resolve(), file)
        except InputError as error:
            errors.append((path, error))
    return list(files.values()), errors


# ---- files ----------------------------------------------------------------------------------------------------------


def read_image(path: str | Path, *, upright: bool = True) -> Image.Image:
    """Read an image file as RGB, turned upright by its EXIF orientation.

    Sixteen-bit grey is scaled to eight bits, transparency is laid on white, an animation gives its first frame.

    Args:
        path: of the file.
        upright: turn the image as its EXIF block says; False leaves it as stored, as masks drawn over it expect.

    Raises:
        ImageError: the file is missing, empty, damaged, no image, or larger than MAX_PIXELS.
    """
    path = Path(path)
    check_file(path)
    return open_image(path, path, lambda image: _decoded(path, image, upright))


def decode_image(data: bytes, name: str, *, upright: bool = True) -> Image.Image:
    """Decode the bytes of an image file as `read_image` does; `name` is what an error calls it.

    Raises:
        ImageError: the bytes are none, damaged, no image, or one larger than MAX_PIXELS.
    """
    if not data:
        raise ImageError(f"{name} is empty (0 bytes); restore or replace it")
    return open_image(io.BytesIO(data), name, lambda image: _decoded(name, image, upright))


def peek_image(path: str | Path) -> tuple[str, tuple[int, int]]:
    """Read the header alone: the mode (RGB, L, CMYK, …) and (width, height).

    Raises:
        ImageError: as read_image does, as far as the header shows it.
    """
    path = Path(path)
    check_file(path)
    return open_image(path, path, lambda image: (image.mode, image.size))


def read_indices(path: str | Path) -> NDArray[np.int64]:
    """Read the numbers that a file of one channel stores, (height, width): grey values, or indices into its palette.

    Raises:
        ImageError: as read_image does, or the file has several channels.
    """
    path = Path(path)
    check_file(path)
    return open_image(path, path, lambda image: _indices(path, image))


def _indices(path: Path, image: Image.Image) -> NDArray[np.int64]:
    if len(image.getbands()) != 1:
        raise ImageError(f"{path} has {len(image.getbands())} channels; a mask with one number per pixel is needed")
    return np.asarray(image).astype(np.int64)


def open_image(source: Path | io.BytesIO, path: str | Path, use: Callable[[Image.Image], T]) -> T:
    """Open an image, check its size and use it; whatever goes wrong becomes one sentence."""
    with warnings.catch_warnings():
        # PIL warns between its own pixel limit and twice that; ours decides, from the header, before decoding
        warnings.simplefilter("ignore")
        try:
            with Image.open(source, formats=FORMATS) as image:
                _check_size(path, *image.size)
                return use(image)
        except ImageError:
            raise
        except Image.DecompressionBombError as error:
            raise ImageError(
                f"{path} holds more than {MAX_PIXELS // 10**6} million pixels, the most that is read; make it smaller"
            ) from error
        except PermissionError as error:
            raise ImageError(f"{path} may not be read by this user; change its permissions") from error
        except UnidentifiedImageError as error:
            raise ImageError(
                f"{path} is not an image that can be read; give a JPEG, PNG, WebP, TIFF, BMP or GIF"
            ) from error
        except Exception as error:  # decoders of damaged files raise nearly anything: SyntaxError, struct.error
            raise ImageError(
                f"{path} is damaged or cut short and cannot be decoded ({error}); restore or replace it"
            ) from error


def _decoded(path: str | Path, image: Image.Image, upright: bool) -> Image.Image:
    image.load()
    return _rgb(path, _upright(image) if upright else image)


def find_images(paths: Sequence[str | Path] | str | Path) -> list[Path]:
    """List image files: files as given, folders searched through by suffix, patterns such as ``photos/*.jpg``.

    The order is that of the arguments and, within a folder or pattern, alphabetical; no file is listed twice.

    Raises:
        InputError: a path does not exist, or a folder or pattern holds no image.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    if not given:
        raise InputError("no path was given; name an image, a folder or a pattern such as photos/*.jpg")
    files: dict[Path, Path] = {}
    for path in given:
        for file in _expand(path):
            files.setdefault(file.resolve(), file)
    return list(files.values())


def _expand(given: str | Path) -> Iterator[Path]:
    path = Path(given)
    _check_path(path)
    if path.is_file():
        yield path
        return
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if _is_image(file.relative_to(path), file))
    elif glob.has_magic(str(given)):
        files = sorted(file for file in map(Path, glob.glob(str(given), recursive=True)) if _is_image(file, file))  # noqa: PTH207
    else:
        raise InputError(f"{given} does not exist; give an image, a folder or a pattern such as photos/*.jpg")
    if not files:
        what = "folder" if path.is_dir() else "pattern"
        raise InputError(f"the {what} {given} holds no image; looked for {', '.join(sorted(SUFFIXES))}")
    yield from files


def _is_image(name: Path, file: Path) -> bool:
    hidden = any(part.startswith(".") and part not in (".", "..") for part in name.parts)
    return not hidden and file.suffix.lower() in SUFFIXES and file.is_file()


def check_file(path: Path) -> None:
    """Refuse what is no file, or an empty one."""
    _check_path(path)
    if path.is_dir():
        raise ImageError(f"{path} is a folder; give one image file, or list the folder with find_images")
    if not path.exists():
        raise ImageError(f"{path} does not exist; check the path")
    if not path.is_file():
        raise ImageError(f"{path} is no regular file; give an image file")
    if path.stat().st_size == 0:
        raise ImageError(f"{path} is empty (0 bytes); restore or replace it")


def _check_path(path: Path) -> None:
    """Refuse what no file system can hold: a name that is too long, a null byte, a loop of links."""
    try:
        path.exists()
    except OSError as error:
        raise ImageError(f"{str(path)[:40]}… cannot be looked up ({error.strerror}); check the path") from None


def _check_size(path: str | Path, width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise ImageError(
            f"{path} is {width}×{height}, more than the {MAX_PIXELS // 10**6} million pixels that are read; "
            "make it smaller"
        )


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # a damaged EXIF block says nothing about the picture, which is whole
        return image


def _rgb(path: str | Path, image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        return _from_deep(path, image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def _from_deep(path: str | Path, image: Image.Image) -> Image.Image:
    """Scale one deep channel to eight bits: 16-bit integers by their range, floats from 0..1 or 0..255."""
    values = np.asarray(image, dtype=np.float64)
    low, high = values.min(), values.max()
    most = 65535.0 if image.mode != "F" else 1.0 if high <= 1 else 255.0
    if not (low >= 0 and high <= most):  # also refuses NaN
        raise ImageError(
            f"{path} holds values from {low:g} to {high:g}, and grey must lie in 0..{most:g}; save it with 8 or 16 bits"
        )
    return Image.fromarray((values * (255 / most) + 0.5).astype(np.uint8)).convert("RGB")
