"""DAVE: input times gradient with fixed operators, averaged over shifted, turned and noisy copies of the image."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.catalogue.ranges import Range
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.backward.libra import balanced
from sightline.models.passes import take_rows
from sightline.registry import METHODS
from sightline.seeds import generators, normal, uniform
from sightline.types import Attribution, Passes, Target, pixel_grid

# The numbers of the authors' configurations, the same for all of their models but the noise.
FLIPPED, DEGREES, SHIFT, SCALE = 0.5, 20.0, 0.1, 0.1
DEVIATION, OUTLYING, EPSILON = 1.4826, 2.5, 1e-8  # a normal distribution's deviation by its median deviation
OUTLIER_COPIES = 5  # of all contributions that leaving outliers out holds at once
GAUSSIAN, BILATERAL = (11, 7.0), (5, 0.5, 0.05)  # window and deviation; of the second filter also that of values


@METHODS.register(
    "dave",
    family="gradient",
    cite="wrobel2026",
    cost="samples forward, samples backward",
    needs=("gradient", "tokens"),
    parity="closed forms: without noise and transformations libra(ixg(at='pixels')), the adjoint of a transformation "
    "by autograd, the mean without outliers and both filters written out, 1e-9",
)
@dataclass(frozen=True, slots=True)
class Dave(MultiTarget):
    r"""DAVE: the image times its gradient with fixed operators, averaged over transformed and noisy copies.

    .. math:: A = \operatorname*{mean}_{k}\; x \odot \nabla_x\, [s]\bigl((1 - t_k)\,\tau_k(x) +
        \sqrt{1 - (1 - t_k)^2}\;\varepsilon_k\bigr), \qquad t_k = \frac{k}{n - 1}\,\alpha

    where the gradient of :math:`[s]` takes attention, gates of activations and denominators of norms for constants, as
    ``libra`` does, :math:`\tau_k` flips, turns by up to 20 degrees, shifts by up to a tenth and scales by up to a tenth
    at random, and :math:`\varepsilon_k` is normal noise. The gradient reaches :math:`x` through :math:`\tau_k`, so what
    follows the content of the image adds up and the grid of patches does not :cite:p:`wrobel2026`. At each pixel and
    channel, values further from the median than 2.5 deviations, estimated from the median deviation, are left out of
    the mean. It is for maps of pixels where those of patches are too coarse.

    Then channels are summed, negative sums become zero, half the map is replaced by its Gaussian blur, and a bilateral
    filter is applied. The authors' code also divides the map by its maximum.

    Attributes:
        samples: how many copies.
        noise: α, the share of the last copy that is noise; the authors' for DeiT III B/16, who ask to tune it for
            each model.
        output: filtered as above; or signed, the sum over channels as it is.
        seed: of transformations and noise, which depend on the seed and the image alone.
    """

    samples: Annotated[int, Range(1, 100_000)] = 50
    noise: Annotated[float, Range(0, 1)] = 0.9
    output: Literal["filtered", "signed"] = "filtered"
    seed: int = 0

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        pixels = model.encoded(images.detach())
        found: list[list[Tensor]] = [[] for _ in targets]
        for copies, shares, maps, noise, rows in self._batches(pixels, model.batch):
            leaf = copies.requires_grad_()
            with torch.enable_grad():
                kept = 1 - shares[:, None, None, None]
                seen = kept * transformed(leaf, maps) + (1 - kept.square()).sqrt() * noise
                with balanced():
                    logits = model(seen)
                scores = [target.take(rows)(logits) for target in targets]
            for of_target, seen_by in zip(model.gradients_each(scores, {"image": leaf}), found, strict=True):
                contributions = (of_target["image"] * leaf.detach()).unflatten(0, (len(images), -1))
                seen_by.append(contributions if contributions.dtype == torch.float64 else contributions.float())
        return [Attribution(self._map(torch.cat(each, dim=1))[None], pixel_grid(images)) for each in found]

    def _batches(self, pixels: Tensor, batch: int) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, list[int]]]:
        """Yield copies, their shares of noise, their transformations and noise, and the image that each is of."""
        random = generators(self.seed, pixels)
        share = torch.linspace(0.0, self.noise, self.samples, dtype=torch.float64).to(pixels)
        at_once = max(1, batch // len(pixels))
        for first in range(0, self.samples, at_once):
            steps = range(first, min(first + at_once, self.samples))
            rows = [row for row in range(len(pixels)) for _ in steps]
            maps, noise = [], []
            for row in rows:
                maps.append(random_map(random[row]))
                noise.append(normal(pixels[row], random[row]))
            shares = share[first : first + at_once].repeat(len(pixels))
            yield take_rows(pixels, rows), shares, torch.stack(maps), torch.stack(noise), rows

    def _map(self, contributions: Tensor) -> Tensor:
        """Return the map of each image from its copies, (batch, copy, channel, height, width)."""
        summed = mean_without_outliers(contributions).sum(dim=1)
        return summed if self.output == "signed" else filtered(summed)

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(self.samples, self.samples * count)

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image: the graphs of a batch, and the contributions of every copy."""
        height, width = model.default_size
        contributions = self.samples * model.image_channels * height * width * max(4, model.dtype.itemsize)
        return model.peak(Passes(self.samples, self.samples)) + OUTLIER_COPIES * contributions


