"""Class activation maps that weigh channels by their gradients: one weight per channel, the same in every cell."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError, UnsupportedMethod
from sightline.methods.cam import activation_and_gradients
from sightline.methods.gradient import values_and_gradients
from sightline.methods.several import Sharing
from sightline.models.adapter import Adapter
from sightline.models.vit import VisionTransformer
from sightline.registry import METHODS, spec_of
from sightline.types import Attribution, Passes, Target, map_grid

Where = Literal["paper", "stream"]


def check_variant(variant: str, known: Sequence[str]) -> None:
    """Refuse a variant that does not exist."""
    if variant not in known:
        raise RecipeError(f"got variant={variant!r}; choose from {', '.join(known)}")


class GradientCam(Sharing):
    """A map made of a layer's activation and of the target's gradient there; a subclass says how."""

    __slots__ = ()
    layer: str | int | None
    variant: str

    @abstractmethod
    def scores(self, activation: Tensor, gradient: Tensor) -> Tensor:
        """Turn an activation and its gradient, both (batch, channel, cell), into one score per cell, (batch, cell)."""

    def several(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        if every_layer or self.variant == "stream":
            return self._streams(model, images, targets)
        activation, gradients = activation_and_gradients(model, images, targets, self.layer)
        cells = activation.shape[-2:]
        maps = [self.scores(activation.flatten(2), gradient.flatten(2)).unflatten(1, cells) for gradient in gradients]
        return [Attribution(values[None], map_grid(values, images)) for values in maps]

    def _streams(self, model: Adapter, images: Tensor, targets: Sequence[Target]) -> list[Attribution]:
        """Score the tokens that enter each block, prefix included, all from one pass back."""
        if not isinstance(model, VisionTransformer):
            name = spec_of(self).name
            raise UnsupportedMethod(f"{name} has one layer on {model.name}; layers are summed on transformers only")
        found, grid = values_and_gradients(model, images, targets, "tokens")
        scores = [[self.scores(x.transpose(1, 2), g.transpose(1, 2)) for x, g in pairs] for pairs in found]
        return [Attribution(grid.to_map(torch.stack(layers)), grid) for layers in scores]

    def several_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        whole = every_layer or self.variant == "stream"
        return Passes(1, count * (1 if whole else model.remaining(model.layer(self.layer))))


def weighted(weights: Tensor, activation: Tensor) -> Tensor:
    """Sum the channels, (batch, channel, cell), with one weight each, (batch, channel)."""
    return torch.einsum("bk,bkn->bn", weights, activation)


@METHODS.register(
    "grad_cam_pp",
    family="cam",
    cite="chattopadhay2018",
    cost="1 forward, backward from the output to the layer",
    needs=("gradient", "layers"),
    parity="grad-cam GradCAMPlusPlus, CNN and ViT, 1e-5",
)
@dataclass(frozen=True, slots=True)
class GradCamPlusPlus(GradientCam):
    r"""Grad-CAM++: channels weighted by their positive gradients, each cell counted by its curvature.

    .. math::
        A_{ij} = \sum_k \Bigl(\sum_{uv} \alpha_{kuv} \bigl[g_{kuv}\bigr]^+\Bigr) F_{kij}, \qquad
        \alpha_{kuv} = \frac{g_{kuv}^2}{2 g_{kuv}^2 + g_{kuv}^3 \sum_{ab} F_{kab} + 10^{-6}}

    where :math:`g = \partial s / \partial F`. The paper explains :math:`e^s`; that factor is one positive number per
    image and left out. Made for activations that are not negative: where :math:`\sum F` is, the denominator can come
    near zero and one channel take over.

    Attributes:
        layer: a site's name or an index; by default the right one for the model.
        variant: "paper", or "stream" for the tokens that enter each block, prefix included in every sum.
    """

    layer: str | int | None = None
    variant: Where = "paper"

    def __post_init__(self) -> None:
        check_variant(self.variant, ("paper", "stream"))

    def scores(self, activation: Tensor, gradient: Tensor) -> Tensor:
        total = activation.sum(dim=-1, keepdim=True)
        squared = gradient**2
        alpha = squared / (2 * squared + total * squared * gradient + 1e-6)
        return weighted((alpha * gradient.clamp(min=0)).sum(dim=-1), activation)


@METHODS.register(
    "xgrad_cam",
    family="cam",
    cite="fu2020",
    cost="1 forward, backward from the output to the layer",
    needs=("gradient", "layers"),
    parity="grad-cam XGradCAM, CNN and ViT, 1e-5; Fu0511/XGrad-CAM, 1e-5",
)
@dataclass(frozen=True, slots=True)
class XGradCam(GradientCam):
    r"""XGrad-CAM: channels weighted by their gradients, averaged where the channel is active.

    .. math:: A_{ij} = \sum_k \frac{\sum_{uv} g_{kuv} F_{kuv}}{\varepsilon + \sum_{uv} F_{kuv}}\, F_{kij}

    where :math:`g = \partial s / \partial F`. The map sums to :math:`\sum g F`, and so to the score itself where the
    rest of the model is linear. Made for activations that are not negative: a channel whose values cancel gets a weight
    without bound; `xgrad_cam_plus` does not.

    Attributes:
        layer: a site's name or an index; by default the right one for the model.
        variant: "paper" with ε = 1e-7, "authors" with 1e-6 as in their program, or "stream" for the tokens that enter
            each block, prefix included in every sum.
    """

    layer: str | int | None = None
    variant: Literal["paper", "authors", "stream"] = "paper"

    def __post_init__(self) -> None:
        check_variant(self.variant, ("paper", "authors", "stream"))

    def scores(self, activation: Tensor, gradient: Tensor) -> Tensor:
        epsilon = 1e-6 if self.variant == "authors" else 1e-7
        return weighted((gradient * activation).sum(dim=-1) / (activation.sum(dim=-1) + epsilon), activation)


@METHODS.register(
    "xgrad_cam_plus",
    family="cam",
    cite="libragrad2025",
    cost="1 forward, backward from the output to the layer",
    needs=("gradient", "layers"),
    parity="closed form; xgrad_cam where no activation is negative, 1e-12",
)
@dataclass(frozen=True, slots=True)
class XGradCamPlus(GradientCam):
    r"""XGrad-CAM+: channels weighted by their gradients, averaged by how strongly the channel answers, either way.

    .. math:: A_{ij} = \sum_k \frac{\sum_{uv} g_{kuv} |F_{kuv}|}{10^{-7} + \sum_{uv} |F_{kuv}|}\, F_{kij}

    where :math:`g = \partial s / \partial F`. Every weight lies between the channel's smallest and largest gradient, so
    nothing blows up where activations have both signs, as on tokens.

    Attributes:
        layer: a site's name or an index; by default the right one for the model.
        variant: "paper", or "stream" for the tokens that enter each block, prefix included in every sum.
    """

    layer: str | int | None = None
    variant: Where = "paper"

    def __post_init__(self) -> None:
        check_variant(self.variant, ("paper", "stream"))

    def scores(self, activation: Tensor, gradient: Tensor) -> Tensor:
        size = activation.abs()
        return weighted((gradient * size).sum(dim=-1) / (size.sum(dim=-1) + 1e-7), activation)
