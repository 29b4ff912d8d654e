"""Infidelity: how well the map predicts the change of the score when the image is perturbed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Literal, TypeVar, get_args

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement
from sightline.models.adapter import Adapter
from sightline.perturb.fill import FillOption, fill_where, removing_fill
from sightline.registry import METRICS
from sightline.seeds import generators
from sightline.types import Passes

T = TypeVar("T")
Perturbation = Literal["squares", "noise"]


@METRICS.register(
    "infidelity",
    family="faithfulness",
    cite="yeh2019",
    cost="65 forward",
    direction="lower",
    parity="captum infidelity on the same perturbations, with and without normalisation, 1e-9",
)
@dataclass(frozen=True, slots=True)
class Infidelity:
    r"""Mean squared error with which the map predicts how the score changes under perturbations.

    .. math:: \frac{1}{n} \sum_{k=1}^{n} \Bigl(\beta \, I_k \cdot a - \bigl(s(x) - s(x_k)\bigr)\Bigr)^2, \qquad
        \beta = \frac{\sum_k (I_k \cdot a)(s(x) - s(x_k))}{\sum_k (I_k \cdot a)^2}

    :cite:p:`yeh2019`. With ``squares``, :math:`x_k` has a random square filled and :math:`I_k` is 1 in it, 0 outside:
    for maps in units of the score (gradient times input, integrated gradients, Shapley values, CAM). With ``noise``,
    :math:`x_k = x - I_k` for Gaussian noise that is the same in the three channels: for plain gradients, summed over
    channels. The factor :math:`\beta` that fits best is taken unless `normalise` is off, then it is 1: most maps have
    no unit, and coarse maps are enlarged to image size.

    The score is the target that was explained, so the number is in its units, squared: compare methods on the same
    images, not models. It costs `samples` + 1 forward passes.

    Edge cases: a map of zeros predicts no change, and scores the mean squared change. Constant maps are flagged.

    Attributes:
        samples: n.
        perturbation: squares or noise.
        window: side of a square in pixels; None takes a quarter of the image's shorter side.
        fill: what a square becomes (zero after normalisation, black, white, mean, blur).
        sigma: standard deviation of the noise, in units of the normalised image.
        normalise: fit the factor; off, the map's own unit counts.
        seed: of the perturbations, which depend on the image and not on its batch.
    """

    samples: int = 64
    perturbation: Perturbation = "squares"
    window: int | None = None
    fill: FillOption = "zero"
    sigma: float = 0.2
    normalise: bool = True
    seed: int = 0
    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))

    def __post_init__(self) -> None:
        removing_fill(self.fill)
        if self.perturbation not in get_args(Perturbation):
            raise RecipeError(f"got perturbation={self.perturbation!r}; choose squares or noise")
        if self.window is not None and self.window < 1:
            raise RecipeError(f"got window={self.window}; give 1 pixel or more")

    def __call__(self, case: Case, /) -> Measurement:
        clean = case.target(case.clean.double())
        products, changes = [], []
        at_once = max(1, case.model.batch // len(case.images))
        for some in _batched(self.perturbed(case.model, case.images), at_once):
            products += [(weights * case.maps.double()).sum(dim=(1, 2)) for weights, _ in some]
            logits = case.model.predict(torch.cat([images for _, images in some])).double()
            changes += [clean - case.target(part) for part in logits.split(len(clean))]
        errors = infidelity(torch.stack(products), torch.stack(changes), normalise=self.normalise)
        return Measurement(errors.cpu(), None, case.flags)

    def perturbed(self, model: Adapter, images: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield, per sample, I as (batch, height, width) in float64, and the perturbed images."""
        random = generators(self.seed, images)
        fill = removing_fill(self.fill)
        blank = fill(model, images) if self.perturbation == "squares" else None
        for _ in range(self.samples):
            if blank is None:
                noise = [
                    torch.randn(images.shape[-2:], generator=generator, dtype=torch.float32) for generator in random
                ]
                weights = (torch.stack(noise) * self.sigma).to(images)
                yield weights.double(), images - weights[:, None]
            else:
                inside = self._squares(images, random)
                yield inside.double(), fill_where(fill, model, images, blank, inside)

    def _squares(self, images: Tensor, random: Sequence[torch.Generator]) -> Tensor:
        """Draw a square in each image: where it is, bool (batch, height, width)."""
        height, width = images.shape[-2:]
        side = min(height, width) // 4 if self.window is None else self.window
        side = max(1, min(side, height, width))
        inside = torch.zeros(len(images), height, width, dtype=torch.bool, device=images.device)
        for one, generator in zip(inside, random, strict=True):
            top, left = (int(torch.randint(room - side + 1, (1,), generator=generator)) for room in (height, width))
            one[top : top + side, left : left + side] = True
        return inside

    def cost(self, model: Adapter, /) -> Passes:
        return Passes(forward=self.samples + 1)


def _batched(samples: Iterator[T], size: int) -> Iterator[list[T]]:
    while some := list(islice(samples, size)):
        yield some


def infidelity(products: Tensor, changes: Tensor, *, normalise: bool = False) -> Tensor:
    """Return the mean squared error of predicted against seen changes, (sample, batch) each -> (batch,).

    With `normalise` the predictions are multiplied by the factor that makes the error least.

    >>> infidelity(torch.tensor([[1.0], [2.0]]), torch.tensor([[2.0], [4.0]]))
    tensor([2.5000])
    >>> infidelity(torch.tensor([[1.0], [2.0]]), torch.tensor([[2.0], [4.0]]), normalise=True)
    tensor([0.])
    """
    if normalise:
        squares = products.square().sum(dim=0)
        factor = (products * changes).sum(dim=0) / torch.where(squares > 0, squares, 1.0)
        products = products * factor
    return (products - changes).square().mean(dim=0)
