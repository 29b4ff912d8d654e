"""Controls: maps that do not depend on the model, against which methods are compared in every benchmark."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.models.adapter import Adapter
from sightline.registry import METHODS
from sightline.seeds import generators, uniform
from sightline.types import Attribution, Passes, Target, pixel_grid

CONTROLS = ("random", "centre", "sobel", "input_norm")  # the methods of the family `chance`, by name


@METHODS.register("random", family="chance", cost="none", agnostic=True, parity="uniform by construction")
@dataclass(frozen=True, slots=True)
class Random:
    """Random control: uniform noise, one number per cell of the model's grid.

    The baseline that every method must beat. The numbers depend on the seed and the image, not on the batch.

    Attributes:
        seed: of the random numbers.
    """

    seed: int = 0

    def __call__(self, model: Adapter, images: Tensor, target: Target) -> Attribution:
        grid = model.grid_of(images)
        cells = [uniform((grid.height, grid.width), generator) for generator in generators(self.seed, images)]
        return Attribution(torch.stack(cells)[None].to(images), grid)

    def cost(self, model: Adapter) -> Passes:
        return Passes()


@METHODS.register("centre", family="chance", cost="none", agnostic=True, parity="closed form")
@dataclass(frozen=True, slots=True)
class Centre:
    r"""Centre control: a Gaussian in the middle of the image.

    .. math:: A_{ij} = \exp\Bigl(-\tfrac{(i-c_i)^2 + (j-c_j)^2}{2\sigma^2}\Bigr), \qquad \sigma = \tfrac14 \min(H, W)

    Objects are mostly in the middle of photographs, so this is a strong control for localisation metrics.
    """

    def __call__(self, model: Adapter, images: Tensor, target: Target) -> Attribution:
        height, width = images.shape[-2:]
        rows = torch.arange(height, dtype=torch.float64) - (height - 1) / 2
        columns = torch.arange(width, dtype=torch.float64) - (width - 1) / 2
        sigma = min(height, width) / 4
        bump = torch.exp(-(rows[:, None].square() + columns.square()) / (2 * sigma**2))
        return Attribution(bump.to(images).expand(1, len(images), -1, -1).clone(), pixel_grid(images))

    def cost(self, model: Adapter) -> Passes:
        return Passes()


@METHODS.register("sobel", family="chance", cost="none", agnostic=True, parity="scipy.ndimage.sobel, 1e-5")
@dataclass(frozen=True, slots=True)
class Sobel:
    r"""Edge control: the magnitude of the Sobel gradient of the image's mean over channels.

    .. math:: A = \sqrt{(K_x * \bar x)^2 + (K_y * \bar x)^2}

    Gradient maps often resemble edges; this control measures what edges alone achieve.
    """

    def __call__(self, model: Adapter, images: Tensor, target: Target) -> Attribution:
        grey = F.pad(images.mean(dim=1, keepdim=True), (1, 1, 1, 1), mode="replicate")
        kernel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]).to(images)
        edges = F.conv2d(grey, torch.stack([kernel, kernel.T])[:, None])
        return Attribution(edges.norm(dim=1)[None], pixel_grid(images))

    def cost(self, model: Adapter) -> Passes:
        return Passes()


@METHODS.register("input_norm", family="chance", cost="none", agnostic=True, parity="closed form")
@dataclass(frozen=True, slots=True)
class InputNorm:
    r"""Input control: the L2 norm of each pixel's normalised colour.

    .. math:: A_{ij} = \lVert x_{\cdot ij} \rVert_2

    Methods that multiply by the input inherit this pattern; this control measures what the input alone achieves.
    """

    def __call__(self, model: Adapter, images: Tensor, target: Target) -> Attribution:
        return Attribution(images.norm(dim=1)[None], pixel_grid(images))

    def cost(self, model: Adapter) -> Passes:
        return Passes()
