"""SmoothGrad, SmoothGrad² and VarGrad for any method: a statistic of its attribution over noisy copies of the image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from sightline.methods.multi_target import multi_target_cost
from sightline.models.adapter import Adapter
from sightline.operators.wrapper import MultiTargetCall, Wrapper
from sightline.perturb.noise import noisy_batches
from sightline.registry import OPERATORS
from sightline.types import Attribution, Method, Passes, Target

Stat = Literal["mean", "square", "variance", "max"]


@OPERATORS.register(
    "smooth",
    family="smooth",
    cite="smilkov2017",
    cost="samples times the method's",
    parity="captum NoiseTunnel with the same noise: mean, square and variance, 1e-9",
)
@dataclass(frozen=True, slots=True)
class Smooth(Wrapper):
    r"""SmoothGrad, or noise tunnel: the attribution averaged over copies of the image with Gaussian noise.

    .. math:: M = \frac1n \sum_{k=1}^{n} A\bigl(x + \sigma\,(\max x - \min x)\,\varepsilon_k\bigr), \qquad
        \varepsilon_k \sim \mathcal N(0, 1)

    Reduces the visual noise of gradient maps. Instead of the mean, :math:`M` can be the mean of the squares
    (SmoothGrad²), the variance (VarGrad, :cite:t:`adebayo2018`) or the maximum of the maps. These statistics are those
    of the map, whose channels are summed already; ``smooth_grad`` takes them channel by channel.

    Attributes:
        samples: how many noisy copies.
        noise: the standard deviation, as a share of the image's range.
        seed: of the noise, which depends on the seed and the image alone.
        stat: what becomes of the copies' maps: mean; square, the mean of their squares; variance, about their own mean,
            divided by the number of samples; or max.
    """

    method: Method
    samples: int = 10
    noise: float = 0.15
    seed: int = 0
    stat: Stat = "mean"

    def combine(
        self, multi_target: MultiTargetCall, model: Adapter, images: Tensor, targets: Sequence[Target]
    ) -> list[Attribution]:
        running = [_Running(self.stat) for _ in targets]
        for noisy, rows in noisy_batches(images, self.samples, self.noise, self.seed, model.batch):
            inner = multi_target(model, noisy, [target.take(rows) for target in targets])
            for each, statistic in zip(inner, running, strict=True):
                statistic.add(each.values.unflatten(1, (len(images), -1)))
        return [
            replace(each, values=statistic.result, flags=(), details=None)
            for each, statistic in zip(inner, running, strict=True)
        ]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return multi_target_cost(self.method, model, count, every_layer=every_layer) * self.samples


class _Running:
    """A statistic of maps that come in batches, (layer, image, copy, height, width)."""

    def __init__(self, stat: Stat) -> None:
        self._stat, self._count = stat, 0
        self._total = self._squares = self._largest = torch.zeros(())
        self._first: Tensor | None = None

    def add(self, values: Tensor) -> None:
        """Take in the maps of some copies."""
        largest = values.amax(dim=2)
        if self._first is None:
            self._first, self._largest = values[:, :, :1], largest
        shifted = values - self._first if self._stat == "variance" else values  # a variance does not mind, digits do
        self._count += values.shape[2]
        self._total = self._total + shifted.sum(dim=2)
        self._squares = self._squares + shifted.square().sum(dim=2)
        self._largest = torch.maximum(self._largest, largest)

    @property
    def result(self) -> Tensor:
        """The statistic of all maps so far."""
        match self._stat:
            case "mean":
                return torch.div(self._total, self._count)
            case "square":
                return torch.div(self._squares, self._count)
            case "variance":
                mean = torch.div(self._total, self._count)
                return (torch.div(self._squares, self._count) - mean.square()).clamp(min=0)
            case _:
                return self._largest
