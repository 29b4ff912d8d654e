"""Hugging Face transformers' LeViT, PVT and PVT v2 classifiers, whose maps get coarser from stage to stage.

Between their blocks the tokens are the cells of a map; a step takes and leaves it as (batch, height, width, channel).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from sightline.models.attention_layers import AttentionLayer, AttentionLayers
from sightline.models.cnn.steps import Plan, Step, same

REDUCED = "attends to maps that convolutions have made coarser, so no attention leads from its output to all patches"


def levit(model: Any) -> Plan:
    """Convolutions, stages of residual layers that end with their subsampling; the mean is classified."""

    def embed(images: Tensor) -> Tensor:
        side = model.config.image_size // model.config.patch_size
        return model.levit.patch_embeddings(images).unflatten(1, (side, side))  # type: ignore[no-any-return]

    steps = [_tokens("levit.patch_embeddings", embed)]
    attention: list[AttentionLayer] = []
    names: list[str] = []
    side = model.config.image_size // model.config.patch_size
    for child, stage in model.levit.encoder.stages.named_children():
        prefix = f"levit.encoder.stages.{child}"
        for number, layer in stage.layers.named_children():
            name, inner = f"{prefix}.layers.{number}", getattr(layer, "module", layer)
            if hasattr(inner, "attention_biases"):
                attention.append(_levit_attention(name, layer, side))
            coarser = hasattr(layer, "queries_subsample")
            if coarser:
                names.append(steps[-1].name)  # the end of a map's last block
                side = layer.resolution_out
            steps.append(_tokens(name, _resized(layer, side), unit=not coarser))
        steps.append(same(prefix, channels_last=True, tokens=True))
    end = Step("head", lambda x: _levit_head(model, x.mean(dim=(1, 2))), cut=False)
    return Plan((*steps, end), (*names, steps[-2].name), AttentionLayers(tuple(attention), "mean"))


def _levit_attention(name: str, layer: Any, side: int) -> AttentionLayer:
    coarser = hasattr(layer, "queries_subsample")
    module = layer if coarser else layer.module
    return AttentionLayer(
        name if coarser else f"{name}.module", module, "coarser" if coarser else "patches", lambda _size: (side, side)
    )


def _resized(layer: nn.Module, side: int) -> Callable[[Tensor], Tensor]:
    return lambda x: layer(x.flatten(1, 2)).unflatten(1, (side, side))


def _levit_head(model: Any, features: Tensor) -> Tensor:
    logits: Tensor = model.classifier(features)
    other = getattr(model, "classifier_distill", None)
    return logits if other is None else (logits + other(features)) / 2


def pvt(model: Any) -> Plan:
    """Stages of an embedding and blocks; a class token joins in the last one, and is normed and classified."""
    encoder = model.pvt.encoder
    last = len(encoder.block) - 1
    steps: list[Step] = []
    names: list[str] = []
    for stage in range(last):
        embed = _embedding(encoder.patch_embeddings[stage], first=stage == 0)
        steps.append(_tokens(f"pvt.encoder.patch_embeddings.{stage}", embed))
        steps += _blocks(f"pvt.encoder.block.{stage}", encoder.block[stage])
        names.append(steps[-1].name)

    def classify(x: Tensor) -> Tensor:
        tokens, height, width = encoder.patch_embeddings[last](x.permute(0, 3, 1, 2))
        for block in encoder.block[last]:
            tokens = block(tokens, height, width)[0]
        return model.classifier(encoder.layer_norm(tokens)[:, 0])  # type: ignore[no-any-return]

    return Plan((*steps, Step("head", classify, cut=False)), tuple(names), no_attention=REDUCED)


def pvt_v2(model: Any) -> Plan:
    """Stages of an overlapping embedding, blocks and a norm; the mean is classified."""
    steps: list[Step] = []
    names: list[str] = []
    for child, stage in model.pvt_v2.encoder.layers.named_children():
        name = f"pvt_v2.encoder.layers.{child}"
        steps.append(_tokens(f"{name}.patch_embedding", _embedding(stage.patch_embedding, first=not steps)))
        steps += _blocks(f"{name}.blocks", stage.blocks)
        steps.append(_tokens(f"{name}.layer_norm", stage.layer_norm))
        names.append(f"{name}.layer_norm")
    end = Step("head", lambda x: model.classifier(x.mean(dim=(1, 2))), cut=False)
    return Plan((*steps, end), tuple(names), no_attention=REDUCED)


def _embedding(module: nn.Module, *, first: bool) -> Callable[[Tensor], Tensor]:
    """Run an embedding, which takes channels second, as images are; the maps of earlier stages are not."""

    def embed(x: Tensor) -> Tensor:
        tokens, height, width = module(x if first else x.permute(0, 3, 1, 2))
        return tokens.unflatten(1, (height, width))  # type: ignore[no-any-return]

    return embed


def _blocks(name: str, blocks: nn.Module) -> Iterator[Step]:
    def run(block: nn.Module) -> Callable[[Tensor], Tensor]:
        return lambda x: block(x.flatten(1, 2), *x.shape[1:3])[0].unflatten(1, x.shape[1:3])

    yield from (_tokens(f"{name}.{child}", run(block), unit=True) for child, block in blocks.named_children())


def _tokens(name: str, run: Callable[[Tensor], Tensor], **marks: Any) -> Step:
    return Step(name, run, channels_last=True, tokens=True, **marks)
