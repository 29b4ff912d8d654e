"""Single deletion: whether the cells that matter more when each is deleted alone have more attribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement
from sightline.metrics.correlation.agreement import agreement
from sightline.metrics.faithfulness.options import PerturbationOptions
from sightline.metrics.removal import group_masks, group_sums, logits_without
from sightline.models.adapter import Adapter
from sightline.perturb.curve import Score
from sightline.perturb.fill import Fill, NoiseOption, removing_fill
from sightline.perturb.segments import grid_segments
from sightline.registry import METRICS
from sightline.types import Passes


@METRICS.register(
    "single_deletion",
    family="correlation",
    cite="hesse2024",
    cost="17 forward",
    direction="higher",
    parity="scipy.stats.spearmanr on changes computed by hand, 1e-9",
)
@dataclass(frozen=True, slots=True)
class SingleDeletion(PerturbationOptions):
    r"""Spearman's correlation of the attribution of each cell with the drop of the logit when that cell is deleted.

    .. math:: \rho\Bigl( \bigl(\textstyle\sum_{i \in k} a_i\bigr)_k,\; \bigl(s(x) - s(x_{\setminus k})\bigr)_k \Bigr)

    over the cells :math:`k` of a 4×4 grid, each deleted alone :cite:p:`hesse2024`. Deleting one cell leaves the image
    closer to what the model was trained on than deleting most of it, and neighbours that say the same do not hide each
    other's removal one by one. The in-domain protocol (IDSDS) is this metric on a model fine-tuned on images that lack
    a random cell: give that model.

    It costs a pass per cell and one for the image. A map in random order scores near 0, with a standard deviation of
    about 0.26 for sixteen cells: average over images.

    Edge cases: where all cells have the same attribution it is NaN, "equal attributions", and so it is for a constant
    map, which is flagged; where no deletion changes the score it is NaN, "the score does not change".

    Attributes:
        grid: rows and columns of cells.
        fill: what a deleted cell becomes: zero (after normalisation), blur, black, white, mean, noise (random colours).
        seed: of the noise.
    """

    grid: tuple[int, int] = (4, 4)
    fill: NoiseOption = "zero"
    radius: int = 5
    sigma: float = 5.0
    score: Score = "logit"
    seed: int = 0
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        _ = self.filling
        if min(self.grid) < 1 or self.grid[0] * self.grid[1] < 2:
            raise RecipeError(f"got grid={self.grid}; a correlation needs two cells at least")

    @property
    def filling(self) -> Fill:
        return removing_fill(self.fill, self.radius, self.sigma, self.seed)

    def __call__(self, case: Case, /) -> Measurement:
        labels, count = self.cells(case)
        target = case.followed(self.score)
        logits = case.once_for_images(
            ("without each cell", self.grid, self.filling),
            lambda: logits_without(case, group_masks(labels, count), self.filling),
        )
        drops = case.read(target, case.clean)[:, None] - case.read(target, logits)
        return agreement(case, group_sums(case.maps, labels, count), drops, "spearman")

    def cells(self, case: Case) -> tuple[Tensor, int]:
        """Return the cell of each pixel, (batch, height, width), and how many there are."""
        size = (case.maps.shape[-2], case.maps.shape[-1])
        segments = grid_segments(size, _fitting(self.grid, size), device=case.maps.device)
        return segments.labels.expand(case.maps.shape), segments.count

    def cost(self, model: Adapter, /) -> Passes:
        rows, columns = _fitting(self.grid, model.default_size)
        return Passes(forward=1.0 + rows * columns)


def _fitting(grid: tuple[int, int], size: tuple[int, int]) -> tuple[int, int]:
    """Return the grid, with no more cells than pixels."""
    return min(grid[0], size[0]), min(grid[1], size[1])
