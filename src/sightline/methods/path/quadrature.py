"""Quadrature rules on [0, 1] for path integrals."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from scipy.special import roots_legendre
from torch import Tensor

from sightline.errors import RecipeError

Rule = Literal["right", "gauss_legendre", "trapezoid"]


def quadrature(rule: Rule, steps: int) -> tuple[Tensor, Tensor]:
    """Return `steps` nodes and their weights, in float64; the weights sum to one.

    right: k/n for k = 1..n. gauss_legendre: exact for polynomials of degree 2n-1. trapezoid: n points, both ends
    included.
    """
    if rule == "gauss_legendre":
        points, shares = roots_legendre(steps)  # in memory that grows with the steps, not with their square
        return torch.from_numpy((points + 1) / 2), torch.from_numpy(shares / 2)
    if rule == "right" or steps == 1:
        nodes = torch.arange(1, steps + 1, dtype=torch.float64) / steps
        return nodes, torch.full_like(nodes, 1 / steps)
    if rule != "trapezoid":
        raise RecipeError(f"got rule={rule!r}; choose from {', '.join(get_args(Rule))}")
    weights = torch.full((steps,), 1 / (steps - 1), dtype=torch.float64)
    weights[[0, -1]] /= 2
    return torch.linspace(0, 1, steps, dtype=torch.float64), weights
