"""FORGrad: an attribution without its high spatial frequencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.models.adapter import Adapter
from sightline.models.passes import full_precision
from sightline.operators.wrapper import MultiTargetCall, Wrapper
from sightline.registry import OPERATORS
from sightline.types import Attribution, Method, Target


@OPERATORS.register(
    "forgrad",
    family="smooth",
    cite="muzellec2024",
    cost="the method's",
    parity="closed form: waves below the cutoff stay, waves above it go, 1e-7",
)
@dataclass(frozen=True, slots=True)
class ForGrad(Wrapper):
    r"""FORGrad: a low-pass filter of the attribution, which removes the high-frequency noise of gradients.

    .. math:: M = \mathcal F^{-1}\bigl(\mathcal F(A) \odot [\,\lVert f \rVert_2 \le \sigma\,]\bigr)

    where f are the frequencies of the discrete Fourier transform, in cycles per image. The authors find the cutoff for
    each model by faithfulness on a few images; around 15 is typical for images of 224 pixels. For maps of pixels, such
    as ``gradient(at='pixels')`` and ``ig``: a grid of 14×14 patches has nothing above 10 to remove.

    Attributes:
        sigma: the cutoff, in cycles per image.
    """

    method: Method
    sigma: float = 15.0

    def __post_init__(self) -> None:
        if not self.sigma > 0:
            raise RecipeError(f"got sigma={self.sigma}; a positive cutoff in cycles per image is needed")

    def combine(
        self, multi_target: MultiTargetCall, model: Adapter, images: Tensor, targets: Sequence[Target]
    ) -> list[Attribution]:
        inner = multi_target(model, images, targets)
        return [replace(each, values=low_pass(each.values, self.sigma)) for each in inner]


def low_pass(values: Tensor, sigma: float) -> Tensor:
    """Keep the frequencies of maps, (..., height, width), up to a cutoff in cycles per image."""
    exact = full_precision(values)
    height, width = exact.shape[-2:]
    rows = torch.fft.fftfreq(height, 1 / height, device=exact.device)
    columns = torch.fft.rfftfreq(width, 1 / width, device=exact.device)
    kept = rows[:, None].square() + columns.square() <= sigma**2
    filtered: Tensor = torch.fft.irfft2(torch.fft.rfft2(exact) * kept, s=(height, width))
    return filtered.to(values.dtype)
