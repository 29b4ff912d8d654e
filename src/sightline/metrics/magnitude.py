"""Maps of any size brought to a size one can calculate with, without touching a single digit."""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 1000  # powers of two that float64 holds in both directions


def power_of_two(maps: Tensor) -> Tensor:
    """Return, for each map, the power of two that brings its largest magnitude between a half and one, (batch, 1, 1).

    Multiplying by it moves the exponent alone: equal values stay equal, and differences stay in proportion.

    >>> power_of_two(torch.tensor([[[3.0, -5.0]], [[0.0, 0.0]]])).flatten()
    tensor([0.1250, 1.0000], dtype=torch.float64)
    """
    largest = maps.double().abs().flatten(1).amax(dim=1)
    exponent = torch.frexp(largest).exponent.clamp(-LARGEST, LARGEST)
    return torch.ldexp(torch.ones_like(largest), -exponent)[:, None, None]
