"""Masks from annotations in COCO's format: polygons, boxes and run-length encoding (RLE)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.data.images import MAX_PIXELS
from sightline.errors import InputError

__all__ = ["annotation_mask", "box_mask", "decode_rle", "fill_polygon", "rle_mask"]

Bools = NDArray[np.bool_]


def annotation_mask(segmentation: Any, height: int, width: int) -> Bools:
    """Return where an object is, (height, width), from its ``segmentation``: polygons, or run lengths.

    Raises:
        InputError: the annotation is neither, or does not fit the image.
    """
    if not 0 < height * width <= MAX_PIXELS or min(height, width) < 1:
        raise InputError(f"an annotation of {height}×{width} pixels cannot be drawn; restore the file")
    if isinstance(segmentation, dict):
        size, counts = segmentation.get("size"), segmentation.get("counts")
        if list(size or ()) != [height, width]:
            raise InputError(f"run lengths of size {size} do not fit a picture of {height}×{width}; restore the file")
        return rle_mask(decode_rle(counts) if isinstance(counts, str) else counts, height, width)
    if not isinstance(segmentation, list):
        raise InputError(f"got {type(segmentation).__name__} as an annotation; polygons or run lengths are needed")
    mask = np.zeros((height, width), dtype=np.bool_)
    for polygon in segmentation:
        mask |= fill_polygon(polygon, height, width)
    return mask


def fill_polygon(points: Sequence[float], height: int, width: int) -> Bools:
    """Return the pixels whose centres lie inside a polygon x₁, y₁, x₂, y₂, …, by the even-odd rule.

    Coordinates are those of COCO: pixel i reaches from i to i + 1.
    """
    try:
        corners = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    except (TypeError, ValueError):
        raise InputError("a polygon must be a list of numbers, x and y in turn; restore the file") from None
    if len(corners) < 3 or not np.isfinite(corners).all():
        raise InputError(f"a polygon of {len(corners)} corners encloses nothing; restore the file")
    # a pixel is inside when an odd number of edges lie to its left; each edge flips all pixels to its right
    flips = np.zeros((height, width + 1), dtype=np.int64)
    for (x, y), (next_x, next_y) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        low, high = sorted((y, next_y))
        rows = np.arange(max(0, int(np.ceil(low - 0.5))), min(height, int(np.ceil(high - 0.5))))
        if not len(rows):
            continue
        crossing = x + (rows + 0.5 - y) * ((next_x - x) / (next_y - y))
        np.add.at(flips, (rows, np.clip(np.ceil(crossing - 0.5), 0, width).astype(np.int64)), 1)
    return np.asarray(flips.cumsum(axis=1)[:, :width] % 2 == 1)


def rle_mask(counts: Any, height: int, width: int) -> Bools:
    """Return the mask of run lengths: background and object in turn, down the columns, background first."""
    try:
        runs = np.asarray(counts, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        raise InputError("run lengths must be whole numbers; restore the file") from None
    if runs.ndim != 1 or (runs < 0).any() or sum(runs.tolist()) != height * width:
        raise InputError(f"run lengths do not add up to the {height}×{width} pixels of the picture; restore the file")
    values = np.arange(len(runs)) % 2 == 1
    return np.ascontiguousarray(np.repeat(values, runs).reshape(width, height).T)


def decode_rle(text: str) -> list[int]:
    """Return the run lengths that COCO packs into text.

    Each number is written in digits of five bits, lowest first, from the character '0' on; a sixth bit says that more
    follow and the highest bit of the last digit is the sign. From the fourth number on, what is written is the
    difference to the number two before it.
    """
    counts: list[int] = []
    number, shift = 0, 0
    for letter in text:
        digit = ord(letter) - 48
        if not 0 <= digit < 64 or shift > 60:
            raise InputError("packed run lengths hold a character that is none of theirs; restore the file")
        number |= (digit & 0x1F) << shift
        shift += 5
        if digit & 0x20:
            continue
        if digit & 0x10:
            number -= 1 << shift
        counts.append(number + (counts[-2] if len(counts) > 2 else 0))
        number, shift = 0, 0
    if shift:
        raise InputError("packed run lengths end in the middle of a number; restore the file")
    return counts


def box_mask(box: Sequence[float], height: int, width: int) -> Bools:
    """Return the pixels whose centres lie in a box x, y, width, height."""
    x, y, across, down = map(float, box)
    return fill_polygon([x, y, x + across, y, x + across, y + down, x, y + down], height, width)
