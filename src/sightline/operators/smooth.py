"""Average a method over noisy copies of the image."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.models.adapter import Adapter
from sightline.operators.wrapper import Ask, Wrapper
from sightline.perturb.noise import noisy_batches
from sightline.registry import OPERATORS
from sightline.types import Attribution, Method, Target


@OPERATORS.register("smooth", family="smooth", cite="smilkov2017", cost="samples times the method's")
@dataclass(frozen=True, slots=True)
class Smooth(Wrapper):
    r"""The average of a method over noisy copies of the image.

    .. math:: M = \frac1n \sum_{k=1}^{n} A\bigl(x + \sigma\,(\max x - \min x)\,\varepsilon_k\bigr)

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

    def combine(self, ask: Ask, model: Adapter, images: Tensor, target: Target) -> Attribution:
        total: Tensor | None = None
        for noisy, rows in noisy_batches(images, self.samples, self.noise, self.seed, model.batch):
            inner = ask(model, noisy, target.take(rows))
            summed = inner.values.unflatten(1, (len(images), -1)).sum(dim=2)
            total = summed if total is None else total + summed
        assert total is not None
        return replace(inner, values=torch.div(total, self.samples), flags=())

    @property
    def times(self) -> int:
        return self.samples
