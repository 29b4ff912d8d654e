"""Faithfulness estimate: whether groups of pixels with more attribution lower the score more when they are removed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement
from sightline.metrics.correlation.agreement import agreement
from sightline.metrics.faithfulness.options import PerturbationOptions
from sightline.metrics.removal import group_masks, group_sums, logits_without, stepped_groups
from sightline.models.adapter import Adapter
from sightline.perturb.curve import STEP, Score, Tie
from sightline.perturb.fill import FillOption, removing_fill
from sightline.registry import METRICS
from sightline.types import Passes


@METRICS.register(
    "faithfulness_estimate",
    family="correlation",
    cite="alvarezmelis2018senn",
    cost="225 forward",
    direction="higher",
    parity="Quantus 0.6 FaithfulnessEstimate, live, 1e-5",
)
@dataclass(frozen=True, slots=True)
class FaithfulnessEstimate(PerturbationOptions):
    r"""Pearson's correlation of the attribution of groups of pixels with the drop of the score without each group.

    .. math:: \operatorname{corr}_{k}\Bigl( \sum_{i \in G_k} a_i,\; p(x) - p(x_{\setminus G_k}) \Bigr)

    where :math:`G_1, G_2, \dots` are `step` pixels each, in falling order of the map, and each group is removed alone
    :cite:p:`alvarezmelis2018senn`. The paper removes features one by one; groups make it affordable on images, as
    Quantus does. Values count, not only their order: `saco` and `single_deletion` ask for the order.

    It costs a pass per group and one for the image.

    Edge cases: where all groups have the same attribution it is NaN, "equal attributions"; a constant map is flagged;
    where no group changes the score it is NaN, "the score does not change".

    Attributes:
        fill: what removed pixels become: black, zero (after normalisation), white, mean, blur.
    """

    step: int = STEP
    fill: FillOption = "black"
    score: Score = "probability"
    tie: Tie = "index"
    seed: int = 0
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        removing_fill(self.fill)
        if self.step < 1:
            raise RecipeError(f"got step={self.step}; at least one pixel is removed at a time, so step is 1 or more")

    def __call__(self, case: Case, /) -> Measurement:
        target = case.followed(self.score)
        size = (case.maps.shape[-2], case.maps.shape[-1])
        labels, count = stepped_groups(case.order(self.tie, self.seed), size, self.step)
        logits = logits_without(case, group_masks(labels, count), removing_fill(self.fill))
        drops = case.read(target, case.clean)[:, None] - case.read(target, logits)
        return agreement(case, group_sums(case.maps, labels, count), drops, "pearson")

    def cost(self, model: Adapter, /) -> Passes:
        return Passes(forward=1.0 + math.ceil(math.prod(model.default_size) / self.step))
