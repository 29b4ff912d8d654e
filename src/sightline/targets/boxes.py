"""Boxes, (…, 4) as x1, y1, x2, y2: how far they overlap, and which of several that overlap are kept."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["non_maximum_suppression", "overlap"]


def overlap(boxes: Tensor, others: Tensor) -> Tensor:
    """Return the intersection over union of boxes, (…, 4) and (…, 4) that broadcast; 0 where both are empty.

    >>> overlap(torch.tensor([[0.0, 0.0, 2.0, 2.0]]), torch.tensor([[1.0, 0.0, 3.0, 2.0]]))
    tensor([0.3333])
    """
    low = torch.maximum(boxes[..., :2], others[..., :2])
    high = torch.minimum(boxes[..., 2:], others[..., 2:])
    shared = (high - low).clamp(min=0).prod(dim=-1)
    union = _area(boxes) + _area(others) - shared
    return shared / union.where(union > 0, 1.0)


def _area(boxes: Tensor) -> Tensor:
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(dim=-1)


def non_maximum_suppression(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Return the indices of the boxes that are kept, best first.

    A box is dropped when it overlaps by more than the threshold with a better one that is kept.

    Args:
        boxes: shape (box, 4).
        scores: shape (box,); of equal ones the first is the better.
        threshold: on the intersection over union.
    """
    left = scores.argsort(descending=True, stable=True)
    kept = []
    while len(left):
        kept.append(left[0])
        left = left[1:][overlap(boxes[left[0]], boxes[left[1:]]) <= threshold]
    return torch.stack(kept) if kept else left
