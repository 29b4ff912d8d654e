"""SaCo: whether groups of pixels with more attribution matter more, weighed by how much more they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement, flags_where, join_flags
from sightline.metrics.correlation.agreement import UNEQUAL
from sightline.metrics.faithfulness.options import PerturbationOptions
from sightline.metrics.removal import group_masks, group_sums, logits_without, ranked_groups
from sightline.models.adapter import Adapter
from sightline.perturb.curve import Score, Tie
from sightline.perturb.fill import FillOption, removing_fill
from sightline.registry import METRICS
from sightline.types import Passes


@METRICS.register(
    "saco", family="correlation", cite="wu2024", cost="11 forward", direction="higher", parity="closed form"
)
@dataclass(frozen=True, slots=True)
class Saco(PerturbationOptions):
    r"""Salience-guided faithfulness coefficient: agreement in order of groups of pixels and of their effects.

    .. math:: \frac{\sum_{i<j} w_{ij}}{\sum_{i<j} |w_{ij}|}, \qquad
        w_{ij} = \begin{cases} s_i - s_j & \Delta_i \ge \Delta_j \\ s_j - s_i & \text{otherwise} \end{cases}

    The pixels in falling order of the map are cut into `groups` of equal size; :math:`s_i` is the sum of the map in
    group :math:`i` and :math:`\Delta_i` the drop of the class probability when that group alone is removed
    :cite:p:`wu2024`. A pair of groups in the right order adds its difference in attribution, one in the wrong order
    takes it off, so confident mistakes weigh most. 1 is a map whose order is right throughout; one in random order
    scores about 0.

    It costs a pass per group and one for the image. The fill is the image's own mean colour.

    Edge cases: groups of equal attribution weigh nothing; where all are equal the metric is NaN, "equal attributions",
    and a constant map is flagged.

    Attributes:
        groups: how many, K.
        fill: what removed pixels become: mean, zero (after normalisation), blur, black, white.
    """

    groups: int = 10
    fill: FillOption = "mean"
    radius: int = 5
    sigma: float = 5.0
    score: Score = "probability"
    tie: Tie = "index"
    seed: int = 0
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        removing_fill(self.fill, self.radius, self.sigma)
        if self.groups < 2:
            raise RecipeError(f"got groups={self.groups}; pairs are compared, so give 2 or more")

    def __call__(self, case: Case, /) -> Measurement:
        target = case.followed(self.score)
        size = (case.maps.shape[-2], case.maps.shape[-1])
        labels = ranked_groups(case.order(self.tie, self.seed), size, self.groups)
        logits = logits_without(
            case, group_masks(labels, self.groups), removing_fill(self.fill, self.radius, self.sigma)
        )
        drops = case.read(target, case.clean)[:, None] - case.read(target, logits)
        sizes = labels[0].flatten().bincount(minlength=self.groups).double()  # equal, but for a pixel left over
        values = saco(group_sums(case.maps, labels, self.groups) / sizes.clamp(min=1), drops.double())
        undefined = values.isnan() | case.constant.to(values.device)
        flags = join_flags(case.flags, flags_where(undefined, UNEQUAL))
        return Measurement(values.masked_fill(undefined, float("nan")), flags=flags)

    def cost(self, model: Adapter, /) -> Passes:
        return Passes(forward=1.0 + self.groups)


def saco(sums: Tensor, drops: Tensor) -> Tensor:
    """Return the coefficient of groups in falling order of their sums, (batch, group) each -> (batch,).

    >>> saco(torch.tensor([[3.0, 2.0, 0.0]]), torch.tensor([[0.5, 0.1, 0.2]]))
    tensor([0.3333])
    """
    first, second = torch.triu_indices(sums.shape[1], sums.shape[1], offset=1, device=sums.device)
    size = sums[:, first] - sums[:, second]
    weights = torch.where(drops[:, first] >= drops[:, second], size, -size)
    total = weights.abs().sum(dim=1)
    return (weights.sum(dim=1) / total.where(total > 0, float("nan"))).clamp(-1, 1)
