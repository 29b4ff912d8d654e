"""Scaling of maps: to the range 0..1, and by powers of two, which avoids overflow without rounding."""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 1000  # powers of two that float64 holds in both directions


def power_of_two(maps: Tensor) -> Tensor:
    """Return, for each map, the power of two that brings its largest magnitude between a half and one, (batch, 1, 1).

    Multiplying by it changes the exponent alone: equal values stay equal, and differences stay in proportion.

    >>> power_of_two(torch.tensor([[[3.0, -5.0]], [[0.0, 0.0]]])).flatten()
    tensor([0.1250, 1.0000], dtype=torch.float64)
    """
    largest = maps.double().abs().flatten(1).amax(dim=1)
    exponent = torch.frexp(largest).exponent.clamp(-LARGEST, LARGEST)
    return torch.ldexp(torch.ones_like(largest), -exponent)[:, None, None]


def min_max(maps: Tensor) -> Tensor:
    """Scale each map, shape (batch, height, width), to 0..1; a constant one becomes zero.

    >>> min_max(torch.tensor([[[1.0, 3.0], [2.0, 3.0]], [[5.0, 5.0], [5.0, 5.0]]]))[:, 1]
    tensor([[0.5000, 1.0000],
            [0.0000, 0.0000]], dtype=torch.float64)
    """
    maps = maps.double() * power_of_two(maps)  # the range of a map of huge numbers would overflow
    low, high = maps.amin(dim=(1, 2), keepdim=True), maps.amax(dim=(1, 2), keepdim=True)
    return (maps - low) / torch.where(high > low, high - low, 1)
