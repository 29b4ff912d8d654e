"""Orders: the pixels of a map, the most important first."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from sightline.errors import InputError, RecipeError
from sightline.seeds import generators

Tie = Literal["index", "random"]
Importance = Literal["value", "negative", "magnitude"]


def importance_order(maps: Tensor, tie: Tie = "index", seed: int = 0, by: Importance = "value") -> Tensor:
    """Return the row-major pixel indices of each map by falling importance, shape (batch, height·width).

    Important are high values, or low ones (``by="negative"``), or those far from zero (``by="magnitude"``).
    Pixels of equal value keep their row-major order (``tie="index"``) or are shuffled (``tie="random"``), by numbers
    that depend on the seed and the map alone, not on the batch.

    >>> importance_order(torch.tensor([[[1.0, 3.0], [3.0, 2.0]]]))
    tensor([[1, 2, 3, 0]])
    """
    if tie not in get_args(Tie):
        raise RecipeError(f"got tie={tie!r}; equal values are ordered by 'index' or 'random'")
    scores = {"value": maps, "negative": -maps, "magnitude": maps.abs()}[by]
    scores = finite_maps(scores).flatten(1)
    if tie == "index":
        return _falling(scores)
    shuffled = [torch.randperm(scores.shape[1], generator=generator) for generator in generators(seed, maps)]
    shuffle = torch.stack(shuffled).to(scores.device)
    return shuffle.gather(1, _falling(scores.gather(1, shuffle)))


def ranks(order: Tensor) -> Tensor:
    """Return the rank of each pixel in the order, 0 for the most important: the inverse permutation."""
    rising = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, rising)


def finite_maps(maps: Tensor) -> Tensor:
    """Return the maps, shape (batch, height, width), or say which one cannot be ordered."""
    if maps.ndim != 3 or maps.numel() == 0:
        raise InputError(
            f"got maps of shape {tuple(maps.shape)}; (batch, height, width) is needed, with a pixel at least"
        )
    bad = ~torch.isfinite(maps).flatten(1).all(dim=1)
    if bad.any():
        raise InputError(
            f"the map of image {int(bad.nonzero()[0])} holds NaN or infinite values; nothing can be ranked by it"
        )
    return maps


def _falling(scores: Tensor) -> Tensor:
    return scores.sort(dim=1, descending=True, stable=True).indices
