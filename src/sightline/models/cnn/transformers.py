"""Hugging Face transformers' Swin, Swin v2, ConvNeXt and ConvNeXt V2 classifiers, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from sightline.models.cnn.hierarchical import IN_WINDOWS
from sightline.models.cnn.steps import Plan, Step, each, same, step


def swin(model: Any) -> Plan:
    """Embeddings, stages that end with their patch merging, layernorm; the mean is classified."""
    prefix = "swinv2" if hasattr(model, "swinv2") else "swin"
    trunk = getattr(model, prefix)

    def embed(images: Tensor) -> Tensor:
        tokens, grid = trunk.embeddings(images)
        return tokens.unflatten(1, grid)  # type: ignore[no-any-return]

    steps = [Step(f"{prefix}.embeddings", embed, channels_last=True, tokens=True)]
    names = []
    for child, stage in trunk.encoder.layers.named_children():
        name = f"{prefix}.encoder.layers.{child}"
        blocks = [f"{name}.blocks.{number}" for number, _ in stage.blocks.named_children()]
        steps += [_swin_block(path, block) for path, block in zip(blocks, stage.blocks, strict=True)]
        names.append(blocks[-1])
        if stage.downsample is not None:
            merge = _merging(stage.downsample)
            steps.append(Step(f"{name}.downsample", merge, channels_last=True, tokens=True))
        steps.append(same(name, channels_last=True, tokens=True))
    norm = Step(f"{prefix}.layernorm", trunk.layernorm, channels_last=True, tokens=True)
    end = Step("head", lambda x: model.classifier(x.mean(dim=(1, 2))), cut=False)
    return Plan((*steps, norm, end), (*names[:-1], norm.name), no_attention=IN_WINDOWS)


def _swin_block(name: str, block: nn.Module) -> Step:
    def run(x: Tensor) -> Tensor:
        tokens, *_ = block(x.flatten(1, 2), tuple(x.shape[1:3]))
        return tokens.unflatten(1, x.shape[1:3])  # type: ignore[no-any-return]

    return Step(name, run, unit=True, channels_last=True, tokens=True)


def _merging(module: nn.Module) -> Callable[[Tensor], Tensor]:
    def merge(x: Tensor) -> Tensor:
        height, width = x.shape[1:3]
        return module(x.flatten(1, 2), (height, width)).unflatten(1, (-(-height // 2), -(-width // 2)))  # type: ignore[no-any-return]

    return merge


def convnext(model: Any) -> Plan:
    """Embeddings, stages that start with their downsampling; the mean is normed and classified."""
    prefix = "convnextv2" if hasattr(model, "convnextv2") else "convnext"
    trunk = getattr(model, prefix)
    steps = [step(f"{prefix}.embeddings", trunk.embeddings)]
    names = []
    for child, stage in trunk.encoder.stages.named_children():
        name = f"{prefix}.encoder.stages.{child}"
        steps += each(f"{name}.downsampling_layer", stage.downsampling_layer)
        steps += [*each(f"{name}.layers", stage.layers, unit=True), same(name)]
        names.append(name)

    def classify(x: Tensor) -> Tensor:
        return model.classifier(trunk.layernorm(x.mean(dim=(-2, -1))))  # type: ignore[no-any-return]

    return Plan((*steps, Step("head", classify, cut=False)), tuple(names))


def size(model: Any) -> dict[str, Any]:
    """Say which image size a model was made for; it takes others too."""
    side = getattr(model.config, "image_size", None)
    pair = (side, side) if isinstance(side, int) else side
    return {"default_size": tuple(pair)} if pair else {}
