"""The options and the steps that class activation maps share: layers, their fusion, activations and gradients."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import SiteError, UnsupportedMethod
from sightline.methods.cam.fusion import Fusion, Layers, check_layers, fused
from sightline.methods.gradient.gradient import values_and_gradients
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.cnn.adapter import Convolutional
from sightline.models.passes import shared
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import spec_of
from sightline.types import Attribution, Passes, Target, TokenGrid, map_grid

PaperOrStream = Literal["paper", "stream"]


class LayeredCam(MultiTarget):
    """A class activation map at one layer, or at several layers whose maps are fused.

    Attributes:
        layer: a layer's name or index; by default the last feature map of a CNN, or the last block's first norm of a
            transformer; or a tuple of layers, deepest last.
        fusion: how the maps of several layers, each after a ReLU, become one: mean of the maps scaled to [0, 1], as
            in the package grad-cam; tanh, the maximum after all but the last were scaled by tanh(2 m / max m), as in
            Layer-CAM; or product, of the maps scaled to [0, 1], as in RefineCAM.
    """

    __slots__ = ()
    layer: Layers
    fusion: Fusion

    def __post_init__(self) -> None:
        check_layers(self.layer)

    @abstractmethod
    def maps_at(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], sites: Sequence[str]
    ) -> list[list[Tensor]]:
        """Return the map of each target, (batch, height, width), for each of the layers."""

    @abstractmethod
    def cost_at(self, model: Adapter, count: int, sites: Sequence[str]) -> Passes:
        """Return what the maps of `count` targets cost at these layers, per image."""

    def sites(self, model: Adapter) -> list[str]:
        """Return the names of the chosen layers."""
        return [model.layer(layer) for layer in (self.layer if isinstance(self.layer, tuple) else (self.layer,))]

    def at_layers(self, model: Adapter, images: Tensor, targets: Sequence[Target]) -> list[Attribution]:
        """Return the attribution of each target at the chosen layers."""
        maps = self.maps_at(model, images, targets, self.sites(model))
        if isinstance(self.layer, tuple):
            return [fused(of_target, images, self.fusion) for of_target in zip(*maps, strict=True)]
        named = tuple(self.sites(model))
        return [Attribution(values[None], map_grid(values, images), layers=named) for values in maps[0]]

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        return self.at_layers(model, images, targets)

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return self.cost_at(model, count, self.sites(model))


@dataclass(frozen=True, slots=True)
class Cam(LayeredCam):
    """A class activation map that comes in variants; a subclass says which."""

    layer: Layers = None
    variant: str = "paper"
    fusion: Fusion = "mean"


class LayerByLayerCam(Cam):
    """A class activation map that needs passes of its own for each of several layers."""

    __slots__ = ()

    def maps_at(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], sites: Sequence[str]
    ) -> list[list[Tensor]]:
        return [self.maps_of(model, images, targets, site) for site in sites]

    @abstractmethod
    def maps_of(self, model: Adapter, images: Tensor, targets: Sequence[Target], site: str) -> list[Tensor]:
        """Return the map of each target, (batch, height, width), at one layer."""


class StreamCam(Cam):
    """A class activation map that can also be made of the tokens that enter each block of a transformer."""

    __slots__ = ()

    @abstractmethod
    def of_stream(self, model: VisionTransformer, images: Tensor, targets: Sequence[Target]) -> list[Attribution]:
        """Return the attribution of each target with one layer per block, from the tokens that enter it.

        The method's own map is that of the last block, the last layer that holds patches.
        """

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        if not every_layer and self.variant != "stream":
            return self.at_layers(model, images, targets)
        if not isinstance(model, VisionTransformer):
            name = spec_of(self).name
            raise UnsupportedMethod(f"{name} has one layer on {model.name}; layers are summed on transformers only")
        return self.of_stream(model, images, targets)

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        if every_layer or self.variant == "stream":
            return Passes(1, 0 if spec_of(self).agnostic else count)
        return self.cost_at(model, count, self.sites(model))


class GradientCam(StreamCam):
    """A class activation map made of a layer's activation and of the target's gradient there; a subclass says how.

    Attributes:
        variant: "paper", or "stream" for the tokens that enter each block of a transformer, prefix tokens included.
    """

    __slots__ = ()

    @abstractmethod
    def scores(self, activation: Tensor, gradient: Tensor) -> Tensor:
        """Turn an activation and its gradient, both (batch, channel, cell), into one score per cell, (batch, cell)."""

    def maps_at(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], sites: Sequence[str]
    ) -> list[list[Tensor]]:
        if isinstance(self.layer, tuple) and _in_one_pass(model, sites):
            pairs = activations_and_gradients(model, images, targets, sites)
        else:
            pairs = [activation_and_gradients(model, images, targets, site) for site in sites]
        return [[self._map(activation, gradient) for gradient in gradients] for activation, gradients in pairs]

    def _map(self, activation: Tensor, gradient: Tensor) -> Tensor:
        values: Tensor = self.scores(activation.flatten(2), gradient.flatten(2)).unflatten(1, activation.shape[-2:])
        return values

    def of_stream(self, model: VisionTransformer, images: Tensor, targets: Sequence[Target]) -> list[Attribution]:
        pairs_of_targets, grid = values_and_gradients(model, images, targets, "tokens")
        scores = [[self.scores(x.transpose(1, 2), g.transpose(1, 2)) for x, g in pairs] for pairs in pairs_of_targets]
        return [stream_attribution(grid.to_map(torch.stack(layers)), grid) for layers in scores]

    def cost_at(self, model: Adapter, count: int, sites: Sequence[str]) -> Passes:
        backward = [model.remaining(site) for site in sites]
        if _in_one_pass(model, sites):
            return Passes(1, count * max(backward))
        return Passes(len(sites), count * sum(backward))


def stream_attribution(values: Tensor, grid: TokenGrid) -> Attribution:
    """Return maps of the tokens that enter each block, of which that of the last block is the method's own."""
    return Attribution(values, grid, layers=tuple(range(len(values))), own=len(values) - 1)


