"""Images of any number of bands, such as satellite images: read from a file as they are stored."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sightline.data.images import MAX_PIXELS, check_file, open_image
from sightline.errors import ImageError, SightlineError
from sightline.extras import require

__all__ = ["bands_of", "read_bands", "scaled_bands"]

MOST_NUMBERS = 4 * MAX_PIXELS  # of all bands together
TIFF = frozenset({".tif", ".tiff"})
HIGHEST = {"uint8": 255.0, "uint16": 65535.0}
AS_STORED = frozenset({"L", "LA", "RGB", "RGBA", "CMYK", "I;16", "I;16B", "I;16L", "F"})


def read_bands(path: str | Path) -> NDArray[np.float32]:
    """Read every band of an image file, (band, height, width); whole numbers of 8 or 16 bits become 0 to 1.

    A TIFF may hold its bands as samples of each pixel or as pages; other formats hold one to four.

    Raises:
        ImageError: the file is missing, damaged, no image, too large, or holds other numbers.
    """
    path = Path(path)
    check_file(path)
    if path.suffix.lower() in TIFF:
        return scaled_bands(_tiff(path), str(path))
    return scaled_bands(open_image(path, path, lambda image: bands_of(image, str(path))), str(path))


def scaled_bands(stored: NDArray[Any], name: str) -> NDArray[np.float32]:
    """Return bands, (band, height, width), as floats: whole numbers of 8 or 16 bits from 0 to 1, floats as they are."""
    kind = stored.dtype.name
    if kind not in HIGHEST and not np.issubdtype(stored.dtype, np.floating):
        raise ImageError(f"{name} holds numbers of type {kind}; save it as 8 or 16 bit whole numbers, or as floats")
    scaled = stored.astype(np.float32) / np.float32(HIGHEST.get(kind, 1.0))
    if not np.isfinite(scaled).all():
        raise ImageError(f"{name} holds NaN or infinite values; fill in what is missing")
    return scaled


def bands_of(image: Image.Image, name: str) -> NDArray[Any]:
    """Return the bands of a picture as it holds them, (band, height, width)."""
    image.load()
    if image.mode not in AS_STORED:
        raise ImageError(f"{name} is stored with a palette or in mode {image.mode}; save its bands as plain numbers")
    values = np.asarray(image)
    return values[None] if values.ndim == 2 else np.moveaxis(values, -1, 0)


def _tiff(path: Path) -> NDArray[Any]:
    """Read a TIFF whose pages or samples are bands."""
    tifffile = require("tifffile")
    try:
        with tifffile.TiffFile(path) as file:
            series = file.series[0]
            _check_shape(path, series.shape)
            values: NDArray[Any] = series.asarray()
            last = series.axes.endswith("S")  # the bands are samples of each pixel
    except SightlineError:
        raise
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise ImageError(f"{path} is damaged or no TIFF that can be read ({error}); restore or replace it") from error
    if values.ndim == 2:
        return values[None]
    return np.moveaxis(values, -1, 0) if last else values


def _check_shape(path: Path, shape: tuple[int, ...]) -> None:
    if len(shape) not in (2, 3):
        raise ImageError(f"{path} holds an array of shape {tuple(shape)}; the bands of one image are needed")
    if prod(shape) > MOST_NUMBERS:
        raise ImageError(f"{path} holds {prod(shape) // 10**6} million numbers, more than are read; make it smaller")
