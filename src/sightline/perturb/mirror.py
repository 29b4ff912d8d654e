"""Reflection at the border of an image: index −1 is 1, index n is n − 2; the edge itself is not repeated."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def mirrored(index: Tensor, length: int) -> Tensor:
    """Fold any whole numbers into 0..length − 1.

    >>> mirrored(torch.arange(-3, 6), 3)
    tensor([1, 2, 1, 0, 1, 2, 1, 0, 1])
    """
    if length == 1:
        return torch.zeros_like(index)
    period = 2 * (length - 1)
    folded = index.remainder(period)
    return torch.minimum(folded, period - folded)


def box_blur(images: Tensor, window: int) -> Tensor:
    """Replace every pixel by the mean of a square of `window` pixels around it, reflected at the border.

    An even square reaches one pixel further up and to the left, as OpenCV's does.
    """
    for axis, kernel in ((-2, (window, 1)), (-1, (1, window))):
        length = images.shape[axis]
        reach = torch.arange(-(window // 2), length + window - 1 - window // 2, device=images.device)
        images = F.avg_pool2d(images.index_select(axis, mirrored(reach, length)), kernel, stride=1)
    return images


def stretch(cells: int, pixels: int) -> Tensor:
    """Return the weights that resize a line of cells to a line of pixels bilinearly, shape (pixel, cell).

    Cells and pixels are areas, so the first pixel's centre lies before the first cell's, in the reflected part.
    """
    positions = (torch.arange(pixels, dtype=torch.float64) + 0.5) * cells / pixels - 0.5
    before = positions.floor()
    share = (positions - before)[:, None]
    low, high = (mirrored(before.long() + step, cells)[:, None] for step in (0, 1))
    weights = torch.zeros(pixels, cells, dtype=torch.float64)
    return weights.scatter_add_(1, low, 1 - share).scatter_add_(1, high, share)
