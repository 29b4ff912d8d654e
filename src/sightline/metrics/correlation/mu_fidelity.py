"""MuFidelity: whether the sum of the map over random cells says in which order their removal lowers the score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement
from sightline.metrics.correlation.agreement import agreement
from sightline.metrics.correlation.subsets import random_cells
from sightline.metrics.faithfulness.options import PerturbationOptions
from sightline.metrics.removal import sums_and_drops
from sightline.models.adapter import Adapter
from sightline.perturb.curve import Score
from sightline.perturb.fill import FillOption, removing_fill
from sightline.registry import METRICS
from sightline.types import Passes


@METRICS.register(
    "mu_fidelity",
    family="correlation",
    cite="bhatt2020, fel2022",
    cost="201 forward",
    direction="higher",
    parity="closed form; scipy.stats.spearmanr on changes computed by hand, 1e-9",
)
@dataclass(frozen=True, slots=True)
class MuFidelity(PerturbationOptions):
    r"""Spearman's correlation of the sum of the map over random cells with the drop of the score without them.

    .. math:: \rho_{S}\Bigl( \sum_{i \in S} a_i,\; s(x) - s(x_{\setminus S}) \Bigr)

    over random subsets :math:`S` of a fifth of the cells of a 9×9 grid: `faithfulness_correlation`
    :cite:p:`bhatt2020` with cells for pixels and ranks for values, as in Xplique :cite:p:`fel2022`. Whole cells take
    away what a network sees, where scattered pixels hardly do.

    It costs `samples` + 1 forward passes.

    Edge cases: where all sums are equal it is NaN, "equal attributions"; a constant map is flagged; where no subset
    changes the score it is NaN, "the score does not change".

    Attributes:
        grid: rows and columns of cells.
        share: of the cells that a subset has, above 0 and below 1.
        samples: how many subsets.
        fill: what removed cells become: zero (after normalisation), black, white, mean, blur.
        seed: of the subsets, which depend on the image and not on its batch.
    """

    grid: tuple[int, int] = (9, 9)
    share: float = 0.2
    samples: int = 200
    fill: FillOption = "zero"
    score: Score = "logit"
    seed: int = 0
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        removing_fill(self.fill)
        if min(self.grid) < 1 or not 0 < self.share < 1 or self.samples < 2:
            raise RecipeError(
                f"got grid={self.grid}, share={self.share}, samples={self.samples}; "
                "give a grid of one cell or more, a share between 0 and 1, and two samples at least"
            )

    def __call__(self, case: Case, /) -> Measurement:
        size = max(1, round(self.share * self.grid[0] * self.grid[1]))
        subsets = random_cells(case, self.grid, size, self.samples, self.seed)
        return agreement(
            case, *sums_and_drops(case, subsets, removing_fill(self.fill), case.followed(self.score)), "spearman"
        )

    def cost(self, model: Adapter, /) -> Passes:
        return Passes(forward=1.0 + self.samples)
