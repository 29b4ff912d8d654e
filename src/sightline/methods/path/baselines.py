"""Where a path begins: the image or representation that stands for missing information."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from sightline.models.adapter import Adapter
from sightline.perturb.fill import make_fill
from sightline.seeds import generators, normal

Reference = Literal["channel_min", "zero", "noise"]
Blank = Literal["zero", "channel_min", "noise", "black", "white", "mean", "blur"]


def blank_images(kind: Blank, model: Adapter, images: Tensor, seed: int) -> Tensor:
    """Return the images at which the paths in image space begin, as the model is fed.

    zero is the mean colour, channel_min each channel's smallest value, noise normal with the normalised images' own
    mean 0 and deviation 1; the others are fills.
    """
    if kind == "channel_min":
        return images.amin(dim=(-2, -1), keepdim=True).expand_as(images)
    if kind == "noise":
        return noise_like(images[:1], images, range(len(images)), seed)
    return make_fill(kind)(model, images)


def reference_map(kind: Reference, maps: Tensor, images: Tensor, rows: Sequence[int], seed: int) -> Tensor:
    """Return the reference of feature maps (point, channel, height, width), of which `rows` tells the image.

    channel_min is each channel's smallest value; noise is normal with each channel's mean and deviation.
    """
    if kind == "zero":
        return torch.zeros_like(maps)
    if kind == "channel_min":
        return maps.amin(dim=(-2, -1), keepdim=True).expand_as(maps)
    mean, deviation = (f(maps, dim=(-2, -1), keepdim=True) for f in (torch.mean, _deviation))
    return mean + deviation * noise_like(maps, images, rows, seed)


def reference_attention(kind: Reference, attention: Tensor, images: Tensor, rows: Sequence[int], seed: int) -> Tensor:
    """Return the reference of attention probabilities (point, head, to, from).

    channel_min is each head's smallest probability; noise a random attention whose rows sum to one.
    """
    if kind == "zero":
        return torch.zeros_like(attention)
    if kind == "channel_min":
        return attention.amin(dim=(-2, -1), keepdim=True).expand_as(attention)
    return noise_like(attention, images, rows, seed).softmax(dim=-1)


def noise_like(points: Tensor, images: Tensor, rows: Sequence[int], seed: int) -> Tensor:
    """Draw normal numbers of each point's shape; all points of an image get the same, whatever the batch."""
    drawn = {row: normal(points[0], generators(seed, images[row : row + 1])[0]) for row in sorted(set(rows))}
    return torch.stack([drawn[row] for row in rows])


def _deviation(maps: Tensor, dim: tuple[int, int], keepdim: bool) -> Tensor:
    return torch.std(maps, dim=dim, correction=0, keepdim=keepdim)
