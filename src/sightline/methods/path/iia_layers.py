"""The layers of an iterated integral, from the image to the layer at which the map is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from sightline.errors import RecipeError, SiteError, UnsupportedModel
from sightline.methods.path.quadrature import Rule, quadrature
from sightline.models.adapter import Adapter
from sightline.models.cnn.adapter import Convolutional
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import unknown

LayerName = int | str
IMAGE = "image"


@dataclass(frozen=True, eq=False)
class PathLayer:
    """A layer with the points of its path.

    Attributes:
        site: its name, `image` for the input.
        nodes: the points on the path from the baseline (0) to the representation itself (1); only 1 where the layer
            is not interpolated.
        weights: of the points.
    """

    site: str
    nodes: Tensor
    weights: Tensor

    @property
    def count(self) -> int:
        return len(self.nodes)

    @property
    def interpolated(self) -> bool:
        return bool((self.nodes != 1).any())

    def at(self, steps: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return nodes and weights of these steps, shaped to be multiplied with a batch of points."""
        shape = (-1, *[1] * (like.ndim - 1))
        return self.nodes[steps].to(like).view(shape), self.weights[steps].to(like).view(shape)


Path = tuple[PathLayer, ...]


def not_interpolated(site: str) -> PathLayer:
    """Return a layer whose path is the representation itself."""
    single = torch.ones(1, dtype=torch.float64)
    return PathLayer(site, single, single)


def path_layers(model: Adapter, layers: Sequence[LayerName], layer: LayerName | None, steps: int, rule: Rule) -> Path:
    """Return the layers from the image on: every integrated one, and last the one at which the map is made."""
    names = _named(model)
    sites = [find(model, each) for each in layers]
    end = sites[-1] if layer is None else find(model, layer)
    for site in (*sites, end):
        if site not in names:
            raise SiteError(
                f"a connection bypasses {site!r} of {model.name}, so no path leads through it; use ig or ixg"
            )
    positions = [names.index(site) for site in sites]
    if any(a >= b for a, b in pairwise(positions)):
        raise RecipeError(f"got layers={tuple(layers)} ({', '.join(sites)}); write each once, from the image on")
    if names.index(end) < positions[-1]:
        raise RecipeError(f"got layer={layer} ({end}), which comes before {sites[-1]}; the map is made after the paths")
    nodes, weights = quadrature(rule, steps)
    path = [PathLayer(site, nodes, weights) for site in sites]
    if sites[0] != IMAGE:
        path.insert(0, not_interpolated(IMAGE))
    if end != sites[-1]:
        path.append(not_interpolated(end))
    return tuple(path)


def find(model: Adapter, layer: LayerName) -> str:
    """Return the site a layer means: 0 the image, -1 the last layer, -2 the one before it, 1 the first, or its name."""
    if layer in (0, IMAGE):
        return IMAGE
    counted = (IMAGE, *_layers(model))
    if isinstance(layer, int):
        if -len(counted) < layer < len(counted):
            return counted[layer]
        raise SiteError(
            f"got layer {layer}; {model.name} has 0, the image, to {len(counted) - 1}: {', '.join(counted)}"
        )
    if layer in _named(model):
        return layer
    raise SiteError(unknown(layer, "layer", _named(model), otherwise=f"take {counted[-1]!r}"))


def _layers(model: Adapter) -> tuple[str, ...]:
    """Return the layers that an index chooses from."""
    if isinstance(model, Convolutional):
        return model.layers
    if isinstance(model, VisionTransformer):
        return tuple(model.every("probabilities"))
    raise UnsupportedModel(
        f"{model.name} shows no layers to integrate over, neither feature maps nor attention; "
        "integrate over the image alone, with ig or iia(layers=(0,))"
    )


def _named(model: Adapter) -> tuple[str, ...]:
    """Return every layer that can be named, in the model's order."""
    if isinstance(model, Convolutional):
        return (IMAGE, *model.cuts)
    return (IMAGE, *_layers(model)) if isinstance(model, VisionTransformer) else (IMAGE,)
