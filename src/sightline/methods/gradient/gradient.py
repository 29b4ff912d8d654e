"""Gradients at the pixels, or at the tokens that enter each block: gradient, input times gradient, SmoothGrad."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import UnsupportedModel
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.passes import shared
from sightline.models.vit.adapter import VisionTransformer
from sightline.perturb.noise import noisy_batches
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, TokenGrid, pixel_grid

At = Literal["tokens", "pixels"] | None
Reduction = Literal["sum", "norm", "abs_sum", "abs_max"]


def tokens_or_pixels(model: Adapter, at: At) -> str:
    """Return where the gradient is taken: as asked, else at the tokens of a transformer and the pixels elsewhere."""
    if at == "tokens" and not isinstance(model, VisionTransformer):
        raise UnsupportedModel(f"{model.name} has no tokens; write at='pixels'")
    return at or ("tokens" if isinstance(model, VisionTransformer) else "pixels")


Pair = tuple[Tensor, Tensor]


def values_and_gradients(
    model: Adapter, images: Tensor, targets: Sequence[Target], at: At
) -> tuple[list[list[Pair]], TokenGrid]:
    """Return (value, gradient) with channels last, one pair per start layer, for each target.

    Costs one forward pass, and one backward pass per target.
    """
    return _values_and_gradients(model, images, targets, tokens_or_pixels(model, at))


@shared
def _values_and_gradients(
    model: Adapter, images: Tensor, targets: Sequence[Target], at: str
) -> tuple[list[list[Pair]], TokenGrid]:
    if at == "pixels":
        pixels = model.encoded(images.detach()).requires_grad_()
        with torch.enable_grad():
            logits = model(pixels)
            scores = [target(logits) for target in targets]
        gradients = model.gradients_each(scores, {"image": pixels})
        value = pixels.detach().movedim(1, -1)
        return [[(value, of_target["image"].movedim(1, -1))] for of_target in gradients], pixel_grid(images)
    assert isinstance(model, VisionTransformer)
    with model.capture("block.*.input", gradient=True) as seen:
        logits = model(images)
        scores = [target(logits) for target in targets]
    gradients = model.gradients_each(scores, seen)
    pairs = [[(value.detach(), of_target[name]) for name, value in seen.items()] for of_target in gradients]
    return pairs, model.grid_of(images)


def on_grid(scores: list[Tensor], grid: TokenGrid, at: str) -> Attribution:
    """Return one score per token and block, or per pixel, as an attribution."""
    stacked = torch.stack(scores)
    if at == "pixels":
        return Attribution(stacked, grid)
    return Attribution(grid.to_map(stacked), grid, layers=tuple(range(len(scores))))


def reduce_channels(values: Tensor, how: Reduction | None, at: str) -> Tensor:
    """Reduce a gradient over its channels, the last axis; by default to their sum at pixels, their L2 norm at tokens.

    The layer norms of a pre-norm transformer are invariant to a shift of all channels of a token, so the sum of the
    gradient over channels is always zero there.
    """
    match how or ("norm" if at == "tokens" else "sum"):
        case "sum":
            return values.sum(dim=-1)
        case "norm":
            norm: Tensor = torch.linalg.vector_norm(values, dim=-1)
            return norm
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
    r"""Gradient saliency: the gradient of the score at each pixel or token, reduced over channels.

    .. math:: A_i = \sum_d \frac{\partial s}{\partial x_{i,d}} \quad\text{(pixels)}, \qquad
        A_{\ell,i} = \Bigl\lVert \frac{\partial s}{\partial x_{\ell,i}} \Bigr\rVert_2 \quad\text{(tokens)}

    where :math:`x_\ell` are the tokens that enter block :math:`\ell`. It is a sensitivity: how the score would change,
    not what it is made of. At the tokens of a pre-norm transformer the signed sum over channels is always zero, because
    layer norms are invariant to a shift of all channels, so the L2 norm is taken there.

    Attributes:
        at: tokens or pixels; by default tokens on a transformer.
        variant: the reduction over channels: sum (signed), norm (L2), abs_sum or abs_max; by default as above.
    """

    at: At = None
    variant: Reduction | None = None

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        pairs, grid = values_and_gradients(model, images, targets, self.at)
        at = tokens_or_pixels(model, self.at)
        scores = [[reduce_channels(g, self.variant, at) for _, g in of_target] for of_target in pairs]
        return [on_grid(layers, grid, at) for layers in scores]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1, count)


@METHODS.register(
    "ixg",
    family="gradient",
    cite="shrikumar2016",
    cost="1 forward, 1 backward",
    needs=("gradient",),
    parity="captum InputXGradient, 1e-5; captum LayerGradientXActivation at every block, 1e-5",
)
@dataclass(frozen=True, slots=True)
class InputTimesGradient(MultiTarget):
    r"""Input times gradient, summed over channels: a first-order estimate of what each pixel or token contributes.

    .. math:: A_{\ell,i} = \sum_d x_{\ell,i,d}\, \frac{\partial s}{\partial x_{\ell,i,d}}

    where :math:`x_\ell` are the tokens that enter block :math:`\ell` (:math:`x_0` with positions, before any norm),
    or the normalised pixels. Over all tokens, prefix included, it sums to :math:`s` where the rest of
    the network is homogeneous of degree one. One backward pass yields every start layer, so ``plus(ixg)`` costs what
    ``ixg`` costs.

    Attributes:
        at: tokens or pixels; by default tokens on a transformer.
    """

    at: At = None

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        pairs, grid = values_and_gradients(model, images, targets, self.at)
        at = tokens_or_pixels(model, self.at)
        scores = [[(x * g).sum(dim=-1) for x, g in of_target] for of_target in pairs]
        return [on_grid(layers, grid, at) for layers in scores]

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
    r"""SmoothGrad: the gradient averaged over noisy copies of the image, to reduce its visual noise.

    .. math:: A = \frac1n \sum_{k=1}^{n} \nabla s\bigl(x + \sigma\,(\max x - \min x)\,\varepsilon_k\bigr),
        \qquad \varepsilon_k \sim \mathcal N(0, 1)

    The noise is scaled by the range of each image and depends on the seed and the image alone. Channels are reduced as
    for ``gradient``; squares and variances are summed.

    Attributes:
        samples: number of noisy copies.
        noise: standard deviation of the noise, as a fraction of the image's range.
        seed: of the noise.
        at: tokens or pixels; by default tokens on a transformer.
        variant: mean of the gradients, mean of their squares, or their variance.
    """

    samples: int = 25
    noise: float = 0.15
    seed: int = 0
    at: At = None
    variant: Literal["mean", "squared", "variance"] = "mean"

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        first: list[list[Tensor]] = [[] for _ in targets]  # running mean over samples, per target and start layer
        second: list[list[Tensor]] = [[] for _ in targets]
        for noisy, rows in noisy_batches(images, self.samples, self.noise, self.seed, model.batch):
            pairs, grid = values_and_gradients(model, noisy, [target.take(rows) for target in targets], self.at)
            for index, of_target in enumerate(pairs):
                gradients = [gradient.unflatten(0, (len(images), -1)) for _, gradient in of_target]
                if self.variant != "squared":
                    first[index] = _add(first[index], [g.sum(dim=1) / self.samples for g in gradients])
                if self.variant != "mean":
                    second[index] = _add(second[index], [g.square().sum(dim=1) / self.samples for g in gradients])
        at = tokens_or_pixels(model, self.at)
        how: Reduction | None = None if self.variant == "mean" else "sum"
        moments = [self._moment(a, b) for a, b in zip(first, second, strict=True)]
        scores = [[reduce_channels(layer, how, at) for layer in layers] for layers in moments]
        return [on_grid(layers, grid, at) for layers in scores]

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
    return [a.add_(b) for a, b in zip(total, more, strict=True)] if total else more
