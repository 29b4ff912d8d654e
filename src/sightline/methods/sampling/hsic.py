"""HSIC attribution: the statistical dependence of the score on the presence of a cell of the image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from sightline.catalogue.ranges import Range
from sightline.methods.multi_target import MultiTarget
from sightline.methods.sampling.coalitions import FillOrDropped, check_fill, coalition_fill, coalition_scores
from sightline.methods.sampling.dropped import DROPPED, check_cells, dropped_share, with_tokens
from sightline.methods.scored import Score, scored
from sightline.models.adapter import Adapter
from sightline.perturb.designs import orthogonal_masks
from sightline.perturb.segments import grid_segments
from sightline.registry import METHODS
from sightline.seeds import generators
from sightline.types import Attribution, Passes, Target, TokenGrid

Variant = Literal["sobol", "latin", "orthogonal"]
Width = Literal["median", "distance"]
SMALLEST = 1e-12  # width of a kernel; scores that are all equal depend on nothing
MOST_CELLS = 145  # from side to side: as many dimensions as the Sobol sequence is tabulated for


@METHODS.register(
    "hsic",
    family="sampling",
    cite="novello2022",
    cost="1 forward per sample; about half of one with blank='dropped'",
    parity="the estimator written out with centred kernel matrices, 1e-12; no reference numbers",
)
@dataclass(frozen=True, slots=True)
class Dependence(MultiTarget):
    r"""HSIC attribution: the Hilbert–Schmidt independence criterion between the presence of a cell and the score.

    .. math:: A_c = \frac1p \operatorname{tr}(K_c H L H) = \frac2p\, \tilde z_c^\top L\, \tilde z_c, \qquad
        L_{ij} = \exp\Bigl(-\frac{(s_i - s_j)^2}{2\sigma^2}\Bigr), \qquad \tilde z_c = H z_c

    Each of p masks keeps some cells of a grid and fills the others; :math:`z_{ic}` says whether mask i keeps cell c,
    :math:`s_i` is the score under it, :math:`K_c = \tfrac32 - (z_{ic} - z_{jc})^2` and :math:`H` centres. Up to the
    sampling error the map is zero for a cell on which the score does not depend in any way, and it is never negative:
    evidence for and against a class look the same. A black-box method for any model; all classes share the passes.

    The masks are the first binary digits of a Sobol sequence, as in the authors' library, the same for every image; the
    paper draws a Latin hypercube, ``variant='latin'``, in which each cell is kept by exactly half of the masks. In
    ``variant='orthogonal'``, random orthogonal arrays, every two and three cells are moreover kept and removed together
    equally often, so the effect of one is not read as that of another: half of the samples then gave the standard error
    of independent ones on drawn shapes with 12 cells, and less was gained with 49 (docs/guide/speed.md).

    Attributes:
        samples: how many masks.
        cells: of the grid, from top to bottom and from left to right.
        variant: of the masks: sobol, latin or orthogonal.
        seed: of the Latin hypercube or the arrays; a Sobol sequence has nothing random.
        width: the kernel's σ: the median of the scores, as the authors' library, or the median distance between two of
            them, which does not change when a constant is added to all.
        blank: the fill of a removed cell: mean, the mean colour of the training set, as the authors, black, white,
            blur, or a number, that value after normalisation; or dropped: on a transformer the tokens of patches whose
            centre lies in the cell are left out instead.
        score: the score of the class: probability, logit or log_probability; None, which localised better in our tests,
            for the target itself.
    """

    samples: Annotated[int, Range(2, 5000)] = 500  # the kernel is a matrix of all their pairs
    cells: Annotated[int, Range(1, MOST_CELLS)] = 8
    variant: Variant = "sobol"
    seed: int = 0
    width: Width = "median"
    blank: FillOrDropped = "mean"
    score: Score | None = None

    def __post_init__(self) -> None:
        check_fill(self.blank, segments=False, dropped=True)

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        size = (images.shape[-2], images.shape[-1])
        cells = (min(self.cells, size[0]), min(self.cells, size[1]))
        masks = self._masks(images, cells[0] * cells[1])
        pieces = [grid_segments(size, cells, device=images.device)] * len(images)
        if self.blank == DROPPED:
            check_cells(with_tokens(model), images, cells)
        fill = coalition_fill(model, images, self.blank)
        score_targets = [scored(target, self.score, model) for target in targets]
        scores = coalition_scores(model, images, fill, pieces, masks, score_targets)
        criteria = [dependence(mask, score, self.width) for mask, score in zip(masks, scores, strict=True)]
        grid = TokenGrid(*cells, image=size)
        return [Attribution(values.unflatten(1, cells)[None], grid) for values in torch.stack(criteria, dim=1)]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(self.samples * (dropped_share(model, 0.5) if self.blank == DROPPED else 1))

    def _masks(self, images: Tensor, cells: int) -> list[Tensor]:
        """Return for each image which cells its masks keep, shape (sample, cell), bool."""
        if self.variant == "latin":
            return [latin_masks(self.samples, cells, generator) for generator in generators(self.seed, images)]
        if self.variant == "orthogonal":
            return [orthogonal_masks(self.samples, cells, generator) for generator in generators(self.seed, images)]
        return [sobol_masks(self.samples, cells)] * len(images)


def sobol_masks(samples: int, cells: int) -> Tensor:
    """Round the points of a Sobol sequence, without its first, which is zero: shape (sample, cell), bool."""
    engine = torch.quasirandom.SobolEngine(cells)
    points: Tensor = engine.fast_forward(1).draw(samples, dtype=torch.float64)
    return points.round().bool()


def latin_masks(samples: int, cells: int, generator: torch.Generator) -> Tensor:
    """Round a Latin hypercube: each cell is kept in half of the samples, drawn at random: (sample, cell), bool."""
    ranks = torch.rand(samples, cells, generator=generator, dtype=torch.float64).argsort(dim=0)
    return ranks >= samples - samples // 2


def dependence(masks: Tensor, scores: Tensor, width: Width = "median") -> Tensor:
    """Return the HSIC between each cell and each target's score, shape (target, cell).

    Args:
        masks: which cells are kept, shape (sample, cell), bool.
        scores: under each mask, shape (target, sample).
        width: of the kernel; see `Dependence`.
    """
    presence = masks.to(scores.device, torch.float64)
    presence = presence - presence.mean(dim=0)
    pairs = torch.ones(len(presence), len(presence), dtype=torch.bool, device=scores.device).triu(1)
    criteria = []
    for score in scores.double():
        differences = score[:, None] - score
        lengths = score if width == "median" else differences[pairs].abs()
        sigma = lengths.quantile(0.5).abs().clamp(min=SMALLEST)
        kernel = torch.expm1(-differences.square() / (2 * sigma.square()))  # minus one, which centring removes anyway
        criteria.append(2 / len(score) * (presence * (kernel @ presence)).sum(dim=0))
    return torch.stack(criteria).to(scores.dtype)