def _in_one_pass(model: Adapter, sites: Sequence[str]) -> bool:
    """Tell whether all layers can be captured at once; a dense layer's concatenation is no module's output."""
    return all(site in model.sites for site in sites)


@shared
def activation_and_gradients(
    model: Adapter, images: Tensor, targets: Sequence[Target], site: str
) -> tuple[Tensor, list[Tensor]]:
    """Return a layer's output and each target's gradient there, all (batch, channel, height, width)."""
    if isinstance(model, Convolutional):
        activation, gradients = model.activation_and_gradients(images, site, targets)
        return activation, _checked(model, site, gradients)
    return activations_and_gradients(model, images, targets, [site])[0]


@shared
def activations_and_gradients(
    model: Adapter, images: Tensor, targets: Sequence[Target], sites: Sequence[str]
) -> list[tuple[Tensor, list[Tensor]]]:
    """Return the same for several layers, from one forward pass and one backward pass per target."""
    with model.capture(*sites, gradient=True) as seen:
        logits = model(images)
        scores = [target(logits) for target in targets]
    gradients = model.gradients_each(scores, seen)
    return [
        (
            model.to_map(site, seen[site].detach(), images),
            _checked(model, site, [model.to_map(site, of_target[site], images) for of_target in gradients]),
        )
        for site in sites
    ]


def _checked(model: Adapter, site: str, gradients: list[Tensor]) -> list[Tensor]:
    """Refuse a layer of a transformer on which the target does not depend; elsewhere a gradient may well be zero."""
    chosen = isinstance(model, VisionTransformer) and site != model.layer()
    if chosen and not any(gradient.any() for gradient in gradients):
        raise SiteError(
            f"the target has no gradient at any cell of {site}: the patches no longer feed the output there; "
            f"leave out layer= and {model.layer()} is taken"
        )
    return gradients


def weighted(weights: Tensor, activation: Tensor) -> Tensor:
    """Sum the channels, (batch, channel, cell), with one weight each, (batch, channel)."""
    return torch.einsum("bk,bkn->bn", weights, activation)
