"""Pictures on the server: uploads, decoded within limits and encoded anew, and the samples that come with sightline."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import re
import secrets
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from PIL import Image

from sightline.app.limits import Limits
from sightline.data.images import FORMATS, decode_image, read_image
from sightline.data.shapes import CLASSES, Shapes, Variant
from sightline.errors import ImageError, InputError

__all__ = ["Picture", "TooLarge", "png", "read_upload", "samples"]

SEED = 2024  # of the synthetic samples; the bundled models were trained on others
# The first has a watermark, which the models learned to take for a star.
SHAPES: tuple[tuple[Variant, int], ...] = (("conflict", 2), ("clean", 3), ("conflict", 1), ("clean", 2))
PHOTOGRAPHS = {"cat": "chelsea.png", "coffee": "coffee.png", "rocket": "rocket.jpg"}


class TooLarge(InputError):
    """An upload of more bytes or pixels than the server takes."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture as the server keeps it.

    Attributes:
        identifier: by which the page asks for it; it cannot be guessed, a sample's is its name.
        name: what to call it.
        data: the pixels, as a PNG file.
        size: width and height.
        digest: of the pixels; the same for the same picture, whoever sent it.
        kind: "upload"; or for a sample what it shows: "shapes", "photograph".
        reduced: whether it was larger than the server keeps.
    """

    identifier: str
    name: str
    data: bytes
    size: tuple[int, int]
    digest: str
    kind: str = "upload"
    reduced: bool = False

    def open(self) -> Image.Image:
        """Return the pixels."""
        return Image.open(io.BytesIO(self.data), formats=("PNG",)).convert("RGB")


def png(image: Image.Image) -> bytes:
    """Return a picture as a PNG file."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()


def read_upload(data: bytes, name: str, limits: Limits) -> Picture:
    """Decode an uploaded file and encode its pixels anew, so that nothing but pixels is kept.

    Raises:
        TooLarge: it has more bytes or pixels than the server takes.
        ImageError: it is no image that can be read.
    """
    if len(data) > limits.upload_bytes:
        raise TooLarge(f"got {len(data)} bytes; the most that is taken is {limits.upload_bytes}; give a smaller file")
    name = _plain_name(name)
    width, height = _header_size(data, name)
    if width * height > limits.pixels:
        raise TooLarge(
            f"{name} has {width}×{height} pixels; the most that is taken is {limits.pixels}; make it smaller"
        )
    image = decode_image(data, name)
    reduced = max(image.size) > limits.side
    if reduced:
        image.thumbnail((limits.side, limits.side), Image.Resampling.LANCZOS)
    return _kept(image, secrets.token_urlsafe(16), name, "upload", reduced)


@cache
def samples() -> dict[str, Picture]:
    """Return the pictures that are there without an upload: synthetic shapes, and photographs where installed."""
    found = {}
    for variant, index in SHAPES:
        sample = Shapes(seed=SEED, variant=variant)[index]
        name = CLASSES[sample.label] + ("-with-watermark" if variant == "conflict" else "")
        found[name] = _kept(Image.fromarray(sample.image), name, f"{name}.png", "shapes")
    for name, path in _photographs().items():
        found[name] = _kept(read_image(path), name, f"{name}.png", "photograph")
    return found


def _kept(image: Image.Image, identifier: str, name: str, kind: str, reduced: bool = False) -> Picture:
    image = image.convert("RGB")
    digest = hashlib.sha256(repr(image.size).encode() + image.tobytes()).hexdigest()
    return Picture(identifier, name, png(image), image.size, digest, kind, reduced)


def _photographs() -> dict[str, Path]:
    """Return scikit-image's own photographs, where it carries them."""
    spec = importlib.util.find_spec("skimage")
    folders = [Path(path) / "data" for path in (spec.submodule_search_locations or ())] if spec else []
    return {name: data / file for data in folders for name, file in PHOTOGRAPHS.items() if (data / file).is_file()}


def _header_size(data: bytes, name: str) -> tuple[int, int]:
    """Return width and height as the file's header names them, before anything is decoded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                return image.size
        except Image.DecompressionBombError as error:
            raise TooLarge(f"{name} has too many pixels; make it smaller") from error
        except Exception as error:  # decoders of damaged files raise nearly anything
            raise ImageError(
                f"{name} is not an image that can be read; give a JPEG, PNG, WebP, TIFF, BMP or GIF"
            ) from error


def _plain_name(name: str) -> str:
    """Return the last part of a file name, of letters, digits and a few signs."""
    return re.sub(r"[^\w.+-]+", "-", re.split(r"[/\\]", name)[-1]).strip("-.")[:80] or "picture.png"
