"""Class activation maps of several layers made one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import RecipeError
from sightline.models.adapter import Adapter
from sightline.models.precision import full_precision
from sightline.types import Attribution, Passes, Target, pixel_grid

Layer = str | int | None
Layers = Layer | tuple[str | int, ...]
Fusion = Literal["mean", "tanh"]
CONTRAST = 2.0  # of shallow layers, as the authors of Layer-CAM


def check_layers(layer: Layers) -> None:
    """Refuse what cannot be layers."""
    if isinstance(layer, tuple) and (not layer or not all(isinstance(each, str | int) for each in layer)):
        raise RecipeError(f"got layer={layer!r}; give one layer, or a tuple of names or indices from shallow to deep")


def several_layers(
    method: Any, model: Adapter, images: Tensor, targets: Sequence[Target], layers: Sequence[str | int], fusion: Fusion
) -> list[Attribution]:
    """Ask a method about each layer by itself and make its maps one."""
    each = [replace(method, layer=layer).multi_target(model, images, targets) for layer in layers]
    return [fused([one.map for one in found], images, fusion) for found in zip(*each, strict=True)]


def several_layers_cost(method: Any, model: Adapter, count: int, layers: Sequence[str | int]) -> Passes:
    """Return what that costs."""
    return sum((replace(method, layer=layer).multi_target_cost(model, count) for layer in layers), Passes())


def fused(maps: Sequence[Tensor], images: Tensor, fusion: Fusion) -> Attribution:
    """Make one map, at the size of the image, of the maps of several layers, (batch, height, width), deepest last."""
    size = (images.shape[-2], images.shape[-1])
    exact = [full_precision(one) for one in maps]
    if fusion == "mean":
        shown = [_enlarged(_to_unit(one.clamp(min=0)), size).clamp(min=0) for one in exact]
        return Attribution(torch.stack(shown).mean(dim=0)[None], pixel_grid(images))
    scaled = [_of_largest(one.clamp(min=0)) for one in exact]
    scaled = [*(torch.tanh(CONTRAST * one) for one in scaled[:-1]), scaled[-1]]
    return Attribution(torch.stack([_enlarged(one, size) for one in scaled]).amax(dim=0)[None], pixel_grid(images))


def _enlarged(maps: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]


def _to_unit(maps: Tensor) -> Tensor:
    """Scale to [0, 1] as the package grad-cam does."""
    maps = maps - maps.amin(dim=(1, 2), keepdim=True)
    return maps / (1e-7 + maps.amax(dim=(1, 2), keepdim=True))


def _of_largest(maps: Tensor) -> Tensor:
    """Divide by the largest value; a map of zeros stays one."""
    return maps / maps.amax(dim=(1, 2), keepdim=True).clamp(min=torch.finfo(maps.dtype).tiny)
