"""Completeness: whether attributions sum to the difference of scores between the image and a baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from sightline.metrics.case import Case, Measurement, flags_where, join_flags
from sightline.metrics.re_explain import re_explain
from sightline.models.adapter import Adapter
from sightline.perturb.fill import FillName, make_fill
from sightline.registry import METRICS
from sightline.types import Passes


@METRICS.register(
    "completeness",
    family="axioms",
    cite="sundararajan2017",
    cost="2 forward and 1 attribution",
    direction="lower",
    needs=("method",),
    parity="captum compute_convergence_delta, 1e-9",
)
@dataclass(frozen=True, slots=True)
class Completeness:
    r"""Absolute difference between the sum of the map and the change of the score from a baseline to the image.

    .. math:: \Bigl| \sum_i a_i - \bigl(s(x) - s(\tilde x)\bigr) \Bigr|

    where s is the target that was explained and :math:`\tilde x` the baseline, an image that is filled all over
    :cite:p:`sundararajan2017`. Methods that satisfy completeness, such as integrated gradients from the same baseline,
    come near 0 as their steps grow; for other methods a large value is no defect.

    The method is run again and its map summed on its own grid, for enlarging a map to image size changes its sum.

    Edge cases: with `relative`, an image that scores as its baseline is NaN, "no difference to explain"; a constant map
    is flagged.

    Attributes:
        fill: the baseline: zero (after normalisation), black, white, mean, blur.
        relative: divide by the absolute difference of the two scores.
    """

    fill: FillName = "zero"
    relative: bool = False
    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))

    def __post_init__(self) -> None:
        make_fill(self.fill)

    def __call__(self, case: Case, /) -> Measurement:
        parts = re_explain(case)
        total = torch.cat([part.map.detach().double().sum(dim=(1, 2)) for part in parts])
        baseline = case.filled(make_fill(self.fill))
        difference = case.target(case.clean.double()) - case.target(baseline.double())
        gap = (total - difference).abs()
        if not self.relative:
            return Measurement(gap.cpu(), None, case.flags)
        flags = flags_where(difference == 0, "no difference to explain")
        share = torch.where(difference == 0, torch.nan, gap / difference.abs())
        return Measurement(share.cpu(), None, join_flags(case.flags, flags))

    def cost(self, model: Adapter, /) -> Passes:
        return Passes(forward=2)
