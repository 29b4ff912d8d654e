"""Dense readings of CLIP: every patch is compared with the text itself, without the class token's attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sightline.errors import RecipeError, UnsupportedModel
from sightline.methods.attention.attention import transformer
from sightline.methods.multi_target import MultiTarget
from sightline.methods.scored import score_cells
from sightline.models.adapter import Adapter
from sightline.models.memory import held
from sightline.models.passes import full_precision
from sightline.models.vit.adapter import VisionTransformer
from sightline.models.vit.zero_shot import ZeroShot
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target


@METHODS.register(
    "mask_clip",
    family="attention",
    cite="zhou2022maskclip",
    cost="1 forward",
    needs=("attention", "tokens"),
    parity="values, output projection, last norm and projection of open_clip written out, 1e-6",
)
@dataclass(frozen=True, slots=True)
class MaskClip(MultiTarget):
    r"""MaskCLIP: the score of each patch when the last attention is left out and its value alone is read.

    .. math:: A_i = s\bigl(\operatorname{head}(W_o v_i + b_o)\bigr)

    where :math:`v_i` is the value of patch i in the last block, :math:`W_o` and :math:`b_o` the attention's output
    projection, and head whatever turns a pooled token into the output. Made for CLIP, with ``TextSimilarity`` or texts
    as classes, where the score is the cosine of a patch and a text; it serves any vision transformer. No gradient is
    taken.
    """

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = transformer(model)
        last = model.depth - 1
        site = f"block.{last}.attention"
        if site not in model.sites:
            raise UnsupportedModel(f"the attention of {model.name} is no module of its own; use grad_cam or legrad")
        with model.attend({last: lambda _query, _key, value, _scale: value}), model.capture(site) as seen:
            model(images)
        scale = model.blocks[last].scale1
        logits = patch_logits(model, seen[site] if scale is None else seen[site] * scale)
        return _maps(model, images, logits, targets)

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1)

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image: those of a forward pass, since no attention is kept."""
        return model.peak(Passes(1))


@METHODS.register(
    "clip_surgery",
    family="attention",
    cite="li2023surgery",
    cost="1 forward",
    needs=("attention", "tokens"),
    parity="the second path and the feature surgery written out on open_clip, 1e-6; the authors' code has no licence",
)
@dataclass(frozen=True, slots=True)
class ClipSurgery(MultiTarget):
    r"""CLIP Surgery: patches of a second path whose attention is between values, less what all texts have in common.

    .. math:: x' = x_{L-m} + \sum_{l \ge L-m} W_o^l \operatorname{softmax}\bigl(v^l v^{l\top} / \sqrt d\bigr) v^l,
        \qquad A_i = w_c \cos(f_i, t_c) - \frac1C \sum_{c'} w_{c'} \cos(f_i, t_{c'})

    where :math:`f_i` is the embedding of patch i of :math:`x'`, :math:`t_c` that of text c, and
    :math:`w = p / \bar p` with :math:`p = \operatorname{softmax}(2 \cos(f_{\text{cls}}, t))` of the ordinary path; the
    values :math:`v^l` are its as well. Made for zero-shot classifiers of two texts or more; on any other classifier the
    logits stand in the place of the cosines, and its softmax in that of p. No gradient is taken.

    Attributes:
        blocks: m, how many blocks at the end have the second path; all of them in a shorter model.
    """

    blocks: int = 6

    def __post_init__(self) -> None:
        if self.blocks < 1:
            raise RecipeError(f"got blocks={self.blocks}; give one at least")

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = _classifier(model)
        first = max(model.depth - self.blocks, 0)
        origin, values = f"block.{first}.input", model.every("v", first)
        with model.capture(origin, *values) as seen:
            ordinary = model(images)
        tokens = _entered(model, seen[origin], first)
        for index, name in enumerate(values, start=first):
            tokens = tokens + _values_attending(model, seen[name], index)
        weighted = _cosines(model, patch_logits(model, tokens)) * _weight(model, ordinary)[:, None]
        return _maps(model, images, weighted - weighted.mean(dim=-1, keepdim=True), targets)

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1)

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image: a forward pass, and the attention between values of a block."""
        return held(model, forwards=1, attention=2 / transformer(model).depth)


def patch_logits(model: VisionTransformer, tokens: Tensor) -> Tensor:
    """Return what the model's end makes of every patch alone, (batch, cell, class).

    Whatever it pools, all it sees is the one patch.
    """
    patches = tokens[:, model.prefix :]
    alone = patches.flatten(0, 1)[:, None].expand(-1, model.prefix + 1, -1)
    logits: Tensor = model.finish(alone).unflatten(0, patches.shape[:2])
    return logits


def _maps(model: VisionTransformer, images: Tensor, logits: Tensor, targets: Sequence[Target]) -> list[Attribution]:
    grid = model.grid_of(images)
    rows = [score_cells(logits, target).view(1, -1, grid.height, grid.width) for target in targets]
    return [Attribution(row, grid) for row in rows]


def _classifier(model: Adapter) -> VisionTransformer:
    model = transformer(model)
    if model.output == "embedding":
        raise UnsupportedModel(
            f"clip_surgery compares patches with texts, and {model.name} is no zero-shot classifier; load it with "
            "classes=[…], or use mask_clip"
        )
    if model.output == "text":
        raise UnsupportedModel(
            f"clip_surgery compares patches with texts, and {model.name} says a text; use token_activation_map"
        )
    if (model.output_size or 2) < 2:
        raise UnsupportedModel(
            "clip_surgery removes what the texts have in common; give two texts at least, or use mask_clip"
        )
    return model


def _entered(model: VisionTransformer, tokens: Tensor, first: int) -> Tensor:
    """Return the residual stream that enters a block: for the first, after the norm that precedes the blocks."""
    entry = model.entry.module
    return entry(tokens) if first == 0 and entry is not model.blocks[0].module else tokens


def _values_attending(model: VisionTransformer, values: Tensor, index: int) -> Tensor:
    """Return what a block's attention would write if its values were its queries and keys, (batch, token, channel)."""
    block = model.blocks[index]
    if not isinstance(block.projection, nn.Linear):
        raise UnsupportedModel(f"the attention of {model.name} has no linear output projection; use mask_clip")
    attention = (values @ values.mT * values.shape[-1] ** -0.5).softmax(dim=-1)
    written: Tensor = block.projection((attention @ values).transpose(1, 2).flatten(2))
    return written if block.scale1 is None else written * block.scale1


def _cosines(model: VisionTransformer, logits: Tensor) -> Tensor:
    """Return the cosines of a zero-shot classifier, the logits of any other."""
    logits = full_precision(logits)
    return (logits - model.bias) / model.scale if isinstance(model, ZeroShot) else logits


def _weight(model: VisionTransformer, logits: Tensor) -> Tensor:
    sharpness = 2 if isinstance(model, ZeroShot) else 1
    probability = torch.softmax(sharpness * _cosines(model, logits), dim=-1)
    return probability / probability.mean(dim=-1, keepdim=True)
