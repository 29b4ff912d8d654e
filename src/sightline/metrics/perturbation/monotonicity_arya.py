"""Monotonicity of Arya et al.: whether the score never falls as pixels are added, the least important first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from sightline.metrics.case import Case, Measurement
from sightline.metrics.faithfulness.options import PerturbationOptions
from sightline.models.adapter import Adapter
from sightline.perturb.curve import STEP, Curve, Score, Tie
from sightline.perturb.fill import FillOption, removing_fill
from sightline.registry import METRICS
from sightline.types import Passes

Variant = Literal["all", "share"]


@METRICS.register(
    "monotonicity_arya",
    family="perturbation",
    cite="arya2019",
    cost="225 forward",
    direction="higher",
    parity="closed form",
)
@dataclass(frozen=True, slots=True)
class MonotonicityArya(PerturbationOptions):
    r"""Whether the score never falls as pixels enter a black image, the least important first: 1 or 0.

    .. math:: \mathbb{1}\bigl[\, p_0 \le p_1 \le \dots \le p_n \,\bigr]

    where :math:`p_k` is the class probability once the :math:`k \cdot \mathrm{step}` least important pixels have
    entered :cite:p:`arya2019`. Made for tables of few features; on images one small fall in hundreds of steps is enough
    for 0, so ``variant='share'`` gives the share of steps that do not fall. Rising steadily is no merit of the order
    alone: on an additive model with positive parts every order rises.

    Quantus' Monotonicity fills the pixels it means to add with the baseline once more, so that nothing ever changes
    and every map passes; this is the paper's. It costs :math:`n + 1` forward passes.

    Edge cases: a constant map is judged by the order of its ties and flagged; steps of equal score do not fall.

    Attributes:
        variant: all, or share: the share of the steps that do not fall.
        fill: the image that pixels enter: black, zero (after normalisation), white, mean, blur.
    """

    variant: Variant = "all"
    step: int = STEP
    fill: FillOption = "black"
    radius: int = 5
    sigma: float = 5.0
    score: Score = "probability"
    tie: Tie = "index"
    seed: int = 0
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __post_init__(self) -> None:
        _ = self.settings

    @property
    def settings(self) -> Curve:
        fill = removing_fill(self.fill, self.radius, self.sigma)
        return Curve("insert", fill, self.step, self.score, self.tie, self.seed, "negative")

    def __call__(self, case: Case, /) -> Measurement:
        curve = case.curve(self.settings)
        rising = (curve.diff(dim=1) >= 0).double()
        return Measurement(rising.amin(dim=1) if self.variant == "all" else rising.mean(dim=1), curve, case.flags)

    def cost(self, model: Adapter, /) -> Passes:
        return Passes(forward=self.settings.passes(model))
