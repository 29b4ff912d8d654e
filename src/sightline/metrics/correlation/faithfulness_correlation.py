"""Faithfulness correlation: whether the map summed over random pixels says how much the score drops without them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from sightline.catalogue.ranges import Range
from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement
from sightline.metrics.correlation.agreement import agreement
from sightline.metrics.correlation.subsets import random_pixels
from sightline.metrics.faithfulness.options import PerturbationOptions
from sightline.metrics.removal import sums_and_drops
from sightline.models.adapter import Adapter
from sightline.perturb.curve import STEP, Score
from sightline.perturb.fill import FillOption, removing_fill
from sightline.registry import METRICS
from sightline.types import Passes


@METRICS.register(
    "faithfulness_correlation",
    family="correlation",
    cite="bhatt2020",
    cost="101 forward",
    direction="higher",
    parity="Quantus 0.6 FaithfulnessCorrelation on the same subsets, live, 1e-5",
)
@dataclass(frozen=True, slots=True)
class FaithfulnessCorrelation(PerturbationOptions):
    r"""Pearson's correlation of the sum of the map over random pixels with the drop of the score without them.

    .. math:: \operatorname{corr}_{S}\Bigl( \sum_{i \in S} a_i,\; p(x) - p(x_{\setminus S}) \Bigr)

    over random subsets :math:`S` of `size` pixels, the same number in each :cite:p:`bhatt2020`. Scattered pixels carry
    little of what a network sees, and what they carry is much the same in every subset: for coarse maps and small
    subsets the correlation is small whatever the map, and many samples are needed. `mu_fidelity` removes whole cells.

    It costs `samples` + 1 forward passes.

    Edge cases: where all sums are equal it is NaN, "equal attributions", and so it is for a constant map, which is
    flagged; where no subset changes the score it is NaN, "the score does not change". An image with fewer pixels than
    `size` has one subset, all of it.

    Attributes:
        size: pixels in a subset.
        samples: how many subsets.
        fill: what removed pixels become: black, zero (after normalisation), white, mean, blur.
        seed: of the subsets, which depend on the image and not on its batch.
    """

    size: Annotated[int, Range(1, 100_000_000)] = STEP  # a number of pixels, not a length
    samples: int = 100
    fill: FillOption = "black"
    score: Score = "probability"
    seed: int = 0
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        removing_fill(self.fill)
        if self.size < 1 or self.samples < 2:
            raise RecipeError(f"got size={self.size}, samples={self.samples}; give one pixel and two samples at least")

    def __call__(self, case: Case, /) -> Measurement:
        subsets = random_pixels(case, [self.size] * self.samples, self.seed)
        return agreement(
            case, *sums_and_drops(case, subsets, removing_fill(self.fill), case.followed(self.score)), "pearson"
        )

    def cost(self, model: Adapter, /) -> Passes:
        return Passes(forward=1.0 + self.samples)
