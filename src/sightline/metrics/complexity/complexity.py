"""Complexity: how concentrated a map is on few pixels.

Neither metric runs the model: a concentrated map may be wrong. Read them beside a faithfulness metric.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sightline.metrics.case import Case, Measurement, WithoutPasses, flags_where, join_flags
from sightline.registry import METRICS

PARITY = "Quantus 0.6 to 1e-5"


@METRICS.register(
    "sparseness", family="complexity", cite="chalasani2020", cost="0 forward", direction="higher", parity=PARITY
)
@dataclass(frozen=True, slots=True)
class Sparseness(WithoutPasses):
    r"""Gini index of the map's magnitudes: 0 when all pixels are equal, near 1 when a single one is not zero.

    .. math:: \frac{\sum_{k=1}^{n} (2k - n - 1)\, |a|_{(k)}}{n \sum_{k=1}^{n} |a|_{(k)}}

    with the magnitudes :math:`|a|_{(1)} \le \dots \le |a|_{(n)}` in rising order :cite:p:`chalasani2020`. A factor
    leaves it as it is, a shift does not. Smooth, enlarged maps score low: compare maps of the same resolution.

    Edge cases: a constant map scores 0, and is flagged; a single pixel scores :math:`1 - 1/n`; a map of zeros has no
    magnitudes to compare and is NaN, "zero map".
    """

    def __call__(self, case: Case, /) -> Measurement:
        shares, zero = _shares(case)
        count = shares.shape[1]
        weights = 2 * torch.arange(1, count + 1, device=shares.device) - count - 1
        return _measure(case, (weights * shares.sort(dim=1).values).sum(dim=1) / count, zero)


@METRICS.register(
    "complexity", family="complexity", cite="bhatt2020", cost="0 forward", direction="lower", parity=PARITY
)
@dataclass(frozen=True, slots=True)
class Complexity(WithoutPasses):
    r"""Entropy of the map's magnitudes, in nats: 0 when a single pixel is not zero, log n when all are equal.

    .. math:: -\sum_i q_i \ln q_i, \qquad q_i = \frac{|a_i|}{\sum_j |a_j|}

    :cite:p:`bhatt2020`. A factor leaves it as it is, a shift does not. Its upper end grows with the image: compare
    images of the same size.

    Edge cases: a constant map scores :math:`\ln n`, and is flagged; a map of zeros is NaN, "zero map".
    """

    range: ClassVar[tuple[float, float]] = (0.0, math.inf)

    def __call__(self, case: Case, /) -> Measurement:
        shares, zero = _shares(case)
        return _measure(case, -torch.xlogy(shares, shares).sum(dim=1), zero)


def _shares(case: Case) -> tuple[Tensor, Tensor]:
    """Return each pixel's share of the map's magnitude, (batch, pixel), and which maps have none."""
    size = case.maps.flatten(1).double().abs()
    highest = size.amax(dim=1, keepdim=True)
    size = size / highest.where(highest > 0, 1)  # so that huge values do not overflow the sum
    total = size.sum(dim=1, keepdim=True)
    return size / total.where(total > 0, 1), total[:, 0] == 0


def _measure(case: Case, values: Tensor, zero: Tensor) -> Measurement:
    flags = join_flags(case.flags, flags_where(zero, "zero map"))
    return Measurement(values.masked_fill(zero, float("nan")), flags=flags)
