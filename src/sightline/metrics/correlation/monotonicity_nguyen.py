"""Monotonicity of Nguyen and Martínez: whether pixels with more attribution matter more when they are randomised."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement
from sightline.metrics.correlation.agreement import agreement
from sightline.metrics.faithfulness.options import PerturbationOptions
from sightline.metrics.removal import group_masks, group_sums, logits_without, stepped_groups
from sightline.models.adapter import Adapter
from sightline.perturb.curve import STEP, Score, Tie
from sightline.perturb.fill import Noise
from sightline.registry import METRICS
from sightline.types import Passes


@METRICS.register(
    "monotonicity_nguyen",
    family="correlation",
    cite="nguyen2020",
    cost="673 forward",
    direction="higher",
    parity="Quantus 0.6 MonotonicityCorrelation on the same noise, live, 1e-6",
)
@dataclass(frozen=True, slots=True)
class MonotonicityNguyen(PerturbationOptions):
    r"""Spearman's correlation of absolute attributions with the expected squared change under random colours.

    .. math:: \rho_k\Bigl( \sum_{i \in G_k} |a_i|,\; \mathbb{E}_z \bigl(p(x) - p(x_{G_k := z})\bigr)^2 \Bigr)

    where :math:`G_1, G_2, \dots` are `step` pixels each, in the order of their magnitude, and :math:`z` are random
    colours :cite:p:`nguyen2020`. It is a correlation, unlike the yes or no of `monotonicity_arya`, and asks for
    magnitudes, unlike `monotonicity`: pixels against the class must be large too.

    The paper divides by the squared score of the image, which is the same for all groups and leaves the ranks as they
    are. It costs `samples` passes per group and one for the image.

    Edge cases: where all groups have the same attribution it is NaN, "equal attributions"; a constant map is flagged;
    where no group changes the score it is NaN, "the score does not change".

    Attributes:
        samples: draws of random colours per group.
        seed: of the colours and of random ties.
    """

    step: int = STEP
    samples: int = 3
    score: Score = "probability"
    tie: Tie = "index"
    seed: int = 0
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        if self.step < 1 or self.samples < 1:
            raise RecipeError(f"got step={self.step}, samples={self.samples}; each must be 1 or more")

    def __call__(self, case: Case, /) -> Measurement:
        target = case.followed(self.score)
        size = (case.maps.shape[-2], case.maps.shape[-1])
        labels, count = stepped_groups(case.order(self.tie, self.seed, "magnitude"), size, self.step)
        clean = case.read(target, case.clean)[:, None]
        squares = []
        for sample in range(self.samples):
            logits = logits_without(case, group_masks(labels, count), Noise(self.seed + sample))
            squares.append((clean - case.read(target, logits)).double().square())
        return agreement(case, group_sums(case.maps.abs(), labels, count), torch.stack(squares).mean(dim=0), "spearman")

    def cost(self, model: Adapter, /) -> Passes:
        groups = math.ceil(math.prod(model.default_size) / self.step)
        return Passes(forward=1.0 + groups * self.samples)
