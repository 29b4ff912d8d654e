r"""Gradients, at the tokens of every block or at the pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError, UnsupportedModel
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.vit.adapter import VisionTransformer
from sightline.perturb.noise import noisy_batches
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, TokenGrid, pixel_grid

At = Literal["tokens", "pixels"] | None
Reduction = Literal["sum", "norm", "abs_sum", "abs_max"]


def place(model: Adapter, at: At) -> str:
    """Decide where the gradient is taken: tokens by default on a transformer, pixels elsewhere."""
    if at == "tokens" and not isinstance(model, VisionTransformer):
        raise UnsupportedModel(f"{model.name} has no tokens; write at='pixels'")
    return at or ("tokens" if isinstance(model, VisionTransformer) else "pixels")


Pair = tuple[Tensor, Tensor]


def values_and_gradients(
    model: Adapter, images: Tensor, targets: Sequence[Target], at: At
) -> tuple[list[list[Pair]], TokenGrid]:
    """Return (value, gradient) with channels last, one pair per start layer, for each target.

    All of it comes from one pass forward and one backward per target.
    """
    if place(model, at) == "pixels":
        pixels = images.detach().requires_grad_()
        with torch.enable_grad():
            logits = model(pixels)
            scores = [target(logits) for target in targets]
        found = model.gradients_each(scores, {"image": pixels})
        value = pixels.detach().movedim(1, -1)
        return [[(value, gradients["image"].movedim(1, -1))] for gradients in found], pixel_grid(images)
    assert isinstance(model, VisionTransformer)
    with model.capture(*model.every("input"), gradient=True) as seen:
        logits = model(images)
        scores = [target(logits) for target in targets]
    found = model.gradients_each(scores, seen)
    return [[(seen[name].detach(), gradients[name]) for name in seen] for gradients in found], model.grid_of(images)


def on_grid(scores: list[Tensor], grid: TokenGrid, at: str) -> Tensor:
    """Stack one score per token or pixel and layer into (layer, batch, height, width)."""
    stacked = torch.stack(scores)
    return grid.to_map(stacked) if at == "tokens" else stacked


def reduce_channels(values: Tensor, how: Reduction | None, at: str) -> Tensor:
    """Make one number of a gradient's channels, the last axis; by default their sum at pixels, their length at tokens.

    Every block and the final norm of a pre-norm transformer ignore a shift of all channels of a token, so there the sum
    of the gradient is zero, always.
    """
    match how or ("norm" if at == "tokens" else "sum"):
        case "sum":
            return values.sum(dim=-1)
        case "norm":
            length: Tensor = torch.linalg.vector_norm(values, dim=-1)
            return length
        case "abs_sum":
            return values.abs().sum(dim=-1)
        case _:
            return values.abs().amax(dim=-1)


@METHODS.register(
    "gradient",
    family="gradient",
    cite="simonyan2014",
    cost="1 forward, 1 backward",
    needs=("gradient",),
    parity="captum Saliency(abs=False), 1e-5",
)
@dataclass(frozen=True, slots=True)
class Gradient(MultiTarget):
    r"""The gradient of the target, its channels made one number.

    .. math:: A_i = \sum_d \frac{\partial s}{\partial x_{i,d}} \quad\text{(pixels)}, \qquad
        A_{\ell,i} = \Bigl\lVert \frac{\partial s}{\partial x_{\ell,i}} \Bigr\rVert_2 \quad\text{(tokens)}

    where :math:`x_\ell` are the tokens that enter block :math:`\ell`. It says how the score would move, not what made
    it. At the tokens of a pre-norm transformer the signed sum is zero by construction (every norm ignores a shift of
    all channels), so the length is taken there.

    Attributes:
        at: tokens or pixels; by default tokens on a transformer.
        variant: how channels become one number: sum (signed), norm (L2), abs_sum or abs_max; by default as above.
    """

    at: At = None
    variant: Reduction | None = None

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        found, grid = values_and_gradients(model, images, targets, self.at)
        at = place(model, self.at)
        scores = [[reduce_channels(gradient, self.variant, at) for _, gradient in pairs] for pairs in found]
        return [Attribution(on_grid(layers, grid, at), grid) for layers in scores]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1, count)


@METHODS.register(
    "ixg",
    family="gradient",
    cite="shrikumar2016",
    cost="1 forward, 1 backward",
    needs=("gradient",),
    parity="captum InputXGradient, 1e-5",
)
@dataclass(frozen=True, slots=True)
class InputTimesGradient(MultiTarget):
    r"""Input times gradient.

    .. math:: A_{\ell,i} = \sum_d x_{\ell,i,d}\, \frac{\partial s}{\partial x_{\ell,i,d}}

    where :math:`x_\ell` are the tokens that enter block :math:`\ell` (:math:`x_0` with positions, before any norm),
    or the pixels as the model is fed them. Over all tokens, prefix included, it sums to :math:`s` where the rest of
    the network is homogeneous of degree one. One pass back yields every start layer, so ``plus(ixg)`` costs what
    ``ixg`` costs.

    Attributes:
        at: tokens or pixels; by default tokens on a transformer.
    """

    at: At = None

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        found, grid = values_and_gradients(model, images, targets, self.at)
        at = place(model, self.at)
        scores = [[(x * g).sum(dim=-1) for x, g in pairs] for pairs in found]
        return [Attribution(on_grid(layers, grid, at), grid) for layers in scores]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1, count)


@METHODS.register(
    "smooth_grad",
    family="gradient",
    cite="smilkov2017",
    cost="samples forward, samples backward",
    needs=("gradient",),
    parity="captum Saliency averaged over the same noise, 1e-5",
)
@dataclass(frozen=True, slots=True)
class SmoothGrad(MultiTarget):
    r"""The gradient averaged over noisy copies of the image.

    .. math:: A = \frac1n \sum_{k=1}^{n} \nabla s\bigl(x + \sigma\,(\max x - \min x)\,\varepsilon_k\bigr),
        \qquad \varepsilon_k \sim \mathcal N(0, 1)

    The noise is scaled by the range of each image and depends on the seed and the image alone. Channels become one
    number as for ``gradient``; squares and variances are summed.

    Attributes:
        samples: how many noisy copies.
        noise: the standard deviation, as a share of the image's range.
        seed: of the noise.
        at: tokens or pixels; by default tokens on a transformer.
        variant: mean of the gradients, mean of their squares, or their variance.
    """

    samples: int = 25
    noise: float = 0.15
    seed: int = 0
    at: At = None
    variant: Literal["mean", "squared", "variance"] = "mean"

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise RecipeError(f"got samples={self.samples}; give 1 or more")
        if not 0 <= self.noise < math.inf:
            raise RecipeError(f"got noise={self.noise}; give a share of the image's range, 0 or more")

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        first: list[list[Tensor]] = [[] for _ in targets]  # running mean over samples, per target and start layer
        second: list[list[Tensor]] = [[] for _ in targets]
        for noisy, rows in noisy_batches(images, self.samples, self.noise, self.seed, model.batch):
            found, grid = values_and_gradients(model, noisy, [target.take(rows) for target in targets], self.at)
            for index, pairs in enumerate(found):
                gradients = [gradient.unflatten(0, (len(images), -1)) for _, gradient in pairs]
                first[index] = _add(first[index], [g.sum(dim=1) / self.samples for g in gradients])
                second[index] = _add(second[index], [g.square().sum(dim=1) / self.samples for g in gradients])
        at = place(model, self.at)
        how: Reduction | None = None if self.variant == "mean" else "sum"
        moments = [self._moment(a, b) for a, b in zip(first, second, strict=True)]
        return [Attribution(on_grid([reduce_channels(x, how, at) for x in m], grid, at), grid) for m in moments]

    def _moment(self, first: list[Tensor], second: list[Tensor]) -> list[Tensor]:
        match self.variant:
            case "mean":
                return first
            case "squared":
                return second
            case _:
                return [b - a.square() for a, b in zip(first, second, strict=True)]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(self.samples, self.samples * count)


def _add(total: list[Tensor], more: list[Tensor]) -> list[Tensor]:
    return [a + b for a, b in zip(total, more, strict=True)] if total else more
