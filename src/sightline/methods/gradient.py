r"""Gradients, at the tokens of every block or at the pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import UnsupportedModel
from sightline.models.adapter import Adapter
from sightline.models.vit import VisionTransformer
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


def values_and_gradients(
    model: Adapter, images: Tensor, target: Target, at: At
) -> tuple[list[tuple[Tensor, Tensor]], TokenGrid]:
    """Return (value, gradient) with channels last, one pair per start layer, from one pass forward and one backward."""
    if place(model, at) == "pixels":
        pixels = images.detach().requires_grad_()
        with torch.enable_grad():
            score = target(model(pixels))
        gradient = model.gradients(score, {"image": pixels})["image"]
        return [(pixels.detach().movedim(1, -1), gradient.movedim(1, -1))], pixel_grid(images)
    assert isinstance(model, VisionTransformer)
    with model.capture(*model.every("input"), gradient=True) as seen:
        score = target(model(images))
    gradients = model.gradients(score, seen)
    return [(seen[name].detach(), gradients[name]) for name in seen], model.grid_of(images)


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
class Gradient:
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

    def __call__(self, model: Adapter, images: Tensor, target: Target) -> Attribution:
        pairs, grid = values_and_gradients(model, images, target, self.at)
        at = place(model, self.at)
        scores = [reduce_channels(gradient, self.variant, at) for _, gradient in pairs]
        return Attribution(on_grid(scores, grid, at), grid)

    def cost(self, model: Adapter) -> Passes:
        return Passes(1, 1)


@METHODS.register(
    "ixg",
    family="gradient",
    cite="shrikumar2016",
    cost="1 forward, 1 backward",
    needs=("gradient",),
    parity="captum InputXGradient, 1e-5",
)
@dataclass(frozen=True, slots=True)
class InputTimesGradient:
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

    def __call__(self, model: Adapter, images: Tensor, target: Target) -> Attribution:
        pairs, grid = values_and_gradients(model, images, target, self.at)
        return Attribution(on_grid([(x * g).sum(dim=-1) for x, g in pairs], grid, place(model, self.at)), grid)

    def cost(self, model: Adapter) -> Passes:
        return Passes(1, 1)


@METHODS.register(
    "smooth_grad",
    family="gradient",
    cite="smilkov2017",
    cost="samples forward, samples backward",
    needs=("gradient",),
    parity="captum Saliency averaged over the same noise, 1e-5",
)
@dataclass(frozen=True, slots=True)
class SmoothGrad:
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

    def __call__(self, model: Adapter, images: Tensor, target: Target) -> Attribution:
        first: list[Tensor] = []  # running sum over samples, per start layer, of the gradient with its channels
        second: list[Tensor] = []
        for noisy, rows in noisy_batches(images, self.samples, self.noise, self.seed, model.batch):
            pairs, grid = values_and_gradients(model, noisy, target.take(rows), self.at)
            gradients = [gradient.unflatten(0, (len(images), -1)) for _, gradient in pairs]
            first = _add(first, [g.sum(dim=1) / self.samples for g in gradients])
            second = _add(second, [g.square().sum(dim=1) / self.samples for g in gradients])
        moments = {
            "mean": first,
            "squared": second,
            "variance": [b - a.square() for a, b in zip(first, second, strict=True)],
        }[self.variant]
        at = place(model, self.at)
        how: Reduction | None = None if self.variant == "mean" else "sum"
        return Attribution(on_grid([reduce_channels(x, how, at) for x in moments], grid, at), grid)

    def cost(self, model: Adapter) -> Passes:
        return Passes(self.samples, self.samples)


def _add(total: list[Tensor], more: list[Tensor]) -> list[Tensor]:
    return [a + b for a, b in zip(total, more, strict=True)] if total else more
