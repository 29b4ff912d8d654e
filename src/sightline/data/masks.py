"""Read masks of the evidence; resize and crop them as preprocessing does the image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sightline.data.images import read_image
from sightline.errors import InputError

__all__ = ["BACKGROUND", "EVIDENCE", "IGNORE", "fit_mask", "mask_of", "nearest_pixels", "read_mask"]

EVIDENCE = 1
BACKGROUND = 0
IGNORE = -1

MEANINGS = {0: BACKGROUND, 1: EVIDENCE, 128: IGNORE, 255: EVIDENCE}


def read_mask(path: str | Path) -> Tensor:
    """Read a mask file as (height, width) int8: 1 evidence, 0 background, -1 ignore.

    In the file 255 (or 1) is evidence, 128 the border that is ignored, 0 background.
    """
    return mask_of(read_image(path), str(path))


def mask_of(picture: Image.Image, name: str) -> Tensor:
    """Turn an image that is a mask into (height, width) int8, as read_mask does a file."""
    grey = np.asarray(picture.convert("L"))
    strange = sorted(set(np.unique(grey).tolist()) - set(MEANINGS))
    if strange:
        raise InputError(
            f"the mask {name} holds the value {strange[0]}; a mask has 255 or 1 for evidence, 128 for ignore, "
            "0 for background, and is saved without loss (PNG)"
        )
    table = np.zeros(256, dtype=np.int8)
    table[list(MEANINGS)] = list(MEANINGS.values())
    return torch.from_numpy(table[grey])


def fit_mask(mask: Tensor, *, image_size: tuple[int, int], resize: int, crop: int) -> Tensor:
    """Resize and crop a mask as preprocessing does the image: short side to `resize`, then the central `crop` square.

    Cells take the value of the nearest pixel, so no new value appears.

    Args:
        mask: (height, width).
        image_size: height and width of the photograph the mask belongs to, before preprocessing.
        resize: length of the short side.
        crop: side of the square that is kept, at most `resize`.
    """
    if tuple(mask.shape) != tuple(image_size):
        came, needed = ("×".join(map(str, size)) for size in (mask.shape, image_size))
        raise InputError(f"the mask is {came} and its image {needed} (height×width); give a mask of the same size")
    if not 0 < crop <= resize:
        raise InputError(f"a crop of {crop} does not fit a short side of {resize}; choose 0 < crop <= resize")
    short = min(mask.shape)
    for dim, length in enumerate(mask.shape):
        resized = resize * length // short
        kept = nearest_pixels(length, resized)[round((resized - crop) / 2) :][:crop]
        mask = mask.index_select(dim, kept.to(mask.device))
    return mask


def nearest_pixels(length: int, resized: int) -> Tensor:
    """Return which of `length` pixels is nearest to each of the `resized` pixels that take their room."""
    centres = torch.arange(resized, dtype=torch.float64) + 0.5
    return (centres * length / resized).long().clamp(max=length - 1)
