"""Integrals of the gradient along a path from a reference to the image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError, UnsupportedModel
from sightline.methods.quadrature import Rule, quadrature
from sightline.models.adapter import Adapter
from sightline.models.batch import in_batches
from sightline.models.vit import VisionTransformer
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
class IntegratedGradients:
    r"""Integrated gradients along the straight line from a reference.

    .. math:: A_i = \sum_d (x_{i,d} - x'_{i,d})
        \int_0^1 \frac{\partial s}{\partial x_{i,d}}\bigl(x' + t\,(x - x')\bigr)\,dt

    Complete: the map sums to :math:`s(x) - s(x')`, up to the error of the sum that stands for the integral.

    Attributes:
        steps: points on the path.
        rule: how they lie: gauss_legendre, right (k/n) or trapezoid.
        blank: the reference: zero (the mean colour), black, white, mean or blur.
        at: pixels, or tokens for the straight line between the two images' tokens.
    """

    steps: int = 50
    rule: Rule = "gauss_legendre"
    blank: Literal["zero", "black", "white", "mean", "blur"] = "zero"
    at: Literal["pixels", "tokens"] = "pixels"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise RecipeError(f"got steps={self.steps}; at least one step is needed")

    def __call__(self, model: Adapter, images: Tensor, target: Target) -> Attribution:
        blank = make_fill(self.blank)(model, images)
        if self.at == "pixels":
            values = self._integral(model, images, blank, target)
            return Attribution(values.sum(dim=1)[None], pixel_grid(images))
        if not isinstance(model, VisionTransformer) or "tokens" not in model.offers:
            raise UnsupportedModel(f"the blocks of {model.name} cannot be run from given tokens; write at='pixels'")
        values = self._integral(model, model.start(images), model.start(blank), target)
        grid = model.grid_of(images)
        return Attribution(grid.to_map(values.sum(dim=-1))[None], grid)

    def _integral(self, model: Adapter, end: Tensor, start: Tensor, target: Target) -> Tensor:
        """Sum weighted gradients over the path, in batches of images and steps; channels are kept."""
        nodes, weights = (x.to(end) for x in quadrature(self.rule, self.steps))
        difference = end - start
        pairs = [(row, step) for row in range(len(end)) for step in range(self.steps)]
        total = torch.zeros_like(difference)

        def work(part: slice) -> None:
            rows = torch.tensor([row for row, _ in pairs[part]], device=end.device)
            steps = torch.tensor([step for _, step in pairs[part]], device=end.device)
            shape = (-1, *[1] * (end.ndim - 1))
            points = start[rows] + nodes[steps].view(shape) * difference[rows]
            gradient = self._gradient(model, points, target.take(rows.tolist()))
            total.index_add_(0, rows, gradient * weights[steps].view(shape))

        in_batches(work, len(pairs), model.batch)
        return total * difference

    def _gradient(self, model: Adapter, points: Tensor, target: Target) -> Tensor:
        points = points.detach().requires_grad_()
        with torch.enable_grad():
            if self.at == "pixels":
                logits = model(points)
            else:
                assert isinstance(model, VisionTransformer)
                logits = model.finish(model.run(points))
            score = target(logits)
        return model.gradients(score, {"image": points})["image"]

    def cost(self, model: Adapter) -> Passes:
        return Passes(self.steps, self.steps)
