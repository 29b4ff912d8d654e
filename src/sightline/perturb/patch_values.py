"""One value per patch, from a map at image size."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.types import TokenGrid


def patch_values(maps: Tensor, grid: TokenGrid) -> Tensor:
    """Return one value per patch of maps at image size, (batch, height, width) -> (batch, rows, columns).

    Where a map is an enlargement of one value per patch, as `Attribution.pixels` makes it, those values come back; any
    other map gives each patch the mean of its pixels. The mean of a bilinear or bicubic enlargement would mix
    neighbours and change their order.

    >>> patch_values(torch.tensor([[[1.0, 2.0, 5.0, 5.0]]]), TokenGrid(1, 2, image=(1, 4)))
    tensor([[[1.5000, 5.0000]]], dtype=torch.float64)
    """
    exact = maps.double()
    size = (grid.height, grid.width)
    noise = 64 * torch.finfo(maps.dtype).eps * exact.abs().amax(dim=(1, 2), keepdim=True)
    values = F.adaptive_avg_pool2d(exact, size)
    for mode in ("bicubic", "bilinear"):
        rows, columns = (_enlarging(*each, mode).to(maps.device) for each in zip(size, maps.shape[-2:], strict=True))
        cells = torch.linalg.pinv(rows) @ exact @ torch.linalg.pinv(columns).mT
        enlarged = ((rows @ cells @ columns.mT - exact).abs() <= noise).all(dim=2).all(dim=1)
        values = torch.where(enlarged[:, None, None], _settled(cells, noise), values)
    return values


def _settled(cells: Tensor, noise: Tensor) -> Tensor:
    """Make values equal that differ by no more than noise: what was tied before the enlargement is tied again."""
    rising, order = cells.flatten(1).sort(dim=1)
    apart = torch.ones_like(rising, dtype=torch.bool)
    apart[:, 1:] = rising.diff(dim=1) > noise[:, 0]
    levels = rising.masked_fill(~apart, float("-inf")).cummax(dim=1).values
    return torch.empty_like(levels).scatter_(1, order, levels).reshape(cells.shape)


@lru_cache(maxsize=16)
def _enlarging(cells: int, pixels: int, mode: str) -> Tensor:
    """Return the matrix that enlarges a line of cells to pixels, (pixels, cells)."""
    each = torch.eye(cells, dtype=torch.float64)[:, None, :, None]
    lines: Tensor = F.interpolate(each, size=(pixels, 1), mode=mode, align_corners=False)
    return lines[:, 0, :, 0].mT
