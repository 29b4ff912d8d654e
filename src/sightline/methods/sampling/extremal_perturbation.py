"""Extremal perturbation: the smooth mask of a fixed area that has the largest effect on the score."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError, TargetError
from sightline.methods.sampling.extremal_mask import Lattice, area_penalty, blend, pyramid, smooth
from sightline.models.adapter import Adapter
from sightline.models.passes import full_precision, in_batches
from sightline.perturb.curve import read_scores
from sightline.registry import METHODS
from sightline.types import Attribution, Logit, LogProbability, Passes, PerImage, Probability, Target, pixel_grid

Variant = Literal["preserve", "delete", "dual"]
DRAWING = 4  # times the numbers of a mask, held for the gradient while it is drawn
AT_ONCE = 40_000_000  # numbers that masks may take while they are drawn
RATE, MOMENTUM, DAMPENING = 0.01, 0.9, 0.9
WEIGHT, GROWTH = 300.0, 1.0035  # of the area term, at the first step and per step


@METHODS.register(
    "extremal_perturbation",
    family="sampling",
    cite="fong2019",
    cost="steps forward, steps backward for each area; twice that for variant='dual'",
    needs=("gradient",),
    parity="TorchRay on a random CNN: all variants, both rewards, several areas, 1e-4; on EfficientNet-Lite0 the first "
    "steps, 1e-5, and the map as far as rounding lets it, .05",
)
@dataclass(frozen=True, slots=True)
class ExtremalPerturbation:
    r"""Extremal perturbation: the smooth mask of a fixed area that maximises, or when removed minimises, the score.

    .. math:: A = \sum_a m_a, \qquad m_a = \arg\max_m\; s(m \otimes x)
        - \lambda_t \operatorname{mean}\bigl(\operatorname{sort}(m) - r_a\bigr)^2

    :math:`m \otimes x` is the image, blurred the more the smaller the mask is; :math:`r_a` is zero for all but the
    largest share :math:`a` of the pixels, where it is one, so the penalty drives the mask to that area and to hard
    edges. Masks are parametrised on a coarse lattice through a smooth kernel, start at one everywhere, and are
    optimised by gradient ascent with momentum; every other step sees the image mirrored. Nothing is random. As in the
    authors' program the area is taken over the image and a margin around it, and the mask is that of the parameters
    before the last step. Lengths are in pixels, and chosen for images of 224.

    The map is a sum of nearly binary masks, so it ranks regions rather than pixels; give several areas for more levels.
    Never negative. The area penalty sorts pixels of equal value, so it is sensitive to rounding: masks in single and
    double precision differ by up to half their height in places, while the same precision is reproducible.

    Attributes:
        areas: shares of the image that masks cover, one mask each.
        steps: of the optimisation.
        variant: preserve maximises the score of the masked image, delete minimises it with the mask removed, or dual:
            the difference of both.
        contrastive: optimise the class's margin over the best other class instead of its score.
        stride: pixels between two parameters of the mask.
        sigma: reach of a parameter, in pixels; no less than the stride.
        levels: how many levels of blur.
        blur: the strongest, a Gaussian's standard deviation in pixels.
        smooth: blur of the final masks, as a share of the image's shorter side; the authors' pointing game has 0.09.
    """

    areas: tuple[float, ...] = (0.1,)
    steps: int = 800
    variant: Variant = "preserve"
    contrastive: bool = False
    stride: int = 7
    sigma: int = 21
    levels: int = 8
    blur: float = 20.0
    smooth: float = 0.0

    def __post_init__(self) -> None:
        if not self.areas or not all(0 < area < 1 for area in self.areas):
            raise RecipeError(f"got areas={self.areas}; give a tuple of shares between 0 and 1, such as (0.1,)")
        if not 1 <= self.stride <= self.sigma:
            raise RecipeError(f"got stride={self.stride}, sigma={self.sigma}; sigma is no less than the stride")

    def __call__(self, model: Adapter, images: Tensor, target: Target) -> Attribution:
        masks = self.masks(model, images, target)
        if self.smooth:
            masks = smooth(masks, self.smooth * min(images.shape[-2:]))
        return Attribution(masks.sum(dim=1)[None], pixel_grid(images))

    def cost(self, model: Adapter) -> Passes:
        runs = self.steps * len(self.areas) * (2 if self.variant == "dual" else 1)
        return Passes(runs, runs)

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image: a graph, the blurred images, and the masks while they are drawn."""
        drawn = DRAWING * Lattice(model.seen_size, self.stride, self.sigma).numbers()
        blurred = self.levels * model.image_channels * math.prod(model.seen_size)
        return model.peak(Passes(1, 1)) * len(self.areas) + len(self.areas) * (drawn + blurred) * model.dtype.itemsize

    def masks(self, model: Adapter, images: Tensor, target: Target) -> Tensor:
        """Return the masks of the areas before smoothing, shape (batch, area, height, width)."""
        target = margin_of(target) if self.contrastive else target
        lattice = Lattice((images.shape[-2], images.shape[-1]), self.stride, self.sigma)
        size = max(1, min(model.batch, AT_ONCE // lattice.numbers()) // len(self.areas))

        def work(rows: slice) -> Tensor:
            each = [row for row in range(rows.start, rows.stop) for _ in self.areas]
            for _, masks in self.search(model, images[each], target.take(each), lattice):
                final = masks.detach()
            return final.reshape(-1, len(self.areas), *lattice.size)

        return torch.cat(in_batches(work, len(images), size))

    def search(
        self, model: Adapter, images: Tensor, target: Target, lattice: Lattice
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the parameters and their masks at each step; images and targets are repeated for each area."""
        exact = full_precision(images)
        blurred = pyramid(exact, self.levels, self.blur)
        areas = torch.tensor(self.areas, dtype=torch.float64).repeat(len(images) // len(self.areas)).to(images.device)
        parameters = exact.new_ones(len(images), *lattice.shape)
        weights, velocity = lattice.weights(exact), None
        for step in range(self.steps):
            with torch.inference_mode(False), torch.enable_grad():
                parameters = parameters.detach().clone().requires_grad_()
                full = lattice.draw(parameters, weights)
                masks = lattice.crop(full)
                perturbed = self._perturbed(blurred, masks)
                penalty = WEIGHT * GROWTH**step * area_penalty(full, areas).sum()
            reward = self._reward_gradient(model, perturbed.to(images.dtype), target, mirrored=step % 2 == 0)
            (gradient,) = torch.autograd.grad(
                [perturbed, penalty], parameters, [-reward.to(perturbed), torch.ones_like(penalty)]
            )
            yield parameters.detach(), masks
            velocity = gradient if velocity is None else MOMENTUM * velocity + (1 - DAMPENING) * gradient
            parameters = (parameters.detach() - RATE * velocity).clamp(0, 1)

    def _perturbed(self, blurred: Tensor, masks: Tensor) -> Tensor:
        match self.variant:
            case "preserve":
                return blend(blurred, masks)
            case "delete":
                return blend(blurred, 1 - masks)
            case _:
                return torch.cat([blend(blurred, masks), blend(blurred, 1 - masks)])

    def _reward_gradient(self, model: Adapter, perturbed: Tensor, target: Target, *, mirrored: bool) -> Tensor:
        """Return the gradient of the reward with respect to the perturbed images."""
        leaf = perturbed.detach().requires_grad_()
        with torch.inference_mode(False), torch.enable_grad():
            logits = model(leaf.flip(-1) if mirrored else leaf)
            if self.variant == "dual":
                kept, cut = logits.chunk(2)
                reward = torch.cat([read_scores(model, target, kept), -read_scores(model, target, cut)])
            else:
                reward = read_scores(model, target, logits) * (-1 if self.variant == "delete" else 1)
        return model.gradients(reward, {"image": leaf})["image"]


@dataclass(frozen=True, slots=True)
class Margin:
    """The margin of a class: its logit minus the largest logit of the other classes."""

    index: int | tuple[int, ...]

    def __call__(self, logits: Tensor) -> Tensor:
        index = torch.as_tensor(self.index, device=logits.device).expand(len(logits))[:, None]
        others = logits.scatter(1, index, -torch.inf).amax(dim=1)
        return logits.gather(1, index)[:, 0] - others

    def take(self, rows: Sequence[int]) -> Margin:
        return self if isinstance(self.index, int) else Margin(tuple(self.index[row] for row in rows))


def margin_of(target: Target) -> Target:
    """Return the margin of a target's class over all others."""
    if isinstance(target, PerImage):
        return PerImage(tuple(margin_of(each) for each in target.targets))
    if not isinstance(target, Logit | Probability | LogProbability):
        raise TargetError(
            f"contrastive=True sets a class against all others, and {type(target).__name__} is no class; "
            "give a class, or contrastive=False"
        )
    return Margin(target.index)
