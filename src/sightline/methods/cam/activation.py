"""Maps made of a layer's activations alone, the same for every class."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from sightline.methods.cam.base import StreamCam, stream_attribution
from sightline.models.adapter import Adapter
from sightline.models.cnn.adapter import Convolutional
from sightline.models.vit.adapter import VisionTransformer
from sightline.types import Attribution, Passes, Target


class ActivationCam(StreamCam):
    """A map made of a layer's activations alone; a subclass says how."""

    __slots__ = ()

    @abstractmethod
    def map_of(self, activation: Tensor) -> Tensor:
        """Turn activations, (batch, channel, height, width), into maps, (batch, height, width)."""

    def maps_at(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], sites: Sequence[str]
    ) -> list[list[Tensor]]:
        return [[self.map_of(activation)] * len(targets) for activation in activations_at(model, images, sites)]

    def of_stream(self, model: VisionTransformer, images: Tensor, targets: Sequence[Target]) -> list[Attribution]:
        maps = [self.map_of(activation) for activation in activations_at(model, images, model.every("input"))]
        return [stream_attribution(torch.stack(maps), model.grid_of(images))] * len(targets)

    def cost_at(self, model: Adapter, count: int, sites: Sequence[str]) -> Passes:
        return activations_cost(model, sites)


def activations_cost(model: Adapter, sites: Sequence[str]) -> Passes:
    """Return what `activations_at` costs, per image."""
    apart = [site for site in sites if site not in model.sites]
    return Passes((len(apart) < len(sites)) + sum(1 - model.remaining(site) for site in apart), 0)


def activations_at(model: Adapter, images: Tensor, sites: Sequence[str]) -> list[Tensor]:
    """Return the layers' outputs, (batch, channel, height, width), from one pass."""
    activations: dict[str, Tensor] = {}
    captured = [site for site in sites if site in model.sites]
    if captured:
        with model.capture(*captured) as seen:
            model(images)
        activations = {site: model.to_map(site, seen[site].detach(), images) for site in captured}
    for site in sites:
        if site not in activations:  # a dense layer's concatenation is a cut, but no module's output
            assert isinstance(model, Convolutional)
            activations[site] = model.trunk(images, site)
    return [activations[site] for site in sites]
