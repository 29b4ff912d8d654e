"""From a picture to what the model is fed, its mask brought along."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sightline.data.mask_transform import transform_mask
from sightline.data.source import Sample
from sightline.errors import InputError
from sightline.models.adapter import Adapter

__all__ = ["feed"]

USUAL = (224, 224)  # for a model that takes any size


def feed(model: Adapter, sample: Sample, resize: str = "model") -> tuple[Tensor, Tensor | None]:
    """Return the normalised image, (3, height, width), and its mask of the same size, if it has one.

    A sample that brings its own pixels is fed as it is; otherwise `resize` is "model", the model's own preprocessing,
    or "squash", to the model's size whatever the shape of the picture.
    """
    mask = None if sample.mask is None else torch.from_numpy(np.ascontiguousarray(sample.mask))
    if sample.tensor is not None:
        return model.normalise(sample.tensor), mask
    picture = sample.image.convert("RGB")
    if resize == "squash":
        height, width = model.input_size or USUAL
        fed = model.normalise(_raw(picture.resize((width, height), Image.Resampling.BICUBIC)))
        return fed, None if mask is None else _nearest(mask, (height, width))
    if model.preprocess is None:
        raise InputError(f"{model.name} does not say how its images are prepared; write resize = 'squash' in the plan")
    fed = model.preprocess(picture)
    return fed, None if mask is None else transform_mask(mask, model.preprocess)


def _raw(picture: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255


def _nearest(mask: Tensor, size: tuple[int, int]) -> Tensor:
    """Stretch a mask to a size; cells take the value of the nearest pixel."""
    rows, columns = (
        ((torch.arange(new, dtype=torch.float64) + 0.5) * old / new).long().clamp(max=old - 1)
        for new, old in zip(size, mask.shape, strict=True)
    )
    return mask[rows][:, columns]