def random_map(generator: torch.Generator) -> Tensor:
    """Draw a transformation, (2, 3): its inverse without the shift, and the shift in halves of each side."""
    flip, turn, right, down, size = uniform((5,), generator).tolist()
    angle = math.radians(DEGREES * (2 * turn - 1))
    factor = 1 / (1 + SCALE * (2 * size - 1))
    mirror = -1.0 if flip < FLIPPED else 1.0
    cosine, sine = factor * math.cos(angle), factor * math.sin(angle)
    return torch.tensor(
        [
            [mirror * cosine, mirror * sine, 2 * SHIFT * (2 * right - 1)],
            [-sine, cosine, 2 * SHIFT * (2 * down - 1)],
        ],
        dtype=torch.float64,
    )


def transformed(images: Tensor, maps: Tensor) -> Tensor:
    """Transform each image by its map, zeros where it has no pixels; differentiable."""
    height, width = images.shape[-2:]
    sides = torch.tensor([width, height], dtype=maps.dtype)
    linear = maps[:, :, :2] * sides[None, None] / sides[None, :, None]  # angles are those of pixels
    source = torch.cat([linear, -linear @ maps[:, :, 2:]], dim=2)
    grid = F.affine_grid(source.to(images), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def mean_without_outliers(values: Tensor) -> Tensor:
    """Return the mean over the second axis of the values that are not far from its median.

    >>> mean_without_outliers(torch.tensor([[1.0, 2.0, 3.0, 50.0]]))
    tensor([2.])
    """
    distance = (values - values.median(dim=1, keepdim=True).values).abs()
    near = distance <= OUTLYING * (DEVIATION * distance.median(dim=1, keepdim=True).values + EPSILON)
    return (values * near).sum(dim=1) / near.sum(dim=1).clamp(min=1)


def filtered(maps: Tensor) -> Tensor:
    """Return maps, (batch, height, width), without what is negative, half blurred, then filtered bilaterally."""
    positive = maps.relu()[:, None]
    window, sigma = GAUSSIAN
    kernel = _bell(window, sigma).to(maps)
    blurred = F.conv2d(positive, (kernel / kernel.sum())[None, None], padding=window // 2)
    half = (positive + blurred) / 2
    window, sigma, spread = BILATERAL
    around = F.unfold(half, window, padding=window // 2)
    weights = torch.exp(-(((around - half.flatten(2)) / spread) ** 2) / 2) * _bell(window, sigma).to(maps).reshape(
        -1, 1
    )
    smooth = (weights * around).sum(dim=1) / (weights.sum(dim=1) + EPSILON)
    return smooth.reshape(maps.shape)


def _bell(window: int, sigma: float) -> Tensor:
    """Return a Gaussian within a square window, 1 at its centre."""
    line = torch.exp(-(torch.arange(-(window // 2), window // 2 + 1, dtype=torch.float64) ** 2) / (2 * sigma**2))
    return line[:, None] * line[None]
