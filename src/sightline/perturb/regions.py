"""Overlapping regions of an image: the segments of several segmentations, each dilated a little."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import RecipeError, ShapeError
from sightline.extras import require
from sightline.models.adapter import Adapter
from sightline.perturb.superpixels import Cut, Given, check_cut, segments_of

Cuts = Cut | tuple[Cut, ...]
SCALES = (50, 100, 150, 250, 500, 1200)  # of the authors of XRAI, as are the following
SMOOTHING, SMALLEST = 0.8, 150
SIDE = 224  # at which they cut, so that scales mean the same for images of any size
CHUNK = 32  # masks dilated at once


def check_cuts(cuts: Cuts | None) -> tuple[Cut, ...]:
    """Return one or several cuts as a tuple, empty for none given."""
    if cuts is None:
        return ()
    each: tuple[Any, ...] = (cuts,) if isinstance(cuts, str) or (cuts and isinstance(cuts[0], str)) else cuts
    if not each or not all(isinstance(cut, str | tuple) for cut in each):
        raise RecipeError(f"got segments={cuts!r}; give one cut, as ('slic', 60), or a tuple of them, or leave it out")
    for cut in each:
        check_cut(cut)
    return each


def regions_of(model: Adapter, images: Tensor, cuts: tuple[Cut, ...], radius: int) -> list[Tensor]:
    """Return the regions of each image, (region, height, width), bool: of the cuts, or of XRAI's six without any."""
    if cuts:
        layers = [segments_of(model, images, cut) for cut in cuts]
        regions = [torch.cat([_masks(piece.labels) for piece in pieces]) for pieces in zip(*layers, strict=True)]
    else:
        regions = [_at_six_scales(raw) for raw in model.denormalise(images.detach().double())]
    return [dilated(masks.cpu(), radius) for masks in regions]


def given_regions(model: Adapter, images: Tensor, given: Given | Sequence[Tensor]) -> list[Tensor]:
    """Return the caller's own regions, as they are.

    Args:
        model: says what the pixels' colours are.
        images: as the model is fed, shape (batch, 3, height, width).
        given: masks, (region, height, width) of bool, for all images; one such tensor for each image; or whatever
            `segments_of` takes.
    """
    size = (images.shape[-2], images.shape[-1])
    each: Any = [given] * len(images) if _is_masks(given) else given
    if isinstance(each, list | tuple) and each and all(map(_is_masks, each)):
        regions: list[Tensor] = list(each)
    else:
        regions = [_masks(piece.labels) for piece in segments_of(model, images, each)]
    if len(regions) != len(images) or any(tuple(masks.shape[1:]) != size for masks in regions):
        shapes = [tuple(masks.shape) for masks in regions]
        raise ShapeError(f"got regions of {shapes} for {len(images)} images of {size}; give (region, height, width)")
    return [masks.cpu() for masks in regions]


def _is_masks(given: Any) -> bool:
    return isinstance(given, Tensor) and given.dtype == torch.bool and given.ndim == 3


def _masks(labels: Tensor) -> Tensor:
    return labels == torch.arange(int(labels.max()) + 1, device=labels.device)[:, None, None]


def dilated(masks: Tensor, radius: int) -> Tensor:
    """Dilate each mask by a disc of this radius."""
    if not radius:
        return masks
    reach = torch.arange(-radius, radius + 1)
    disc = (reach[:, None] ** 2 + reach**2 <= radius**2).float()[None, None]
    parts = [F.conv2d(part[:, None].float(), disc, padding=radius)[:, 0] > 0.5 for part in masks.split(CHUNK)]
    return torch.cat(parts)


def _at_six_scales(raw: Tensor) -> Tensor:
    """Cut one image, (3, height, width), by Felzenszwalb's method at each scale; values span -1 to 1 and 224 pixels."""
    resize: Any = require("skimage.transform").resize
    cutter: Any = require("skimage.segmentation").felzenszwalb
    low, high = raw.min(), raw.max()
    spread = 2 * (raw - low) / torch.where(high > low, high - low, 1.0) - 1
    pixels = spread.movedim(0, -1).cpu().numpy()
    image = resize(pixels, (SIDE, SIDE), order=3, mode="constant", preserve_range=True, anti_aliasing=True)
    masks = []
    for scale in SCALES:
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # of images with more than 3 channels
            labels = cutter(image, scale=scale, sigma=SMOOTHING, min_size=SMALLEST)
        shape, plain = tuple(raw.shape[-2:]), {"mode": "constant", "preserve_range": True, "anti_aliasing": False}
        masks.append(_masks(torch.from_numpy(resize(labels, shape, order=0, **plain).astype("int64"))))
    return torch.cat(masks)
