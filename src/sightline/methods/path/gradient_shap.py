"""Expected gradients, or GradientSHAP: integrated gradients averaged over baselines, by sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.methods.path.pool import WithBaselines
from sightline.models.adapter import Adapter
from sightline.models.passes import take_rows
from sightline.registry import METHODS
from sightline.seeds import generators, uniform
from sightline.types import Attribution, Passes, Target, pixel_grid


@METHODS.register(
    "gradient_shap",
    family="path",
    cite="erion2021",
    cost="samples forward, samples backward",
    needs=("gradient",),
    parity="captum GradientShap on the same baselines and points, 1e-9",
)
@dataclass(frozen=True, slots=True)
class GradientShap(WithBaselines):
    r"""Expected gradients (GradientSHAP): integrated gradients averaged over many baselines, by sampling.

    .. math:: A_i = \mathbb E_{x' \sim D,\; \alpha \sim U(0, 1)} \Bigl[\sum_d (x_{i,d} - x'_{i,d})\,
        \frac{\partial s}{\partial x_{i,d}}\bigl(x' + \alpha\,(x - x')\bigr)\Bigr]

    where D is a pool of images, given from Python as ``GradientShap(pool=images)``, or Gaussian noise around a blank
    image. It estimates Shapley values where features are independent, and does not depend on one choice of baseline as
    ``ig`` does. Complete in expectation: the map sums to :math:`s(x)` less the mean of :math:`s(x')`. The points α of
    an image are stratified, one in each of n equal parts of [0, 1], and assigned to its baselines at random.

    Attributes:
        samples: baselines of each image, and gradients.
        seed: of baselines and points.
    """

    samples: int = 50

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        points = stratified(images, self.samples, self.seed)
        totals = [torch.zeros_like(images) for _ in targets]
        done = 0
        for baselines, rows in self.baselines.batches(model, images, model.batch):
            count = len(rows) // len(images)
            share = points[:, done : done + count].flatten()[:, None, None, None]
            difference = take_rows(images, rows) - baselines
            pixels = (baselines + share * difference).requires_grad_()
            with torch.enable_grad():
                logits = model(pixels)
                scores = [target.take(rows)(logits) for target in targets]
            for total, gradients in zip(totals, model.gradients_each(scores, {"image": pixels}), strict=True):
                products = difference * gradients["image"]
                total += products.unflatten(0, (len(images), count)).sum(dim=1) / self.samples
            done += count
        return [Attribution(total.sum(dim=1)[None], pixel_grid(images)) for total in totals]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(self.samples, self.samples * count)


def stratified(images: Tensor, samples: int, seed: int) -> Tensor:
    """Draw points in [0, 1] for each image, one in each of `samples` equal parts, in random order: (image, sample)."""
    drawn = []
    for generator in generators(seed + 1, images):  # baselines are drawn with the seed itself
        order = torch.randperm(samples, generator=generator)
        drawn.append((order + uniform((samples,), generator)) / samples)
    return torch.stack(drawn).to(images)
