"""Class activation maps: a weighted sum of a layer's channels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import SiteError, UnsupportedMethod
from sightline.methods.cam.fusion import Fusion, Layer, Layers, check_layers, fused
from sightline.methods.gradient.gradient import values_and_gradients
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.cnn.adapter import Convolutional
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS, spec_of
from sightline.types import Attribution, Passes, Target, map_grid

Where = Literal["paper", "stream"]


def activation_and_gradients(
    model: Adapter, images: Tensor, targets: Sequence[Target], layer: Layer
) -> tuple[Tensor, list[Tensor]]:
    """Return a layer's output and each target's gradient there, all (batch, channel, height, width)."""
    site = model.layer(layer)
    if isinstance(model, Convolutional):
        activation, found = model.activation_and_gradients(images, site, targets)
        return activation, _checked(model, site, found)
    return activations_and_gradients(model, images, targets, [site])[0]


def activations_and_gradients(
    model: Adapter, images: Tensor, targets: Sequence[Target], sites: Sequence[str]
) -> list[tuple[Tensor, list[Tensor]]]:
    """Return the same of several layers, from one pass forward and one back per target."""
    with model.capture(*sites, gradient=True) as seen:
        logits = model(images)
        scores = [target(logits) for target in targets]
    every = model.gradients_each(scores, seen)
    return [
        (
            model.to_map(site, seen[site].detach(), images),
            _checked(model, site, [model.to_map(site, gradients[site], images) for gradients in every]),
        )
        for site in sites
    ]


def _checked(model: Adapter, site: str, gradients: list[Tensor]) -> list[Tensor]:
    """Refuse a place on a transformer that the target does not depend on; elsewhere a gradient may well be zero."""
    idle = isinstance(model, VisionTransformer) and site != model.layer()
    if idle and not any(gradient.any() for gradient in gradients):
        raise SiteError(
            f"the target has no gradient at any cell of {site}: the patches no longer feed the output there; "
            f"leave out layer= and {model.layer()} is taken"
        )
    return gradients


class GradientCam(MultiTarget):
    """A map made of a layer's activation and of the target's gradient there; a subclass says how."""

    __slots__ = ()
    layer: Layers
    variant: str
    fusion: Fusion

    @abstractmethod
    def scores(self, activation: Tensor, gradient: Tensor) -> Tensor:
        """Turn an activation and its gradient, both (batch, channel, cell), into one score per cell, (batch, cell)."""

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        if every_layer or self.variant == "stream":
            return self._streams(model, images, targets)
        if isinstance(self.layer, tuple):
            sites = [model.layer(layer) for layer in self.layer]
            if all(site in model.sites for site in sites):
                found = activations_and_gradients(model, images, targets, sites)
            else:  # a dense layer's running concatenation is a cut, but no module gives it out
                found = [activation_and_gradients(model, images, targets, site) for site in sites]
            each = [[self._map(activation, gradient) for gradient in every] for activation, every in found]
            return [fused(maps, images, self.fusion) for maps in zip(*each, strict=True)]
        activation, gradients = activation_and_gradients(model, images, targets, self.layer)
        maps = [self._map(activation, gradient) for gradient in gradients]
        return [Attribution(values[None], map_grid(values, images)) for values in maps]

    def _map(self, activation: Tensor, gradient: Tensor) -> Tensor:
        values: Tensor = self.scores(activation.flatten(2), gradient.flatten(2)).unflatten(1, activation.shape[-2:])
        return values

    def _streams(self, model: Adapter, images: Tensor, targets: Sequence[Target]) -> list[Attribution]:
        """Score the tokens that enter each block, prefix included, all from one pass back."""
        if not isinstance(model, VisionTransformer):
            name = spec_of(self).name
            raise UnsupportedMethod(f"{name} has one layer on {model.name}; layers are summed on transformers only")
        found, grid = values_and_gradients(model, images, targets, "tokens")
        scores = [[self.scores(x.transpose(1, 2), g.transpose(1, 2)) for x, g in pairs] for pairs in found]
        return [Attribution(grid.to_map(torch.stack(layers)), grid) for layers in scores]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        if every_layer or self.variant == "stream":
            return Passes(1, count)
        if not isinstance(self.layer, tuple):
            return Passes(1, count * model.remaining(model.layer(self.layer)))
        sites = [model.layer(layer) for layer in self.layer]
        back = [model.remaining(site) for site in sites]
        apart = not all(site in model.sites for site in sites)
        return Passes(len(sites), count * sum(back)) if apart else Passes(1, count * max(back))


def weighted(weights: Tensor, activation: Tensor) -> Tensor:
    """Sum the channels, (batch, channel, cell), with one weight each, (batch, channel)."""
    return torch.einsum("bk,bkn->bn", weights, activation)


def gated(activation: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient where the activation is positive and zero elsewhere, as before a rectifier."""
    return gradient * (activation > 0)


@METHODS.register(
    "grad_cam",
    family="cam",
    cite="selvaraju2017",
    cost="1 forward, backward from the output to the layer",
    needs=("gradient", "layers"),
    parity="grad-cam GradCAM, CNN and ViT, one layer and several, 1e-5; captum LayerGradCam, 1e-9",
)
@dataclass(frozen=True, slots=True)
class GradCam(GradientCam):
    r"""Grad-CAM: channels weighted by their average gradient.

    .. math:: A_{ij} = \sum_k \Bigl(\frac{1}{hw} \sum_{uv} \frac{\partial s}{\partial F_{kuv}}\Bigr)\, F_{kij}

    where :math:`F` is the last feature map of a CNN, or the last block's first norm on a transformer, prefix tokens
    left out. Signed: write ``rectify(grad_cam)`` for the usual clipped map. On a class-token transformer it is an
    affine copy of the mean gradient at the last attention.

    Attributes:
        layer: a site's name or an index; by default the right one for the model; or a tuple of them, deepest last.
        variant: "paper", or "stream" for the block's input with weights averaged over all tokens, prefix included, or
            "iia", as the repository of :cite:t:`iia2023` runs it: gradients as before the last rectifier, and the mean
            of the channels instead of their sum.
        fusion: of several layers, each rectified: mean of the maps scaled to [0, 1], as the package grad-cam; tanh
            scales all but the last by tanh(2 m / max m) and takes the largest, as Layer-CAM.
    """

    layer: Layers = None
    variant: Literal["paper", "stream", "iia"] = "paper"
    fusion: Fusion = "mean"

    def __post_init__(self) -> None:
        check_layers(self.layer)

    def scores(self, activation: Tensor, gradient: Tensor) -> Tensor:
        if self.variant == "iia":
            return weighted(gated(activation, gradient).mean(dim=-1), activation) / activation.shape[1]
        return weighted(gradient.mean(dim=-1), activation)
