r"""Attention, read and propagated.

Notation: :math:`P_\ell` (head, to, from) are the attention probabilities of block :math:`\ell`, :math:`G_\ell` the
target's gradient at them, :math:`r` the row the classifier reads (`VisionTransformer.readout`): the class token, or the
patches evenly where they are pooled. Products are applied to :math:`r` from the last block down, so every start layer
comes for free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError, UnsupportedModel
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.vit.adapter import VisionTransformer
from sightline.options import HasOptions
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target

Fusion = Literal["mean", "max", "min"]


def transformer(model: Adapter, start: int = 0) -> VisionTransformer:
    """Return the model as a transformer, or say that it is none; check that the start block exists."""
    if not isinstance(model, VisionTransformer):
        raise UnsupportedModel(f"this method needs attention maps; {model.name} has none")
    if not 0 <= start < model.depth:
        raise RecipeError(f"got start={start}; {model.name} has blocks 0 to {model.depth - 1}")
    return model


def probabilities(model: VisionTransformer, images: Tensor, start: int = 0) -> list[Tensor]:
    """Return the attention probabilities (batch, head, to, from) of every block from `start` on; one forward pass."""
    with model.capture(*model.every("probabilities", start)) as seen:
        model(images)
    return list(seen.values())


def probabilities_and_gradients(
    model: VisionTransformer, images: Tensor, targets: Sequence[Target], start: int = 0
) -> list[list[tuple[Tensor, Tensor]]]:
    """Return, for each target, probabilities with its gradient at them, for every block from `start` on."""
    with model.capture(*model.every("probabilities", start), gradient=True) as seen:
        logits = model(images)
        scores = [target(logits) for target in targets]
    found = model.gradients_each(scores, seen)
    return [[(seen[name].detach(), gradients[name]) for name in seen] for gradients in found]


def read_rows(model: VisionTransformer, matrix: Tensor) -> Tensor:
    """Read the classifier's row of a (batch, to, from) matrix: (batch, from)."""
    return torch.einsum("t,btf->bf", model.readout(matrix.shape[-1]).to(matrix), matrix)


def rolled(model: VisionTransformer, images: Tensor, matrices: Sequence[Tensor]) -> Attribution:
    """Multiply (batch, to, from) matrices from the last block down to each start layer; read the classifier's row."""
    row = model.readout(matrices[-1].shape[-1]).to(matrices[-1]).expand(len(images), 1, -1)
    rows = []
    for matrix in reversed(matrices):
        row = row @ matrix
        rows.append(row[:, 0])
    grid = model.grid_of(images)
    return Attribution(grid.to_map(torch.stack(rows[::-1])), grid)


def of_largest(found: Attribution) -> Attribution:
    """Divide each map by its maximum; one without anything positive stays as it is."""
    largest = found.values.flatten(2).amax(dim=-1)[..., None, None]
    return Attribution(found.values / largest.where(largest > 0, 1.0), found.grid)


def identity(like: Tensor) -> Tensor:
    """Return the identity matrix of a (batch, to, from) tensor's size."""
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)


@METHODS.register(
    "raw_attention",
    family="attention",
    cite="dosovitskiy2021",
    cost="1 forward",
    needs=("attention",),
    agnostic=True,
    parity="authors' code of chefer2021transformer, random and real ViT, 1e-5",
)
@dataclass(frozen=True, slots=True)
class RawAttention(MultiTarget):
    r"""The last block's attention, averaged over heads.

    .. math:: A = r^\top \frac1H \sum_h P_{L-1,h}

    It ignores the class, and whatever happened in earlier blocks.

    Attributes:
        layer: the block, counted from the end when negative.
    """

    layer: int = -1

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = transformer(model)
        grid = model.grid_of(images)
        rows = [read_rows(model, p.mean(dim=1)) for p in probabilities(model, images)]
        if not -len(rows) <= self.layer < len(rows):
            raise RecipeError(f"got layer={self.layer}; {model.name} has blocks 0 to {len(rows) - 1}")
        kept = rows if every_layer else [rows[self.layer]]
        return [Attribution(grid.to_map(torch.stack(kept)), grid)] * len(targets)

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1, 0)


