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
    preprocessing, or "squash", to the model's size whatever the shape of the picture.
    """
    mask = None if sample.mask is None else torch.from_numpy(np.ascontiguousarray(sample.mask))
    if sample.tensor is not None:
        return model.normalise(sample.tensor), mask
    picture = sample.image.convert("RGB")
    if resize == "squash":
        height, width = model.input_size or DEFAULT_SIZE
        prepared = model.normalise(_pixels(picture.resize((width, height), Image.Resampling.BICUBIC)))
        return prepared, None if mask is None else _resize_nearest(mask, (height, width))
    if model.preprocess is None:
        raise InputError(f"{model.name} does not say how its images are prepared; write resize = 'squash' in the plan")
    prepared = model.preprocess(picture)
    return prepared, None if mask is None else transform_mask(mask, model.preprocess)


def _pixels(picture: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255


def _resize_nearest(mask: Tensor, size: tuple[int, int]) -> Tensor:
    """Stretch a mask to a size; cells take the value of the nearest pixel."""
    rows, columns = (
        ((torch.arange(new, dtype=torch.float64) + 0.5) * old / new).long().clamp(max=old - 1)
        for new, old in zip(size, mask.shape, strict=True)
    )
    return mask[rows][:, columns]
