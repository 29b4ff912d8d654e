"""SmoothGrad for any method: its attribution averaged over noisy copies of the image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.multi_target import multi_target_cost
from sightline.models.adapter import Adapter
from sightline.operators.wrapper import MultiTargetCall, Wrapper
from sightline.perturb.noise import noisy_batches
from sightline.registry import OPERATORS
from sightline.types import Attribution, Method, Passes, Target


@OPERATORS.register("smooth", family="smooth", cite="smilkov2017", cost="samples times the method's")
@dataclass(frozen=True, slots=True)
class Smooth(Wrapper):
    r"""SmoothGrad, or noise tunnel: the attribution averaged over copies of the image with Gaussian noise.

    .. math:: M = \frac1n \sum_{k=1}^{n} A\bigl(x + \sigma\,(\max x - \min x)\,\varepsilon_k\bigr), \qquad
        \varepsilon_k \sim \mathcal N(0, 1)

    Reduces the visual noise of gradient maps.

    Attributes:
        samples: how many noisy copies.
        noise: the standard deviation, as a share of the image's range.
        seed: of the noise, which depends on the seed and the image alone.
    """

    method: Method
    samples: int = 10
    noise: float = 0.15
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1 or self.noise < 0:
            raise RecipeError(
                f"got samples={self.samples}, noise={self.noise}; at least one sample, and no negative noise"
            )

    def combine(
        self, multi_target: MultiTargetCall, model: Adapter, images: Tensor, targets: Sequence[Target]
    ) -> list[Attribution]:
        totals: list[Tensor] = []
        for noisy, rows in noisy_batches(images, self.samples, self.noise, self.seed, model.batch):
            inner = multi_target(model, noisy, [target.take(rows) for target in targets])
            summed = [each.values.unflatten(1, (len(images), -1)).sum(dim=2) for each in inner]
            totals = [a + b for a, b in zip(totals, summed, strict=True)] if totals else summed
        return [
            replace(each, values=torch.div(total, self.samples), flags=(), details=None)
            for each, total in zip(inner, totals, strict=True)
        ]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return multi_target_cost(self.method, model, count, every_layer=every_layer) * self.samples
