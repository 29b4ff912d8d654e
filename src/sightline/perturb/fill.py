"""Fills: what removed pixels become: a colour, a blur, noise, or what a user's in-painter makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol, get_args

import numpy as np
import torch
from scipy.ndimage import gaussian_filter1d
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import InputError, RecipeError
from sightline.models.adapter import Adapter
from sightline.models.passes import full_precision, require_true
from sightline.seeds import generators, uniform

FillName = Literal["zero", "blur", "black", "white", "mean"]
FillOrNoise = Literal["zero", "blur", "black", "white", "mean", "noise"]


# A user's in-painter: pixel values in 0..1, (n, 3, height, width), and which of them are missing, bool of
# (n, height, width), give the whole pictures.
InPainter = Callable[[Tensor, Tensor], Tensor]
FillOption = FillName | InPainter
NoiseOption = FillOrNoise | InPainter


class Fill(Protocol):
    """Anything that gives each image its filled counterpart, both as the model is fed."""

    def __call__(self, model: Adapter, images: Tensor, /) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Zero:
    """Zero after normalisation: the mean colour of the model's training set."""

    def __call__(self, model: Adapter, images: Tensor, /) -> Tensor:
        return torch.zeros_like(images)


@dataclass(frozen=True, slots=True)
class Black:
    """Black pixels."""

    def __call__(self, model: Adapter, images: Tensor, /) -> Tensor:
        return model.normalise(torch.zeros_like(images))


@dataclass(frozen=True, slots=True)
class White:
    """White pixels."""

    def __call__(self, model: Adapter, images: Tensor, /) -> Tensor:
        return model.normalise(torch.ones_like(images))


@dataclass(frozen=True, slots=True)
class Mean:
    """Each image's own mean colour."""

    def __call__(self, model: Adapter, images: Tensor, /) -> Tensor:
        return images.mean(dim=(-2, -1), keepdim=True).expand_as(images).contiguous()


@dataclass(frozen=True, slots=True)
class Blur:
    """A blurred copy of the image, with the kernel of RISE :cite:p:`petsiuk2018`.

    The kernel is what a Gaussian filter with reflecting borders makes of a single point in a window of 2·radius + 1
    pixels: flatter than a Gaussian, the more so the larger sigma is against the window. It is applied after
    normalisation and with zeros around the image, so the borders fade to the mean colour.
    """

    radius: int = 5
    sigma: float = 5.0

    def __post_init__(self) -> None:
        if self.radius < 1 or not self.sigma > 0:
            raise RecipeError(f"got a blur of radius={self.radius}, sigma={self.sigma}; give radius ≥ 1 and sigma > 0")

    def __call__(self, model: Adapter, images: Tensor, /) -> Tensor:
        exact = full_precision(images)
        line = torch.from_numpy(kernel_line(self.radius, self.sigma)).to(exact)
        line = line.expand(images.shape[1], 1, 1, -1)
        # the kernel is the product of a row and a column, so one pass for each does
        rows = F.conv2d(exact, line, padding=(0, self.radius), groups=images.shape[1])
        both = F.conv2d(rows, line.mT, padding=(self.radius, 0), groups=images.shape[1])
        return both.to(images.dtype)


@dataclass(frozen=True, slots=True)
class Noise:
    """Random colours, each between black and white with equal probability; they depend on the seed and the image."""

    seed: int = 0

    def __call__(self, model: Adapter, images: Tensor, /) -> Tensor:
        drawn = [uniform(tuple(images.shape[1:]), generator) for generator in generators(self.seed, images)]
        return model.normalise(torch.stack(drawn).to(images))


@dataclass(frozen=True, slots=True)
class InPaint:
    """What a user's in-painter makes of the missing pixels; known pixels stay as they are.

    An image of which nothing is known becomes its own mean colour: there is nothing to paint from.
    """

    function: InPainter

    def __call__(self, model: Adapter, images: Tensor, /) -> Tensor:
        return Mean()(model, images)

    def paint(self, model: Adapter, images: Tensor, removed: Tensor) -> Tensor:
        """Return the images, (n, 3, height, width), with the removed pixels, bool (n, height, width), painted."""
        painted = self.function(model.denormalise(images), removed)
        came = tuple(painted.shape) if isinstance(painted, Tensor) else type(painted).__name__
        error = InputError(
            f"the in-painter gave {came} for pictures of shape {tuple(images.shape)}; "
            "it must give finite pixel values in 0..1 of the same shape"
        )
        if not isinstance(painted, Tensor) or painted.shape != images.shape:
            raise error
        require_true(torch.isfinite(painted).all(), error)
        nothing = removed.flatten(1).all(dim=1)[:, None, None, None]
        whole = torch.where(nothing, self(model, images), model.normalise(painted.to(images)))
        return torch.where(removed[:, None], whole, images)


@lru_cache(maxsize=64)
def kernel_line(radius: int, sigma: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return one row of the blur kernel, which sums to one; the kernel is its outer product with itself."""
    point = np.zeros(2 * radius + 1)
    point[radius] = 1.0
    line: np.ndarray[tuple[int], np.dtype[np.float64]] = gaussian_filter1d(point, sigma)
    return line


_PLAIN: dict[str, Callable[[], Fill]] = {"zero": Zero, "black": Black, "white": White, "mean": Mean}


def make_fill(name: FillOption | str, radius: int = 5, sigma: float = 5.0) -> Fill:
    """Return the fill of this name; radius and sigma belong to the blur, and another fill refuses them.

    >>> make_fill("blur", radius=15, sigma=31)
    Blur(radius=15, sigma=31)
    """
    if name == "blur":
        return Blur(radius, sigma)
    if not isinstance(name, str):
        raise RecipeError(
            f"got fill={name!r}; an in-painter needs to know which pixels are missing, so only metrics that remove "
            "whole pixels take one, such as deletion"
        )
    if name not in _PLAIN:
        raise RecipeError(f"got fill={name!r}; choose from {', '.join(get_args(FillName))}")
    if Blur(radius, sigma) != Blur():
        raise RecipeError(f"got radius={radius}, sigma={sigma} with fill={name!r}; only fill='blur' has them")
    return _PLAIN[name]()


def removing_fill(option: NoiseOption, radius: int = 5, sigma: float = 5.0, seed: int = 0) -> Fill:
    """Return the fill of this name, "noise" being random colours of this seed, or the user's in-painter."""
    if option != "noise" and isinstance(option, str):
        return make_fill(option, radius, sigma)
    make_fill("zero", radius, sigma)  # refuses the options of a blur
    return Noise(seed) if isinstance(option, str) else InPaint(option)


def fill_where(fill: Fill, model: Adapter, images: Tensor, filled: Tensor, removed: Tensor) -> Tensor:
    """Return the images with the removed pixels filled; `filled` is what the fill made of the whole images."""
    if isinstance(fill, InPaint):
        return fill.paint(model, images, removed)
    return torch.where(removed[:, None], filled, images)
