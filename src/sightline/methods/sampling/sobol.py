"""Sobol attribution: the total-order Sobol index of each cell of a grid of masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.multi_target import MultiTarget
from sightline.methods.sampling.coalitions import FillOption, check_fill, fill_images, split_by_image
from sightline.methods.scored import Score, scored
from sightline.models.adapter import Adapter
from sightline.models.passes import in_batches
from sightline.perturb.curve import read_scores
from sightline.perturb.segments import grid_segments
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, TokenGrid

MOST_CELLS = 102  # from side to side: two columns per cell, as many as the Sobol sequence is tabulated for
SMALLEST = 1e-12  # variance; scores that are all equal depend on nothing
Estimator = Literal["jansen", "homma", "glen"]


@METHODS.register(
    "sobol",
    family="sampling",
    cite="fel2021",
    cost="samples × (cells² + 1) forward",
    parity="closed form on an additive model and on a product; no reference numbers",
)
@dataclass(frozen=True, slots=True)
class Sobol(MultiTarget):
    r"""Sobol attribution: the total-order Sobol index of each cell, the share of the score's variance it takes part in.

    .. math:: A_c = \frac{\mathbb E\bigl[\operatorname{Var}(s \mid m_{\setminus c})\bigr]}{\operatorname{Var}(s)}
        \approx \frac{1}{2 n V} \sum_{j=1}^{n} \bigl(s(a_j) - s(a_j^{(c)})\bigr)^2

    The masks :math:`m` have one value between 0 and 1 per cell of a grid, which blends the image with a fill;
    :math:`a_j^{(c)}` is mask :math:`a_j` with its cell c redrawn and :math:`V` the variance of the :math:`s(a_j)`.
    Interactions between cells are counted in full for each of them, so the map sums to one or more. Never negative with
    the estimator above: evidence for and against a class look the same. The masks are a Sobol sequence, the same for
    every image. A black-box method for any model; all classes share the passes.

    Attributes:
        samples: masks n; a power of two keeps the sequence balanced.
        cells: of the grid, from top to bottom and from left to right.
        estimator: of the indices: jansen, as above; homma; or glen, which has correlations in place of variances.
        blank: the fill of a removed cell: mean, the mean colour of the training set, black, white, blur, or a number,
            that value after normalisation.
        score: the score of the class: probability, logit or log_probability; None for the target itself.
    """

    samples: int = 32
    cells: int = 8
    estimator: Estimator = "jansen"
    blank: FillOption = "mean"
    score: Score | None = None

    def __post_init__(self) -> None:
        check_fill(self.blank, segments=False)
        if self.samples < 2 or not 1 <= self.cells <= MOST_CELLS:
            raise RecipeError(
                f"got samples={self.samples} and cells={self.cells}; give 2 samples or more and 1 to {MOST_CELLS} cells"
            )

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        size, cells = (images.shape[-2], images.shape[-1]), (self.cells, self.cells)
        fill = fill_images(model, images, self.blank)
        masks = designs(self.samples, self.cells**2).flatten(0, 1).to(images)
        labels = grid_segments(size, cells, device=images.device).labels
        score_targets = [scored(target, self.score, model) for target in targets]

        def work(part: slice) -> Tensor:
            blended, rows = [], []
            for row, some in split_by_image(part, [len(masks)] * len(images)):
                share = masks[some][:, labels][:, None]
                blended.append(share * images[row] + (1 - share) * fill[row])
                rows += [row] * len(share)
            logits = model(torch.cat(blended))
            return torch.stack([read_scores(model, target.take(rows), logits) for target in score_targets])

        with torch.no_grad():
            scores = torch.cat(in_batches(work, len(masks) * len(images), model.batch), dim=1)
        scores = scores.unflatten(1, (len(images), -1, self.samples))  # (target, image, design, sample)
        indices = total_order(scores[:, :, 0], scores[:, :, 1:], self.estimator).unflatten(2, cells)
        grid = TokenGrid(*cells, image=size)
        return [Attribution(of_target[None], grid) for of_target in indices]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(self.samples * (self.cells**2 + 1))


def designs(samples: int, cells: int) -> Tensor:
    """Return the masks and their copies with one cell redrawn, (1 + cell, sample, cell), from a Sobol sequence.

    The first point of the sequence, which is zero, is left out.
    """
    engine = torch.quasirandom.SobolEngine(2 * cells)
    points: Tensor = engine.fast_forward(1).draw(samples, dtype=torch.float64)
    first, second = points[:, :cells], points[:, cells:]
    redrawn = first.repeat(cells, 1, 1)
    for cell in range(cells):
        redrawn[cell, :, cell] = second[:, cell]
    return torch.cat([first[None], redrawn])


def total_order(scores: Tensor, redrawn: Tensor, estimator: Estimator) -> Tensor:
    """Estimate total-order Sobol indices, (..., cell).

    Args:
        scores: of the masks, shape (..., sample).
        redrawn: of the masks with each cell redrawn, shape (..., cell, sample).
        estimator: which one.
    """
    a, c = scores.double(), redrawn.double()
    variance = a.var(dim=-1, keepdim=True).clamp(min=SMALLEST)
    a = a[..., None, :]
    if estimator == "jansen":
        indices = (a - c).square().mean(dim=-1) / (2 * variance)
    elif estimator == "homma":
        indices = 1 - ((a * c).mean(dim=-1) - a.mean(dim=-1).square()) / variance
    else:
        count = a.shape[-1] - 1
        covariance = ((a - a.mean(dim=-1, keepdim=True)) * (c - c.mean(dim=-1, keepdim=True))).sum(dim=-1) / count
        indices = 1 - covariance / (variance * c.var(dim=-1).clamp(min=SMALLEST)).sqrt()
    return indices.to(scores.dtype)
