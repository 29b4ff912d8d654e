"""Baselines: the image, feature map or attention at which a path of integration begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from sightline.models.adapter import Adapter
from sightline.perturb.fill import make_fill
from sightline.seeds import generators, normal

LayerBaseline = Literal["channel_min", "zero", "noise"]
ImageBaseline = Literal["zero", "channel_min", "noise", "black", "white", "mean", "blur"]


def baseline_images(kind: ImageBaseline, model: Adapter, images: Tensor, seed: int) -> Tensor:
    """Return the normalised images at which paths in image space begin.

    zero is the mean colour, channel_min each channel's minimum, noise normal with mean 0 and standard deviation 1; the
    others are fills.
    """
    if kind == "channel_min":
        return images.amin(dim=(-2, -1), keepdim=True).expand_as(images)
    if kind == "noise":
        return noise_like(images[:1], images, range(len(images)), seed)
    return make_fill(kind)(model, images)


def baseline_map(kind: LayerBaseline, maps: Tensor, images: Tensor, rows: Sequence[int], seed: int) -> Tensor:
    """Return the baseline of feature maps (point, channel, height, width); `rows` is the image of each point.

    channel_min is each channel's minimum; noise is normal with each channel's mean and standard deviation.
    """
    if kind == "zero":
        return torch.zeros_like(maps)
    if kind == "channel_min":
        return maps.amin(dim=(-2, -1), keepdim=True).expand_as(maps)
    mean = torch.mean(maps, dim=(-2, -1), keepdim=True)
    deviation = torch.std(maps, dim=(-2, -1), correction=0, keepdim=True)
    return mean + deviation * noise_like(maps, images, rows, seed)


def baseline_attention(
    kind: LayerBaseline, attention: Tensor, images: Tensor, rows: Sequence[int], seed: int
) -> Tensor:
    """Return the baseline of attention probabilities (point, head, to, from); `rows` is the image of each point.

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
