"""timm's networks that keep their map as tokens without a class token among them, step by step.

CaiT and XCiT (whose class token joins after the last block), LeViT, Hiera, MLP-Mixer and its relatives. Between their
blocks the tokens are the cells of a map; a step takes and leaves it as (batch, height, width, channel).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from sightline.models.attention_layers import LAST, AttentionLayer, AttentionLayers, Role, Size
from sightline.models.cnn.hierarchical import IN_WINDOWS
from sightline.models.cnn.steps import Plan, Step, on_tokens, same, step


def timm_cait(model: Any) -> Plan:
    """patch_embed, positions, blocks; then the class token attends to the patches, norm, head."""

    def positions(x: Tensor) -> Tensor:
        return model.pos_drop(x + model.pos_embed.unflatten(1, x.shape[1:3]))  # type: ignore[no-any-return]

    def classify(x: Tensor) -> Tensor:
        return model.forward_head(model.norm(model.forward_cls(x.flatten(1, 2))))  # type: ignore[no-any-return]

    steps = [_embedding("patch_embed", model.patch_embed), _token_step("pos_drop", positions)]
    names = [f"blocks.{child}" for child, _ in model.blocks.named_children()]
    steps += [_token_step(name, on_tokens(block), unit=True) for name, block in _named(model, names)]
    steps += [same("blocks", channels_last=True, tokens=True), Step("head", classify, cut=False)]
    layers = (*_attend(model, "blocks", "patches"), *_attend(model, "blocks_token_only", "class"))
    return Plan(tuple(steps), tuple(names), AttentionLayers(layers, "class") if _by_class(model) else None)


def timm_xcit(model: Any) -> Plan:
    """patch_embed, positions, blocks of cross-covariance attention; then as CaiT."""

    def embed(images: Tensor) -> Tensor:
        tokens, grid = model.patch_embed(images)
        return tokens.unflatten(1, grid)  # type: ignore[no-any-return]

    def positions(x: Tensor) -> Tensor:
        encoding = 0 if model.pos_embed is None else model.pos_embed(len(x), *x.shape[1:3])
        channels_last = encoding if isinstance(encoding, int) else encoding.permute(0, 2, 3, 1)
        return model.pos_drop(x + channels_last)  # type: ignore[no-any-return]

    def run(block: nn.Module) -> Callable[[Tensor], Tensor]:
        return lambda x: block(x.flatten(1, 2), *x.shape[1:3]).unflatten(1, x.shape[1:3])

    def classify(x: Tensor) -> Tensor:
        return model.forward_head(model.norm(model.forward_cls(x.flatten(1, 2))))  # type: ignore[no-any-return]

    names = [f"blocks.{child}" for child, _ in model.blocks.named_children()]
    steps = [_token_step("patch_embed", embed), _token_step("pos_drop", positions)]
    steps += [_token_step(name, run(block), unit=True) for name, block in _named(model, names)]
    last = AttentionLayers(tuple(_attend(model, "cls_attn_blocks", "class")), "class", methods=LAST)
    end = Step("head", classify, cut=False)
    return Plan((*steps, end), tuple(names), last if _by_class(model) else None, _OVER_CHANNELS)


def _by_class(model: Any) -> bool:
    return bool(model.global_pool == "token")


_OVER_CHANNELS = (
    "attends over channels, not over tokens, so attention cannot be followed through its blocks to the patches; only "
    "its class token attends to patches, which raw_attention shows"
)


def _attend(model: Any, blocks: str, role: Role) -> Iterator[AttentionLayer]:
    """Yield the attention of every block; the patches lie on the grid of the patch embedding."""

    def grid(size: Size) -> Size:
        side = model.patch_embed.patch_size
        height, width = (side, side) if isinstance(side, int) else side
        return size[0] // height, size[1] // width

    for child, block in getattr(model, blocks).named_children():
        yield AttentionLayer(f"{blocks}.{child}.attn", block.attn, role, grid)


def timm_mixer(model: Any) -> Plan:
    """A patch embedding, blocks that mix tokens and channels, norm; the mean is classified."""
    names = [f"blocks.{child}" for child, _ in model.blocks.named_children()]
    steps = [_embedding("stem", model.stem)]
    steps += [_token_step(name, on_tokens(block), unit=True) for name, block in _named(model, names)]
    steps += [same("blocks", channels_last=True, tokens=True), _token_step("norm", on_tokens(model.norm))]
    end = Step("head", lambda x: model.forward_head(x.flatten(1, 2)), cut=False)
    return Plan((*steps, end), (*names[:-1], "norm"))


def timm_levit(model: Any) -> Plan:
    """A convolutional stem, stages that start with their downsampling; the mean is classified."""
    steps: list[Step] = [step("stem", model.stem)]
    names: list[str] = []
    for child, stage in model.stages.named_children():
        name = f"stages.{child}"
        steps += _levit_stage(name, stage, model.use_conv, first=not names)
        names.append(name)
    end = (lambda x: model.forward_head(x)) if model.use_conv else (lambda x: model.forward_head(x.flatten(1, 2)))
    attention = AttentionLayers(tuple(_levit_attention(model)), "mean")
    return Plan((*steps, Step("head", end, cut=False)), tuple(names), attention)


def _levit_attention(model: Any) -> Iterator[AttentionLayer]:
    for child, stage in model.stages.named_children():
        if hasattr(stage.downsample, "attn_downsample"):
            down = stage.downsample.attn_downsample
            yield AttentionLayer(f"stages.{child}.downsample.attn_downsample", down, "coarser", _grid_of(down))
        for number, block in stage.blocks.named_children():
            yield AttentionLayer(f"stages.{child}.blocks.{number}.attn", block.attn, "patches", _grid_of(block.attn))


def _grid_of(attention: Any) -> Callable[[Size], Size]:
    height, width = map(int, attention.resolution)
    return lambda _size: (height, width)


def _levit_stage(name: str, stage: Any, convolutional: bool, first: bool) -> Iterator[Step]:
    blocks = [(f"{name}.blocks.{child}", block) for child, block in stage.blocks.named_children()]
    if convolutional:
        yield step(f"{name}.downsample", stage.downsample)
        yield from (step(child, block, unit=True) for child, block in blocks)
        yield same(name)
        return

    def halve(x: Tensor) -> Tensor:
        height, width = x.shape[1:3]
        return stage.downsample(x.flatten(1, 2)).unflatten(1, (-(-height // 2), -(-width // 2)))  # type: ignore[no-any-return]

    enter = (lambda x: stage.downsample(x.permute(0, 2, 3, 1))) if first else halve
    yield _token_step(f"{name}.downsample", enter)
    yield from (_token_step(child, on_tokens(block), unit=True) for child, block in blocks)
    yield same(name, channels_last=True, tokens=True)


def timm_hiera(model: Any) -> Plan:
    """patch_embed, positions, blocks that pool between stages; the head pools, norms and classifies.

    Its tokens are kept in an order in which pooling is a reshape; the cuts are maps, so every step puts them back.
    """
    orders = [_spatial_order(model, index) for index in range(len(model.blocks))]
    sizes = [tuple(model.reroll.schedule[index][1]) for index in range(len(model.blocks))]

    def embed(images: Tensor) -> Tensor:
        return model.patch_embed(images).unflatten(1, sizes[0])  # type: ignore[no-any-return]

    def unroll(x: Tensor) -> Tensor:
        return _rolled(model.unroll(model._pos_embed(x.flatten(1, 2))), orders[0], sizes[0])

    def run(index: int) -> Callable[[Tensor], Tensor]:
        before = orders[max(index - 1, 0)].argsort()
        return lambda x: _rolled(model.blocks[index](x.flatten(1, 2)[:, before]), orders[index], sizes[index])

    names = [f"blocks.{index}" for index in range(len(model.blocks))]
    steps = [_token_step("patch_embed", embed), _token_step("unroll", unroll, order=orders[0])]
    steps += [_token_step(name, run(i), unit=True, order=orders[i]) for i, name in enumerate(names)]
    end = Step("head", lambda x: model.forward_head(x.flatten(1, 2)), cut=False)
    return Plan((*steps, end), tuple(names[index] for index in model.stage_ends), no_attention=IN_WINDOWS)


def _spatial_order(model: Any, index: int) -> Tensor:
    """Return which token of a block's output lies in each cell of its map, row by row."""
    height, width = model.reroll.schedule[index][1]
    numbers: Tensor = model.reroll(torch.arange(height * width, device="cpu").view(1, -1, 1), index)
    return numbers.flatten()


def _rolled(tokens: Tensor, order: Tensor, size: tuple[int, ...]) -> Tensor:
    rolled: Tensor = tokens[:, order].unflatten(1, size)
    return rolled


def _embedding(name: str, embed: Any) -> Step:
    return _token_step(name, lambda images: embed(images).unflatten(1, embed.grid_size))


def _token_step(name: str, run: Callable[[Tensor], Tensor], **marks: Any) -> Step:
    return Step(name, run, channels_last=True, tokens=True, **marks)


def _named(model: nn.Module, names: list[str]) -> Iterator[tuple[str, nn.Module]]:
    return ((name, model.get_submodule(name)) for name in names)