@METHODS.register(
    "rollout",
    family="attention",
    cite="abnar2020",
    cost="1 forward",
    needs=("attention",),
    agnostic=True,
    parity="authors' code of chefer2021transformer and vit-explain, random and real ViT, 1e-4",
)
@dataclass(frozen=True, slots=True)
class Rollout(HasOptions):
    r"""Attention rollout: attention followed through the residual stream of all blocks.

    .. math:: A = r^\top \prod_{\ell=L-1}^{\text{start}} \tfrac12\Bigl(I + \frac1H\sum_h P_{\ell,h}\Bigr)

    It ignores the class.

    Attributes:
        start: the first block that takes part.
        variant: "paper", or "vit_explain" for that repository's released code: the smallest nine tenths of each matrix
            are set to zero, columns instead of rows are divided, and the map is divided by its maximum.
        fusion: how "vit_explain" joins heads: mean, max or min.
    """

    start: int = 0
    variant: Literal["paper", "vit_explain"] = "paper"
    fusion: Fusion = "mean"

    def __call__(self, model: Adapter, images: Tensor, target: Target) -> Attribution:
        model = transformer(model, self.start)
        attention = probabilities(model, images, self.start)
        if self.variant == "paper":
            return rolled(model, images, [_half_identity(p.mean(dim=1)) for p in attention])
        return of_largest(rolled(model, images, [_vit_explain(fuse_heads(p, self.fusion)) for p in attention]))

    def cost(self, model: Adapter) -> Passes:
        return Passes(1, 0)


def _half_identity(attention: Tensor) -> Tensor:
    mixed = attention + identity(attention)
    return mixed / mixed.sum(dim=-1, keepdim=True)


def fuse_heads(attention: Tensor, fusion: Fusion) -> Tensor:
    """Join the heads of (batch, head, to, from)."""
    return {"mean": attention.mean(dim=1), "max": attention.amax(dim=1), "min": attention.amin(dim=1)}[fusion]


def _vit_explain(attention: Tensor, discard: float = 0.9) -> Tensor:
    """Drop the smallest entries (the first is spared), add half the identity, divide column j by row j's sum."""
    flat = attention.flatten(1).clone()
    smallest = flat.topk(int(flat.shape[-1] * discard), dim=-1, largest=False).indices
    spared = flat[:, 0].clone()
    flat.scatter_(1, smallest, 0.0)
    flat[:, 0] = spared
    mixed = (flat.view_as(attention) + identity(attention)) / 2
    return mixed / mixed.sum(dim=-1)[:, None, :]


@METHODS.register(
    "gae",
    family="attention",
    cite="chefer2021generic",
    cost="1 forward, 1 backward",
    needs=("attention", "gradient"),
    parity="authors' notebook, random and real ViT, 1e-4",
)
@dataclass(frozen=True, slots=True)
class GenericAttention(MultiTarget):
    r"""Generic attention explainability: attention weighted by its positive gradient, followed through all blocks.

    .. math:: A = r^\top \prod_{\ell=L-1}^{\text{start}} (I + E_\ell), \qquad
        E_\ell = \frac1H \sum_h \bigl(P_{\ell,h} \odot G_{\ell,h}\bigr)^+

    The positive part is taken before heads are averaged; the other order is a different method.

    Attributes:
        start: the first block that takes part.
    """

    start: int = 0

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = transformer(model, self.start)
        found = probabilities_and_gradients(model, images, targets, self.start)
        weighted = [[(p * g).clamp(min=0).mean(dim=1) for p, g in pairs] for pairs in found]
        return [rolled(model, images, [identity(e) + e for e in layers]) for layers in weighted]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1, count * (1 - self.start / transformer(model).depth))
