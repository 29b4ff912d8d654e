"""Similarity of maps: Spearman's and Pearson's correlation, cosine, and structural similarity.

Each takes two stacks of maps, (batch, height, width), and returns one number per pair in float64: 1 for equal maps,
NaN where it is not defined because a map is constant or zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import ShapeError
from sightline.metrics.case import constant

Similarity = Literal["spearman", "pearson", "cosine", "ssim"]
SIGMA, RADIUS = 1.5, 5  # of the Gaussian window of structural similarity: 11 × 11 pixels
ROUNDING = 8  # machine precisions between two values that may be the same
STABLE = (0.01, 0.03)  # its two constants, as shares of the range of values


def spearman(first: Tensor, second: Tensor) -> Tensor:
    r"""Return Spearman's rank correlation of each pair, equal values sharing the mean of their ranks.

    .. math:: \rho = \operatorname{corr}(\operatorname{rank} a, \operatorname{rank} b)

    NaN where all values of one side are equal, or not all are numbers.

    Args:
        first: numbers of any kind, shape (batch, …).
        second: of the same shape.

    >>> spearman(torch.tensor([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]]), torch.tensor([[10.0, 30.0, 20.0], [1.0, 2.0, 3.0]]))
    tensor([0.5000,    nan], dtype=torch.float64)
    """
    _flat(first, second)  # refuses shapes that differ
    return _correlation(ranks(first.flatten(1)), ranks(second.flatten(1)))


def pearson(first: Tensor, second: Tensor) -> Tensor:
    r"""Return Pearson's correlation: :math:`\operatorname{cov}(a, b) / (\sigma_a \sigma_b)`."""
    first, second = _flat(first, second)
    undefined = constant(first) | constant(second)
    return _correlation(_unit(first), _unit(second)).masked_fill(undefined, torch.nan)


def cosine(first: Tensor, second: Tensor) -> Tensor:
    r"""Return the cosine of the angle between two maps: :math:`a \cdot b / (\lVert a \rVert \lVert b \rVert)`."""
    first, second = (_unit(values) for values in _flat(first, second))
    return _cosine(first, second)


def ssim(first: Tensor, second: Tensor) -> Tensor:
    r"""Return the structural similarity of two maps, each divided by its largest absolute value first.

    .. math:: \frac{(2\mu_a\mu_b + c_1)(2\sigma_{ab} + c_2)}{(\mu_a^2 + \mu_b^2 + c_1)(\sigma_a^2 + \sigma_b^2 + c_2)}

    averaged over all positions of an 11×11 Gaussian window of deviation 1.5 that lie inside the map; means, variances
    and covariance are the window's, :math:`c_1 = (0.01 L)^2`, :math:`c_2 = (0.03 L)^2` :cite:p:`wang2004`. The range L
    is 1 where neither map has negative values and 2 otherwise. On maps too small for it the window is the largest that
    fits.

    It is made for pictures: means and covariance both change sign with a map, so that a map and its negative may count
    as alike.
    """
    if first.ndim != 3 or first.shape != second.shape:
        raise ShapeError(
            f"got maps of shapes {tuple(first.shape)} and {tuple(second.shape)}; both must be (batch, height, width)"
        )
    undefined = _zero(first) | _zero(second)
    first, second = (_unit(values.detach().double().flatten(1)).view_as(values) for values in (first, second))
    negative = torch.minimum(first.flatten(1).amin(dim=1), second.flatten(1).amin(dim=1)) < 0
    spread = torch.where(negative, 2.0, 1.0).to(first)[:, None, None]
    c1, c2 = ((share * spread) ** 2 for share in STABLE)
    mean_a, mean_b, square_a, square_b, product = (
        _windowed(values) for values in (first, second, first * first, second * second, first * second)
    )
    both = mean_a * mean_b
    alike = (2 * both + c1) * (2 * (product - both) + c2)
    size = (mean_a**2 + mean_b**2 + c1) * (square_a - mean_a**2 + square_b - mean_b**2 + c2)
    return (alike / size).mean(dim=(1, 2)).masked_fill(undefined, torch.nan)


SIMILARITIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "spearman": spearman,
    "pearson": pearson,
    "cosine": cosine,
    "ssim": ssim,
}


def ranks(values: Tensor) -> Tensor:
    """Return the rank of each value within its row, (batch, n), from 1; equal values share the mean of their ranks.

    Values count as equal when rounding alone may have parted them: enlarging a coarse map makes many that are equal on
    paper, and which of them come out equal depends on the batch.

    >>> ranks(torch.tensor([[30.0, 10.0, 30.0, 20.0]]))
    tensor([[3.5000, 1.0000, 3.5000, 2.0000]], dtype=torch.float64)
    """
    exact = values.detach() if values.is_floating_point() else values.double()
    near = ROUNDING * torch.finfo(exact.dtype).eps
    mean_ranks = torch.empty(values.shape, dtype=torch.float64, device=values.device)
    for row, line in enumerate(exact):
        rising, order = line.double().sort()
        sizes = rising.abs().clamp(min=rising.abs().mean())  # what cancels keeps the error of what it came from
        parted = rising.diff() > near * torch.maximum(sizes[1:], sizes[:-1])
        group = torch.cat([parted.new_zeros(1), parted]).cumsum(dim=0)
        count = torch.zeros_like(rising).index_add_(0, group, torch.ones_like(rising))  # of each group; then zeros
        mean_ranks[row, order] = (count.cumsum(dim=0) - (count - 1) / 2)[group]
    return mean_ranks


def _flat(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    if first.ndim < 2 or first.shape != second.shape:
        raise ShapeError(
            f"got maps of shapes {tuple(first.shape)} and {tuple(second.shape)}; both must be (batch, height, width)"
        )
    return first.detach().double().flatten(1), second.detach().double().flatten(1)


def _unit(values: Tensor) -> Tensor:
    """Divide each row by its largest absolute value, so that squares neither vanish nor overflow."""
    most = values.abs().amax(dim=1, keepdim=True)
    return values / torch.where(most > 0, most, 1.0)


def _correlation(first: Tensor, second: Tensor) -> Tensor:
    first, second = (values - values.mean(dim=1, keepdim=True) for values in (first, second))
    return _cosine(first, second)


def _cosine(first: Tensor, second: Tensor) -> Tensor:
    # one root of the product, not a product of roots: the cosine of a map with itself is then 1 to the last digit
    lengths = (first.square().sum(dim=1) * second.square().sum(dim=1)).sqrt()
    return (first * second).sum(dim=1) / lengths


def _zero(values: Tensor) -> Tensor:
    return (values == 0).flatten(1).all(dim=1)


def _windowed(values: Tensor) -> Tensor:
    """Return the Gaussian mean at every position whose window lies inside the map."""
    height, width = values.shape[-2:]
    radius = min(RADIUS, (min(height, width) - 1) // 2)
    offsets = torch.arange(-radius, radius + 1, dtype=values.dtype, device=values.device)
    weights = torch.exp(-offsets.square() / (2 * SIGMA**2))
    weights = weights / weights.sum()
    rows = F.conv2d(values[:, None], weights[None, None, :, None])
    return F.conv2d(rows, weights[None, None, None, :])[:, 0]
