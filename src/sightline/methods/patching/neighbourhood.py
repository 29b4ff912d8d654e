"""Neighbourhoods: which cells go together with a cell when it is put into a blank image."""

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
    """Return who is whose neighbour, shape (cell, cell), true on the diagonal; cut off at the border of the grid.

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
    """Return the cells with equally many neighbours together: (cells, their neighbours), (cell,) and (cell, neighbour).

    Cells at the border have fewer; run apart, nothing has to be padded.
    """
    near = neighbourhoods(height, width, radius, shape)
    counts = near.sum(dim=1)
    groups = []
    for count in counts.unique(sorted=True).tolist():
        cells = (counts == count).nonzero()[:, 0]
        groups.append((cells, near[cells].nonzero()[:, 1].view(len(cells), count)))
    return tuple(groups)


def regions(cells: tuple[int, int], places: tuple[int, int], radius: int, shape: Shape) -> Tensor:
    """Return which places of a finer or coarser map each cell's neighbourhood touches: (cell, height, width) booleans.

    Cells and places divide the same square; a place counts when its area and the neighbourhood's overlap.
    """
    near = neighbourhoods(*cells, radius, shape).float()
    rows, columns = (_overlap(c, p) for c, p in zip(cells, places, strict=True))
    touched = (rows[:, None, :, None] & columns[None, :, None, :]).flatten(0, 1).flatten(1)
    return (near @ touched.float() > 0).view(-1, *places)


def _overlap(cells: int, places: int) -> Tensor:
    """Return which of equal intervals overlap which of others, shape (cell, place); in whole numbers, so exactly."""
    cell, place = torch.arange(cells)[:, None], torch.arange(places)[None]
    return (cell * places < (place + 1) * cells) & (place * cells < (cell + 1) * places)
