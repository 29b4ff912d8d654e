"""A layer's activation as a map, and the rest of the model as a function of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.errors import SiteError
from sightline.methods.cam.fusion import Layer
from sightline.models.adapter import Adapter
from sightline.models.cnn.adapter import Convolutional
from sightline.models.memory import held
from sightline.models.passes import take_rows
from sightline.models.vit.adapter import VisionTransformer
from sightline.types import Passes

LAST = 0.5  # of a forward pass: what a transformer's last block holds that runs for the prefix alone
MAPS = 3  # copies of an activation with which the rest of a convolutional network runs


@dataclass(frozen=True, eq=False, slots=True)
class LayerAndTail:
    """What is known of a layer for a batch of images.

    Attributes:
        activation: of the layer, (batch, channel, height, width); on a transformer the patches that enter a block.
        tail: runs the rest of the model on activations of some images, given by their rows; returns logits.
        share: of the model that the rest is.
    """

    activation: Tensor
    tail: Callable[[Tensor, list[int]], Tensor]
    share: float


def layer_and_tail(model: Adapter, images: Tensor, layer: Layer) -> LayerAndTail:
    """Run the model up to a layer, and return what is needed to go on from there."""
    site = _cut(model, layer)
    if isinstance(model, VisionTransformer):
        block, grid = _block(site), model.grid_of(images)
        with torch.no_grad():
            tokens = model.run(model.start(images), 0, block)

        def rest(maps: Tensor, rows: list[int]) -> Tensor:
            patches = maps.flatten(2).transpose(1, 2)
            prefix = take_rows(tokens[:, : grid.prefix], rows)
            return model.logits_of(torch.cat([prefix, patches], dim=1), block)

        maps = tokens[:, grid.prefix :].transpose(1, 2).unflatten(2, (grid.height, grid.width))
        return LayerAndTail(maps, rest, 1 - block / model.depth)
    assert isinstance(model, Convolutional)
    with torch.no_grad():
        activation = model.trunk(images, site)
    return LayerAndTail(activation, lambda maps, _: model.tail(maps, site), model.remaining(site))


def trunk_cost(model: Adapter, layer: Layer) -> Passes:
    """Return what it costs to run the model up to a layer."""
    site = _cut(model, layer)
    if isinstance(model, VisionTransformer):
        return Passes(_block(site) / model.depth)
    return Passes(1 - model.remaining(site))


def tail_cost(model: Adapter, layer: Layer, batches: list[int]) -> Passes:
    """Return what it costs to go on from a layer with batches of so many activations, forward."""
    site, count = _cut(model, layer), sum(batches)
    if isinstance(model, VisionTransformer):
        return Passes(count * (1 - _block(site) / model.depth))
    assert isinstance(model, Convolutional)
    share = model.share(site)
    return Passes(count * (1 - share) + share * sum(model.blank_images(site, size) for size in batches))


def layer_memory(model: Adapter, layer: Layer) -> int:
    """Return the bytes of one image's activation at a layer."""
    site = model.layer(layer)
    if isinstance(model, VisionTransformer):
        weight = model.blocks[0].queries_keys_values
        return 0 if weight is None else model.seen_grid.tokens * weight.shape[-1] * model.dtype.itemsize
    assert isinstance(model, Convolutional)
    return math.prod(model.shape_at(site, model.known_size)[-3:]) * model.dtype.itemsize


def tails_memory(model: Adapter, layer: Layer, block: int = 0) -> int:
    """Return the bytes held while many activations of a layer go through the rest of the model, a batch at a time.

    `block` is the first that runs again in a transformer.
    """
    if isinstance(model, VisionTransformer):
        short = block >= model.depth - 1 and model.shortens_last_block
        return held(model, forwards=model.batch * (LAST if short else 1))
    assert isinstance(model, Convolutional)
    return held(model, forwards=1) + model.tail_batch * MAPS * layer_memory(model, layer)


def _cut(model: Adapter, layer: Layer) -> str:
    """Return the name of a layer that every path through the model passes."""
    site = model.layer(layer)
    if isinstance(model, Convolutional) and site not in model.cuts:
        raise SiteError(f"a connection bypasses {site!r} of {model.name}; choose a cut, such as {model.cut_layer!r}")
    return site


def _block(site: str) -> int:
    return int(site.split(".")[1])
