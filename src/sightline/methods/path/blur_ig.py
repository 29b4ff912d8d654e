"""Blur integrated gradients: integrated gradients along a path of decreasing blur."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.passes import in_batches
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, pixel_grid

BLURRED = 4  # copies of a batch in double precision
STEP = 0.01  # in the standard deviation of the blur, for the finite difference


@METHODS.register(
    "blur_ig",
    family="path",
    cite="xu2020",
    cost="steps - 1 forward, steps - 1 backward",
    needs=("gradient",),
    parity="PAIR saliency BlurIG on a random CNN, 1e-9, and on EfficientNet-Lite0, 1e-5",
)
@dataclass(frozen=True, slots=True)
class BlurIntegratedGradients(MultiTarget):
    r"""Blur integrated gradients: gradients integrated along a path of decreasing blur; needs no baseline image.

    .. math:: A_i = -\sum_c \sum_{k=1}^{n-1} (\sigma_{k+1} - \sigma_k)\,
        \frac{\partial s}{\partial x_{i,c}}(G_{\sigma_k} x)\,
        \frac{(G_{\sigma_k + h}\, x - G_{\sigma_k} x)_{i,c}}{h}, \qquad \sigma_k = \frac{k\,\sigma}{n}

    with :math:`G` a Gaussian blur of the normalised image (padded with the mean colour, truncated at four deviations)
    and h = 0.01. The sharp end of the path, k = 0, adds nothing, because the derivative of the blur is zero there. The
    sum approximates :math:`s(x) - s(G_\sigma x)`: the path begins at the blurred image instead of a constant colour.

    Attributes:
        steps: points on the path, the sharp end included.
        sigma: the widest blur, its standard deviation in pixels.
        variant: linear steps, or sqrt for :math:`\sigma_k = \sqrt{k \sigma / n}`, which ends at the root of sigma.
    """

    steps: int = 100
    sigma: float = 50.0
    variant: Literal["linear", "sqrt"] = "linear"

    def __post_init__(self) -> None:
        if self.steps < 2:
            raise RecipeError(f"got steps={self.steps}; two are needed, since the sharp end adds nothing")

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        widths = self._widths()
        exact = images.cpu().double()  # the finite difference of two blurs loses four digits
        pairs = [(row, step) for step in range(1, self.steps) for row in range(len(images))]
        totals = [torch.zeros_like(exact) for _ in targets]

        def work(part: slice) -> None:
            rows = [row for row, _ in pairs[part]]
            blurred = torch.stack([blur(exact[row], widths[step]) for row, step in pairs[part]])
            wider = torch.stack([blur(exact[row], widths[step] + STEP) for row, step in pairs[part]])
            lengths = torch.tensor([widths[step] - widths[step + 1] for _, step in pairs[part]], dtype=torch.float64)
            change = (wider - blurred) / STEP * lengths[:, None, None, None]
            for total, gradient in zip(totals, _gradients(model, blurred.to(images), targets, rows), strict=True):
                total.index_add_(0, torch.tensor(rows), change * gradient.cpu().double())

        in_batches(work, len(pairs), model.batch)
        return [Attribution(total.sum(dim=1)[None].to(images), pixel_grid(images)) for total in totals]

    def _widths(self) -> list[float]:
        even = [step * self.sigma / self.steps for step in range(self.steps + 1)]
        return [math.sqrt(width) for width in even] if self.variant == "sqrt" else even

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(self.steps - 1, (self.steps - 1) * count)

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image: the graphs of a batch, and its blurred images in double precision."""
        images = min(model.batch, self.steps - 1) * model.image_channels * math.prod(model.seen_size)
        return model.peak(self.multi_target_cost(model, 1)) + BLURRED * images * torch.float64.itemsize


def _gradients(model: Adapter, points: Tensor, targets: Sequence[Target], rows: Sequence[int]) -> list[Tensor]:
    pixels = points.requires_grad_()
    with torch.enable_grad():
        logits = model(pixels)
        scores = [target.take(rows)(logits) for target in targets]
    return [gradients["image"] for gradients in model.gradients_each(scores, {"image": pixels})]


def blur(image: Tensor, sigma: float) -> Tensor:
    """Blur an image, (channel, height, width), with zeros around it."""
    height, width = image.shape[-2:]
    return _blur_matrix(height, sigma) @ image @ _blur_matrix(width, sigma)


@lru_cache(maxsize=8)
def _blur_matrix(size: int, sigma: float) -> Tensor:
    """Return the matrix that blurs a line of `size` pixels; its kernel is truncated at four deviations."""
    radius = int(4 * sigma + 0.5)
    position = torch.arange(size, dtype=torch.float64)
    distance = (position[:, None] - position).abs()
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float64)
    deviation = max(sigma, 1e-3)  # with 1e-3 the kernel is a single pixel, as without a blur
    kernel = torch.where(distance <= radius, (-0.5 * (distance / deviation) ** 2).exp(), 0.0)
    return kernel / (-0.5 * (offsets / deviation) ** 2).exp().sum()
