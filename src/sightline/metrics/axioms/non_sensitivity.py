"""Non-sensitivity: whether the map is zero where, and only where, the model does not look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement
from sightline.metrics.faithfulness.options import PerturbationOptions
from sightline.metrics.removal import group_masks, logits_without
from sightline.models.adapter import Adapter
from sightline.perturb.curve import Score
from sightline.perturb.fill import NoiseOption, removing_fill
from sightline.perturb.segments import grid_segments
from sightline.registry import METRICS
from sightline.types import Passes


@METRICS.register(
    "non_sensitivity",
    family="axioms",
    cite="nguyen2020",
    cost="148 forward",
    direction="lower",
    parity="Quantus 0.6 NonSensitivity where a cell is a pixel, live, exactly",
)
@dataclass(frozen=True, slots=True)
class NonSensitivity(PerturbationOptions):
    r"""Share of cells with a zero map that the model looks at, or with a map where it does not.

    .. math:: \frac{|A_0 \,\triangle\, X_0|}{\text{cells}}, \qquad A_0 = \{k : a_k = 0\}, \quad
        X_0 = \bigl\{k : \mathbb{E}_z \bigl(p(x) - p(x_{k := z})\bigr)^2 = 0\bigr\}

    the symmetric difference of the cells without attribution and those the score does not depend on, under random
    colours :cite:p:`nguyen2020`. The paper counts single features; on images cells of a grid take their place, and the
    count is divided by how many there are. Where the model looks at everything, as most do, every exact zero of the map
    counts against it.

    It costs `samples` passes per cell and one for the image.

    Edge cases: a cell is zero where none of its pixels exceeds `threshold` times the map's largest magnitude, and
    unseen where the score changes by less than `threshold`; a map of zeros has zero cells only; constant maps are
    flagged.

    Attributes:
        grid: rows and columns of cells.
        samples: draws of random colours per cell; one suffices for the other fills.
        fill: what a cell becomes: noise (random colours), black, zero (after normalisation), white, mean, blur.
        threshold: what counts as zero.
        seed: of the colours.
    """

    grid: tuple[int, int] = (7, 7)
    samples: int = 3
    fill: NoiseOption = "noise"
    threshold: float = 1e-5
    score: Score = "probability"
    seed: int = 0
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __post_init__(self) -> None:
        removing_fill(self.fill)
        if min(self.grid) < 1 or self.samples < 1 or not 0 <= self.threshold < 1:
            raise RecipeError(
                f"got grid={self.grid}, samples={self.samples}, threshold={self.threshold}; "
                "give a cell and a sample at least, and a threshold of 0 or more, below 1"
            )

    def __call__(self, case: Case, /) -> Measurement:
        size = (case.maps.shape[-2], case.maps.shape[-1])
        segments = grid_segments(size, self._cells(size), device=case.maps.device)
        labels = segments.labels.expand(case.maps.shape)
        unseen = self._unseen(case, labels, segments.count)
        differing = unseen ^ self._zero(case.maps, labels, segments.count)
        return Measurement(differing.double().mean(dim=1), flags=case.flags)

    def _unseen(self, case: Case, labels: Tensor, count: int) -> Tensor:
        target = case.followed(self.score)
        clean = case.read(target, case.clean)[:, None]
        squares = []
        for sample in range(self.samples):
            fill = removing_fill(self.fill, seed=self.seed + sample)
            change = clean - case.read(target, logits_without(case, group_masks(labels, count), fill))
            squares.append(change.double().square())
        return torch.stack(squares).mean(dim=0).sqrt() < self.threshold

    def _zero(self, maps: Tensor, labels: Tensor, count: int) -> Tensor:
        size = maps.double().abs()
        most = size.amax(dim=(1, 2), keepdim=True)
        seen = (size > self.threshold * most).double()
        held = seen.new_zeros(len(maps), count).scatter_add_(1, labels.flatten(1), seen.flatten(1))
        return held == 0

    def _cells(self, size: tuple[int, int]) -> tuple[int, int]:
        return min(self.grid[0], size[0]), min(self.grid[1], size[1])

    def cost(self, model: Adapter, /) -> Passes:
        rows, columns = self._cells(model.default_size)
        return Passes(forward=1.0 + rows * columns * self.samples)
