"""transformers' detectors that attend: DETR and Conditional DETR, whose queries read an encoder, YOLOS, and others.

They are run whole, as any network with convolutions or any opaque one is; what is added here is where they attend.
Deformable attention reads a few sampled points, so it has no matrix from tokens to tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from sightline.models.adapter import Adapter
from sightline.models.attention_layers import AttentionLayer, AttentionLayers, Size
from sightline.models.blackbox import Opaque
from sightline.models.cnn.generic import recognise_generic
from sightline.models.signature import is_a
from sightline.models.vit.transformers import plain_attention

WITH_QUERIES = ("DetrForObjectDetection", "ConditionalDetrForObjectDetection")
DEFORMABLE = ("DeformableDetrForObjectDetection", "RTDetrForObjectDetection", "RTDetrV2ForObjectDetection")
AT_POINTS = "attends to a few sampled points of its maps, so there is no attention from its queries to all patches"


def recognise(model: nn.Module, facts: dict[str, Any]) -> Adapter | None:
    """Adapt a detector whose attention is known, or known not to be defined over patches."""
    if _is_one(model, WITH_QUERIES):
        adapter = _adapted(model, facts)
        adapter.attention_layers = _encoder_decoder(model)
        return adapter
    if _is_one(model, ("YolosForObjectDetection",)):
        adapter = _adapted(model, facts)
        adapter.attention_layers = _detection_tokens(model)
        return adapter
    if _is_one(model, DEFORMABLE):
        adapter = _adapted(model, facts)
        adapter.no_attention = AT_POINTS
        return adapter
    return None


def _is_one(model: nn.Module, names: tuple[str, ...]) -> bool:
    return any(is_a(model, "transformers.models", name) for name in names)


def _adapted(model: nn.Module, facts: dict[str, Any]) -> Adapter:
    return recognise_generic(model, facts) or Opaque(model, **facts)


def _encoder_decoder(model: Any) -> AttentionLayers:
    return AttentionLayers(tuple(_of_layers(model)), "query", map=model.model.input_projection, prepare=plain_attention)


def _of_layers(model: Any) -> Iterator[AttentionLayer]:
    for number, layer in enumerate(model.model.encoder.layers):
        yield AttentionLayer(f"model.encoder.layers.{number}.self_attn", layer.self_attn, "patches")
    for number, layer in enumerate(model.model.decoder.layers):
        name = f"model.decoder.layers.{number}"
        yield AttentionLayer(f"{name}.self_attn", layer.self_attn, "queries")
        yield AttentionLayer(f"{name}.encoder_attn", layer.encoder_attn, "cross")


def _detection_tokens(model: Any) -> AttentionLayers:
    def grid(size: Size) -> Size:
        side = model.config.patch_size
        height, width = (side, side) if isinstance(side, int) else side
        return size[0] // height, size[1] // width

    layers = [
        AttentionLayer(f"vit.encoder.layer.{number}.attention", layer.attention, "tokens", grid)
        for number, layer in enumerate(model.vit.encoder.layer)
    ]
    return AttentionLayers(tuple(layers), "query", before=1, prepare=plain_attention)
