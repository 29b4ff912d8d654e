"""Preparation of one image: from a picture to the normalised tensor a model takes, its mask transformed alike."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sightline.data.mask_transform import transform_mask
from sightline.data.source import Sample
from sightline.errors import InputError
from sightline.models.adapter import Adapter

__all__ = ["prepare"]

DEFAULT_SIZE = (224, 224)  # for a model that takes any size


def prepare(model: Adapter, sample: Sample, resize: str = "model") -> tuple[Tensor, Tensor | None]:
    """Return the normalised image, (3, height, width), and its mask of the same size, if it has one.

    A sample that brings its own pixels is only normalised. For others `resize` is "model", the model's own
    preprocessing; "squash", to the model's size whatever the shape of the picture; or "crop", the short side to the
    model's size and the middle of that.
    """
    mask = None if sample.mask is None else torch.from_numpy(np.ascontiguousarray(sample.mask))
    if sample.tensor is not None:
        return model.normalise(sample.tensor), mask
    picture = sample.image.convert("RGB")
    if resize == "squash":
        height, width = model.input_size or DEFAULT_SIZE
        prepared = model.normalise(_pixels(picture.resize((width, height), Image.Resampling.BICUBIC)))
        return prepared, None if mask is None else _resize_nearest(mask, (height, width))
    if resize == "crop":
        return _cropped(model, picture, mask)
    if model.preprocess is None:
        raise InputError(f"{model.name} does not say how its images are prepared; write resize = 'squash' in the plan")
    prepared = model.preprocess(picture.convert("L") if model.image_channels == 1 else picture)
    return prepared, None if mask is None else transform_mask(mask, model.preprocess)


def _cropped(model: Adapter, picture: Image.Image, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Resize the smaller side to the model's size, as far as both sides need it, and take the middle."""
    height, width = model.input_size or DEFAULT_SIZE
    scale = max(height / picture.height, width / picture.width)
    tall, wide = max(height, round(scale * picture.height)), max(width, round(scale * picture.width))
    top, left = (tall - height) // 2, (wide - width) // 2
    resized = picture.resize((wide, tall), Image.Resampling.BICUBIC).crop((left, top, left + width, top + height))
    if mask is not None:
        mask = _resize_nearest(mask, (tall, wide))[top : top + height, left : left + width]
    return model.normalise(_pixels(resized)), mask


def _pixels(picture: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255


def _resize_nearest(mask: Tensor, size: tuple[int, int]) -> Tensor:
    """Stretch a mask to a size; cells take the value of the nearest pixel."""
    rows, columns = (
        ((torch.arange(new, dtype=torch.float64) + 0.5) * old / new).long().clamp(max=old - 1)
        for new, old in zip(size, mask.shape, strict=True)
    )
    return mask[rows][:, columns]
