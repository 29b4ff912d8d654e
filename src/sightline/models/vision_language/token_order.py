"""The order of tokens: a language model's own, and text first, image tokens by rows, as methods are shown them."""

from __future__ import annotations

import torch
from torch import Tensor


def rearranged(values: Tensor, order: Tensor, axis: int) -> Tensor:
    """Return values with an axis in another order: one order, (1, token), for all images, or one per image."""
    if len(order) == 1:
        return values.index_select(axis, order[0])
    axis = axis % values.ndim
    shape = [1] * values.ndim
    shape[0], shape[axis] = order.shape
    sizes = list(values.shape)
    sizes[0], sizes[axis] = order.shape
    if len(values) == 1:
        values = values.expand(len(order), *values.shape[1:])
    return values.gather(axis, order.view(shape).expand(sizes))


def shown_order(positions: Tensor) -> Tensor:
    """Return where each token stands in the model's sequence, given its position there: (batch, token) of ranks."""
    return positions.argsort(dim=1).argsort(dim=1)


def inverse(order: Tensor) -> Tensor:
    """Return the order that undoes another."""
    return order.argsort(dim=1)


def text_first(image_positions: Tensor, length: int) -> Tensor:
    """Return the positions of all tokens, (1, token): text in its order, then the image tokens as they are given."""
    is_image = torch.zeros(length, dtype=torch.bool)
    is_image[image_positions] = True
    return torch.cat([(~is_image).nonzero()[:, 0], image_positions])[None]
