"""Check that images are what a model is fed: a batch of normalised floats."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sightline.errors import InputError

# Pixels with the normalisation undone: 0 is black, 1 is white. No usual normalisation leaves an image without negative
# values and brighter than the first; none leaves one that is nowhere darker than black and brighter than the second,
# which is what normalising 0 to 255 without dividing does.
BRIGHTEST_WITHOUT_NEGATIVES = 5.0
BRIGHTEST = 100.0
ROUNDING = 0.01


def check_batch(images: Any) -> None:
    """Refuse what is no batch of finite floats of shape (batch, 3, height, width)."""
    if not isinstance(images, Tensor):
        raise InputError(f"got {type(images).__name__} as images; a (batch, 3, height, width) tensor is needed")
    if images.ndim != 4 or images.shape[1] != 3:
        hint = "; add a batch axis with images[None]" if images.ndim == 3 else ""
        raise InputError(f"got images of shape {tuple(images.shape)}; (batch, 3, height, width) is needed{hint}")
    if len(images) == 0:
        raise InputError("got a batch of no images; give at least one")
    if not images.is_floating_point():
        raise InputError(
            f"got {str(images.dtype).removeprefix('torch.')} images; normalised floats are needed: "
            "divide by 255 and call adapter.normalise, or give a PIL image"
        )
    if not torch.isfinite(images).all():
        raise InputError("the images hold NaN or infinite values; check how they were read and normalised")


def check_range(images: Tensor, pixels: Tensor, name: str) -> None:
    """Refuse pixel values of 0 to 255 that were given as normalised images.

    Args:
        images: as they were given.
        pixels: the same with the model's normalisation undone, so that 0 is black and 1 is white.
        name: of the model.
    """
    lowest, highest = images.flatten(1).amin(dim=1), images.flatten(1).amax(dim=1)
    darkest, brightest = pixels.flatten(1).amin(dim=1), pixels.flatten(1).amax(dim=1)
    raw = (lowest >= 0) & (brightest > BRIGHTEST_WITHOUT_NEGATIVES)
    not_divided = (darkest >= -ROUNDING) & (brightest > BRIGHTEST)
    wrong = raw | not_divided
    if wrong.any():
        raise InputError(
            f"got float images with values from {lowest[wrong].min().item():.4g} to {highest[wrong].max().item():.4g}; "
            f"{name} needs normalised ones: call adapter.normalise(images / 255), or, if the model itself takes 0 to "
            "255, say adapt(model, mean=(0, 0, 0), std=(1 / 255, 1 / 255, 1 / 255))"
        )
