"""Fuse the class activation maps of several layers into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import RecipeError
from sightline.models.passes import full_precision
from sightline.types import Attribution, pixel_grid

Layer = str | int | None
Layers = Layer | tuple[str | int, ...]
Fusion = Literal["mean", "tanh", "product"]
CONTRAST = 2.0  # of shallow layers, as the authors of Layer-CAM


def check_layers(layer: Layers) -> None:
    """Refuse what cannot be layers."""
    if isinstance(layer, tuple) and (not layer or not all(isinstance(item, str | int) for item in layer)):
        raise RecipeError(f"got layer={layer!r}; give one layer, or a tuple of names or indices from shallow to deep")


def fused(maps: Sequence[Tensor], images: Tensor, fusion: Fusion) -> Attribution:
    """Fuse the maps of several layers, (batch, height, width), deepest last, into one at the size of the image."""
    size = (images.shape[-2], images.shape[-1])
    positive = [full_precision(values).clamp(min=0) for values in maps]
    if fusion == "product":
        scaled = [_min_max(_upsampled(values, size)) for values in positive]
        return Attribution(torch.stack(scaled).prod(dim=0)[None], pixel_grid(images))
    if fusion == "mean":
        scaled = [_upsampled(_min_max(values), size).clamp(min=0) for values in positive]
        return Attribution(torch.stack(scaled).mean(dim=0)[None], pixel_grid(images))
    *shallow, deepest = [_divided_by_maximum(values) for values in positive]
    scaled = [*(torch.tanh(CONTRAST * values) for values in shallow), deepest]
    upsampled = torch.stack([_upsampled(values, size) for values in scaled])
    return Attribution(upsampled.amax(dim=0)[None], pixel_grid(images))


def _upsampled(maps: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]


def _min_max(maps: Tensor) -> Tensor:
    """Scale to [0, 1] as the package grad-cam does."""
    maps = maps - maps.amin(dim=(1, 2), keepdim=True)
    return maps / (1e-7 + maps.amax(dim=(1, 2), keepdim=True))


def _divided_by_maximum(maps: Tensor) -> Tensor:
    """Divide by the largest value; a map of zeros stays one."""
    return maps / maps.amax(dim=(1, 2), keepdim=True).clamp(min=torch.finfo(maps.dtype).tiny)
