"""Neighbourhoods: the cells that are patched together with a cell."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError

Shape = Literal["box", "manhattan"]


def check_neighbourhood(radius: int, shape: str) -> None:
    """Refuse a neighbourhood that does not exist."""
    if radius < 0:
        raise RecipeError(f"got radius={radius}; 0 takes the patch alone, 1 its neighbours with it")
    if shape not in ("box", "manhattan"):
        raise RecipeError(f"got shape={shape!r}; choose box or manhattan")


@lru_cache(maxsize=32)
def neighbourhoods(height: int, width: int, radius: int, shape: Shape) -> Tensor:
    """Return which cells are neighbours, shape (cell, cell), true on the diagonal; clipped at the border of the grid.

    >>> neighbourhoods(1, 3, 1, "box").int()
    tensor([[1, 1, 0],
            [1, 1, 1],
            [0, 1, 1]], dtype=torch.int32)
    """
    rows = torch.arange(height).repeat_interleave(width)
    columns = torch.arange(width).repeat(height)
    apart = torch.stack([(x[:, None] - x[None]).abs() for x in (rows, columns)])
    return (apart.amax(dim=0) if shape == "box" else apart.sum(dim=0)) <= radius


@lru_cache(maxsize=32)
def by_size(height: int, width: int, radius: int, shape: Shape) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return the cells grouped by number of neighbours: (cells, their neighbours), (cell,) and (cell, neighbour).

    Cells at the border have fewer; run separately, nothing has to be padded.
    """
    near = neighbourhoods(height, width, radius, shape)
    counts = near.sum(dim=1)
    groups = []
    for count in counts.unique(sorted=True).tolist():
        cells = (counts == count).nonzero()[:, 0]
        groups.append((cells, near[cells].nonzero()[:, 1].view(len(cells), count)))
    return tuple(groups)


def regions(cells: tuple[int, int], positions: tuple[int, int], radius: int, shape: Shape) -> Tensor:
    """Return which positions of a feature map each cell's neighbourhood overlaps: (cell, height, width) booleans.

    Cells and positions divide the same square; a position counts when its area and the neighbourhood's overlap.
    """
    near = neighbourhoods(*cells, radius, shape).float()
    rows, columns = (_overlap(*counts) for counts in zip(cells, positions, strict=True))
    touched = (rows[:, None, :, None] & columns[None, :, None, :]).flatten(0, 1).flatten(1)
    return (near @ touched.float() > 0).view(-1, *positions)


def _overlap(cells: int, positions: int) -> Tensor:
    """Return which of `cells` equal intervals overlap which of `positions`, shape (cell, position); exact integers."""
    cell, position = torch.arange(cells)[:, None], torch.arange(positions)[None]
    return (cell * positions < (position + 1) * cells) & (position * cells < (cell + 1) * positions)
