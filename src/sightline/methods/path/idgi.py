"""IDGI: integrated gradients in which each step distributes its rise of the score by squared gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.multi_target import MultiTarget
from sightline.methods.path.blur_ig import blur
from sightline.methods.scored import Score, scored
from sightline.models.adapter import Adapter
from sightline.models.passes import in_batches, take_rows
from sightline.perturb.fill import make_fill
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, pixel_grid


@METHODS.register(
    "idgi",
    family="path",
    cite="yang2023",
    cost="steps + 1 forward, steps backward",
    needs=("gradient",),
    parity="the formula written out for a loop over steps, 1e-12; closed form on a linear model; no reference numbers",
)
@dataclass(frozen=True, slots=True)
class ImportantDirectionGradients(MultiTarget):
    r"""IDGI: integrated gradients whose steps distribute the rise of the score by squared gradients, to reduce noise.

    .. math:: A_i = \sum_d \sum_{j=0}^{n-1}
        \frac{g_{j,i,d}^2}{\sum_{k,e} g_{j,k,e}^2}\,\bigl(s(x_{j+1}) - s(x_j)\bigr), \qquad
        g_j = \frac{\partial s}{\partial x}(x_j)

    along the points :math:`x_0 = x', \dots, x_n = x` of a path of ``ig`` or ``blur_ig``. Only the part of a step along
    the gradient changes the score; the rest, which integrated gradients multiplies in, is noise. Complete whatever the
    number of steps: the map sums to :math:`s(x) - s(x')`.

    Attributes:
        steps: number of steps of the path.
        variant: the path: straight, the line from the baseline as in ``ig``; or blur, of decreasing blur as in
            ``blur_ig``.
        blank: the baseline of the straight path: zero (the mean colour), black, white, mean or blur.
        sigma: the widest blur of the other, its standard deviation in pixels.
        score: the score of the class: probability, as the paper, logit or log_probability; None for the target itself.
    """

    steps: int = 50
    variant: Literal["straight", "blur"] = "straight"
    blank: Literal["zero", "black", "white", "mean", "blur"] = "zero"
    sigma: float = 50.0
    score: Score | None = None

    def __post_init__(self) -> None:
        make_fill(self.blank)
        if self.steps < 1 or not self.sigma > 0:
            raise RecipeError(f"got steps={self.steps}, sigma={self.sigma}; give 1 step or more and a positive width")

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        targets = [scored(target, self.score, model) for target in targets]
        baseline = make_fill(self.blank)(model, images)
        pairs = [(row, step) for row in range(len(images)) for step in range(self.steps + 1)]

        def work(part: slice) -> tuple[Tensor, Tensor]:
            rows = [row for row, _ in pairs[part]]
            points = torch.stack([self._point(images[row], baseline[row], step) for row, step in pairs[part]])
            inner = [i for i, (_, step) in enumerate(pairs[part]) if step < self.steps]  # the end needs no gradient
            return _scores_and_shares(model, points, [target.take(rows) for target in targets], inner)

        parts = in_batches(work, len(pairs), model.batch)
        scores = torch.cat([score for score, _ in parts], dim=1).unflatten(1, (len(images), -1))
        shares = torch.cat([share for _, share in parts], dim=1).unflatten(1, (len(images), -1))
        totals = torch.einsum("tbj,tbjhw->tbhw", scores.diff(dim=-1), shares)
        return [Attribution(total[None], pixel_grid(images)) for total in totals]

    def _point(self, image: Tensor, baseline: Tensor, step: int) -> Tensor:
        if self.variant == "straight":
            return baseline + (step / self.steps) * (image - baseline)
        return blur(image.cpu().double(), self.sigma * (1 - step / self.steps)).to(image)

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(self.steps + 1, self.steps * count)


def _scores_and_shares(
    model: Adapter, points: Tensor, targets: Sequence[Target], inner: list[int]
) -> tuple[Tensor, Tensor]:
    """Return the scores of all points, (target, point), and the squared gradients of some as shares of their sum."""
    pixels = points.requires_grad_()
    with torch.enable_grad():
        logits = model(pixels)
        scores = [target(logits) for target in targets]
    values = torch.stack([score.detach() for score in scores])
    if not inner:
        return values, pixels.new_zeros(len(targets), 0, *pixels.shape[-2:])
    with torch.enable_grad():
        inner_scores = [take_rows(score, inner) for score in scores]
    gradients = model.gradients_each(inner_scores, {"image": pixels})
    squares = torch.stack([take_rows(gradient["image"], inner).square().sum(dim=1) for gradient in gradients])
    total = squares.sum(dim=(-2, -1), keepdim=True)
    even = torch.full_like(squares, 1 / squares[0, 0].numel())  # a step without any gradient says nothing of where
    return values, torch.where(total > 0, squares / total.clamp(min=torch.finfo(total.dtype).tiny), even)
