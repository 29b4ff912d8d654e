"""Soundness: the share of the attribution whose pixels make the class more likely as they enter the image."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement, flags_where, join_flags
from sightline.metrics.faithfulness.options import PerturbationOptions
from sightline.metrics.removal import group_sums, stepped_groups
from sightline.models.adapter import Adapter
from sightline.perturb.curve import Curve, Score, Tie
from sightline.perturb.fill import Fill, FillOption, InPaint, removing_fill
from sightline.perturb.impute import impute
from sightline.registry import METRICS
from sightline.types import Passes

Filling = Literal["impute"] | FillOption


@METRICS.register(
    "soundness",
    family="perturbation",
    cite="li2024",
    cost="21 forward",
    direction="higher",
    parity="closed form",
)
@dataclass(frozen=True, slots=True)
class Soundness(PerturbationOptions):
    r"""Share of the positive attribution that enters in steps which raise the class probability.

    .. math:: \frac{\sum_{k \in K} A_k}{\sum_k A_k}, \qquad
        K = \Bigl\{ k : p_k - \max_{j < k} p_j > \text{threshold} \Bigr\}

    where :math:`A_k` is the positive attribution of the pixels of step :math:`k`, in falling order of the map, and
    :math:`p_k` the probability once they are in; pixels that are not yet in are imputed from their neighbours as `road`
    does :cite:p:`li2024`. Attribution given to what tells the model nothing new is unsound. The paper looks at the
    accuracy of a set of images, this at the probability of each. Its other half, completeness, is the loss without the
    pixels above a quantile of the map: ``road(variant='most')``.

    A map that puts everything into the first step is sound at once; read the two together. It costs a pass per step and
    one for the image.

    Edge cases: a map without a positive value is NaN, "no positive value"; a constant map is judged by the order of its
    ties and flagged.

    Attributes:
        steps: how many.
        threshold: what a step must add to the highest probability so far.
        fill: what pixels are before they enter: impute (from their neighbours), blur, mean, zero, black, white.
    """

    steps: int = 20
    threshold: float = 0.01
    fill: Filling = "impute"
    score: Score = "probability"
    tie: Tie = "index"
    seed: int = 0
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __post_init__(self) -> None:
        _ = self.filling
        if self.steps < 2 or not 0 <= self.threshold < float("inf"):
            raise RecipeError(f"got steps={self.steps}, threshold={self.threshold}; give 2 or more, and 0 or more")

    @property
    def filling(self) -> Fill:
        return InPaint(imputed) if self.fill == "impute" else removing_fill(self.fill)

    def __call__(self, case: Case, /) -> Measurement:
        size = (case.maps.shape[-2], case.maps.shape[-1])
        step = self._step(size)
        curve = case.curve(Curve("insert", self.filling, step, self.score, self.tie, self.seed)).double()
        raised = curve[:, 1:] - curve.cummax(dim=1).values[:, :-1] > self.threshold
        labels, count = stepped_groups(case.order(self.tie, self.seed), size, step)
        entered = group_sums(case.maps.clamp(min=0), labels, count)
        total = entered.sum(dim=1)
        values = (entered * raised).sum(dim=1) / total.where(total > 0, float("nan"))
        flags = join_flags(case.flags, flags_where(total == 0, "no positive value"))
        return Measurement(values, curve, flags)

    def _step(self, size: tuple[int, int]) -> int:
        return math.ceil(math.prod(size) / self.steps)

    def cost(self, model: Adapter, /) -> Passes:
        pixels = math.prod(model.default_size)
        return Passes(forward=1.0 + math.ceil(pixels / self._step(model.default_size)))


def imputed(pictures: Tensor, missing: Tensor) -> Tensor:
    """Fill the missing pixels of pictures from their neighbours; see `impute`."""
    return torch.stack([impute(picture, holes) for picture, holes in zip(pictures, missing, strict=True)])
