"""The masks of extremal perturbation: smooth, of a given area, and applied to an image as blur.

A mask is parametrised on a coarse lattice: each parameter is spread by a flat-topped kernel, and the results combined
by a smooth maximum, so that nothing smaller than the kernel can be represented. It sets the blur of each pixel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

SHARPNESS = 20  # of the smooth maximum
FLAT = 0.5  # in sigmas: the kernel is one up to this distance
REACH = 4  # in sigmas: where a blur kernel ends


@dataclass(frozen=True, eq=False)
class Lattice:
    """Masks parametrised on a lattice.

    Attributes:
        size: height and width of the image.
        stride: pixels between two parameters.
        sigma: reach of a parameter in pixels, the stride at least, and width of the margin around the image.
    """

    size: tuple[int, int]
    stride: int
    sigma: int

    @property
    def shape(self) -> tuple[int, int]:
        """How many parameters there are."""
        return math.ceil(self.size[0] / self.stride), math.ceil(self.size[1] / self.stride)

    @property
    def radius(self) -> int:
        """How many neighbouring parameters on each side affect a pixel."""
        return 1 + math.ceil(self.sigma / self.stride)

    @property
    def padding(self) -> int:
        return 1 + 2 * math.ceil(self.sigma / self.stride)

    def weights(self, like: Tensor) -> Tensor:
        """Return the kernel weight of each neighbour at each pixel, shape (neighbour, height, width), margin included.

        In the precision of `like` throughout: rounding decides which of equal pixels the area penalty favours.
        """
        down, across = (self._distances(cells).to(like) for cells in self.shape)
        apart = (down[:, None, :, None].square() + across[None, :, None, :].square()).sqrt() / self.sigma
        return torch.exp(-2 * (apart - FLAT).clamp(min=0).square()).flatten(0, 1)

    def _distances(self, cells: int) -> Tensor:
        """Return the distance of each pixel of an axis from its neighbouring parameters, shape (neighbour, pixel)."""
        pixels = torch.arange(self._windows(cells) * self.stride - self.stride + 1)
        neighbours = torch.arange(2 * self.radius + 1)[:, None] - self.padding
        return pixels - self.sigma - self.stride * (pixels.div(self.stride, rounding_mode="floor") + neighbours)

    def _windows(self, cells: int) -> int:
        return cells + 2 * (self.padding - self.radius)

    def draw(self, parameters: Tensor, weights: Tensor) -> Tensor:
        """Return the masks with their margin, (mask, height, width), of parameters, (mask, *shape)."""
        windows = self._windows(self.shape[0]), self._windows(self.shape[1])
        nearby = F.unfold(parameters[:, None], 2 * self.radius + 1, padding=self.padding)
        nearby = nearby.unflatten(2, windows)[:, :, :, None, :, None]
        nearby = nearby.expand(-1, -1, -1, self.stride, -1, self.stride).flatten(4, 5).flatten(2, 3)
        nearby = nearby[:, :, : weights.shape[1], : weights.shape[2]] * weights
        masks: Tensor = (nearby * (SHARPNESS * nearby).softmax(dim=1)).sum(dim=1)
        return masks

    def crop(self, masks: Tensor) -> Tensor:
        """Crop the margin off."""
        return masks[:, self.sigma : self.sigma + self.size[0], self.sigma : self.sigma + self.size[1]]

    def numbers(self) -> int:
        """Return how many numbers one mask takes in memory while it is computed."""
        height, width = (self._windows(cells) * self.stride for cells in self.shape)
        return (2 * self.radius + 1) ** 2 * height * width


def area_penalty(masks: Tensor, areas: Tensor) -> Tensor:
    """Return the squared distance of masks, margin included, from a binary mask of their area: (mask,)."""
    ordered = masks.flatten(1).sort(dim=1).values
    outside = (ordered.shape[1] * (1 - areas)).long()  # in the precision of the areas, truncated as the authors do
    ideal = torch.arange(ordered.shape[1], device=masks.device) >= outside[:, None]
    return (ordered - ideal.to(ordered)).square().mean(dim=1)


def smooth(maps: Tensor, sigma: float) -> Tensor:
    """Blur (…, height, width) by a Gaussian with zero padding."""
    reach = math.ceil(REACH * sigma)
    if reach == 0:
        return maps
    line = torch.arange(-reach, reach + 1, dtype=maps.dtype, device=maps.device)
    line = torch.exp(-(line / sigma).square() / 2)
    line = (line / line.sum())[None, None, None]
    flat = maps.reshape(-1, 1, *maps.shape[-2:])
    both = F.conv2d(F.conv2d(flat, line, padding=(0, reach)), line.mT, padding=(reach, 0))
    return both.reshape(maps.shape)


def pyramid(images: Tensor, levels: int, blur: float) -> Tensor:
    """Return a blur pyramid, (batch, level, channel, height, width); the last level is the image itself."""
    return torch.stack([smooth(images, blur * (1 - level / (levels - 1))) for level in range(levels)], dim=1)


def blend(blurred: Tensor, masks: Tensor) -> Tensor:
    """Take each pixel from the level of the pyramid given by its mask, interpolating between two levels.

    Args:
        blurred: shape (batch, level, channel, height, width).
        masks: from 0 (most blurred) to 1 (the image), shape (batch, height, width).
    """
    level = masks * (blurred.shape[1] - 1)
    lower = level.detach().floor()
    share = (level - lower)[:, None]
    index = lower.long()[:, None, None].expand(-1, 1, blurred.shape[2], -1, -1)
    low = blurred.gather(1, index)[:, 0]
    high = blurred.gather(1, (index + 1).clamp(max=blurred.shape[1] - 1))[:, 0]
    return low * (1 - share) + high * share
