"""Integrated gradients along the straight line from a baseline to the image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import UnsupportedModel
from sightline.methods.multi_target import MultiTarget
from sightline.methods.path.quadrature import Rule, quadrature
from sightline.models.adapter import Adapter
from sightline.models.passes import in_batches
from sightline.models.vit.adapter import VisionTransformer
from sightline.perturb.fill import make_fill
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, pixel_grid


@METHODS.register(
    "ig",
    family="path",
    cite="sundararajan2017",
    cost="steps forward, steps backward",
    needs=("gradient",),
    parity="captum IntegratedGradients (Gauss-Legendre and right sums), 1e-5",
)
@dataclass(frozen=True, slots=True)
class IntegratedGradients(MultiTarget):
    r"""Integrated gradients: the gradient integrated along the straight line from a baseline to the image.

    .. math:: A_i = \sum_d (x_{i,d} - x'_{i,d})
        \int_0^1 \frac{\partial s}{\partial x_{i,d}}\bigl(x' + t\,(x - x')\bigr)\,dt

    Complete: the map sums to :math:`s(x) - s(x')`, up to the error of the quadrature.

    Attributes:
        steps: points on the path.
        rule: the quadrature: gauss_legendre, right (k/n) or trapezoid.
        blank: the baseline: zero (the mean colour), black, white, mean or blur.
        at: pixels, or tokens for the straight line between the two images' tokens.
    """

    steps: int = 50
    rule: Rule = "gauss_legendre"
    blank: Literal["zero", "black", "white", "mean", "blur"] = "zero"
    at: Literal["pixels", "tokens"] = "pixels"

    def __post_init__(self) -> None:
        make_fill(self.blank)

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        baseline = make_fill(self.blank)(model, images)
        if self.at == "pixels":
            integrals = self.integrals(model, images, baseline, targets)
            return [Attribution(values.sum(dim=1)[None], pixel_grid(images)) for values in integrals]
        if not isinstance(model, VisionTransformer) or "tokens" not in model.offers:
            raise UnsupportedModel(f"the blocks of {model.name} cannot be run from given tokens; write at='pixels'")
        integrals = self.integrals(model, model.start(images), model.start(baseline), targets)
        grid = model.grid_of(images)
        return [Attribution(grid.to_map(values.sum(dim=-1))[None], grid) for values in integrals]

    def integrals(self, model: Adapter, end: Tensor, baseline: Tensor, targets: Sequence[Target]) -> list[Tensor]:
        """Return the integral of each target from baseline to end, in batches of images and steps; channels kept."""
        nodes, weights = (x.to(end) for x in quadrature(self.rule, self.steps))
        difference = end - baseline
        totals = [torch.zeros_like(difference) for _ in targets]

        def work(part: slice) -> None:
            index = torch.arange(part.start, part.stop, device=end.device)
            rows, steps = index // self.steps, index % self.steps
            images = [place // self.steps for place in range(part.start, part.stop)]
            shape = (-1, *[1] * (end.ndim - 1))
            below, along = (baseline, difference) if len(end) == 1 else (baseline[rows], difference[rows])
            points = below + nodes[steps].view(shape) * along
            gradients = self._gradients(model, points, [target.take(images) for target in targets])
            for total, gradient in zip(totals, gradients, strict=True):
                total.index_add_(0, rows, gradient * weights[steps].view(shape))

        in_batches(work, len(end) * self.steps, model.batch)
        return [total * difference for total in totals]

    def _gradients(self, model: Adapter, points: Tensor, targets: Sequence[Target]) -> list[Tensor]:
        points = points.detach().requires_grad_()
        with torch.enable_grad():
            if self.at == "pixels":
                logits = model(points)
            else:
                assert isinstance(model, VisionTransformer)
                logits = model.logits_of(points)
            scores = [target(logits) for target in targets]
        return [gradients["image"] for gradients in model.gradients_each(scores, {"image": points})]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(self.steps, self.steps * count)
