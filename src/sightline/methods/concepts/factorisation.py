"""Components of activations: non-negative matrix factorisation and principal components, image by image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

from sightline.errors import RecipeError

ITERATIONS = 300  # of the alternating updates; the residual no longer changes in its fourth digit long before


@dataclass(frozen=True, eq=False, slots=True)
class Components:
    """What an image's activations are made of.

    Attributes:
        vectors: the direction of each component in the layer's channels, of unit length, (batch, component, channel).
        shares: how much of the activations each explains, of their squared length less what was subtracted,
            (batch, component).
        importance: how much each matters for the target, (batch, component); zeros where no target was asked.
    """

    vectors: Tensor
    shares: Tensor
    importance: Tensor

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Concatenate those of consecutive batches."""
        return cls(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def take(self, rows: Sequence[int]) -> Self:
        """Return those of these images of the batch."""
        return type(self)(*(getattr(self, field.name)[list(rows)] for field in fields(self)))


def check_count(count: int, cells: Tensor) -> None:
    """Refuse more components than activations, (batch, channel, cell), can have."""
    most = min(cells.shape[1:])
    if count > most:
        raise RecipeError(
            f"got components={count}; the layer has {cells.shape[1]} channels and {cells.shape[2]} cells, "
            f"so {most} at most"
        )


def factorise(matrix: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Factorise a non-negative matrix, (channel, cell), into (channel, component) and (component, cell), both ≥ 0.

    The squared error is lowered by alternating updates of one component at a time (HALS), from a start that the
    singular vectors give (NNDSVD): nothing is random. The first factor's columns have unit length, and components come
    in the order of the second factor's lengths.
    """
    directions, maps = _start(matrix, count)
    for _ in range(ITERATIONS):
        _update(directions.T, maps @ maps.T, maps @ matrix.T)
        _update(maps, directions.T @ directions, directions.T @ matrix)
    lengths = directions.norm(dim=0).clamp(min=torch.finfo(matrix.dtype).tiny)
    directions, maps = directions / lengths, maps * lengths[:, None]
    order = maps.norm(dim=1).argsort(descending=True, stable=True)
    return directions[:, order], maps[order]


def _update(rows: Tensor, gram: Tensor, products: Tensor) -> None:
    """Lower the error in each row in turn, the others held, in place."""
    for index in range(len(rows)):
        size = gram[index, index]
        if size > 0:
            slope = (products[index] - gram[index] @ rows) / size
            rows[index] = (rows[index] + slope).clamp(min=0)


def _start(matrix: Tensor, count: int) -> tuple[Tensor, Tensor]:
    left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
    directions, maps = [left[:, 0].abs() * sizes[0].sqrt()], [right[0].abs() * sizes[0].sqrt()]
    for index in range(1, count):
        u, v = left[:, index], right[index]
        parts = [(u.clamp(min=0), v.clamp(min=0)), ((-u).clamp(min=0), (-v).clamp(min=0))]
        u, v = max(parts, key=lambda part: float(part[0].norm() * part[1].norm()))
        scale = (sizes[index] * u.norm() * v.norm()).sqrt()
        tiny = torch.finfo(matrix.dtype).tiny
        directions.append(scale * u / u.norm().clamp(min=tiny))
        maps.append(scale * v / v.norm().clamp(min=tiny))
    return torch.stack(directions, dim=1), torch.stack(maps)
