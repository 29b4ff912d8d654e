r"""Raw attention, attention rollout and gradient-weighted attention (GAE).

Notation: :math:`P_\ell` (head, to, from) are the attention probabilities of block :math:`\ell`, :math:`G_\ell` the
target's gradient with respect to them, :math:`r` the weights with which the classifier reads the tokens
(`VisionTransformer.readout`): one for the class token, or the mean over patches where they are pooled. Products are
multiplied to :math:`r` from the last block down, so every start layer comes in the same pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from sightline.errors import RecipeError, UnsupportedModel
from sightline.methods.attention.layer_products import layer_gae, layer_raw_attention, layer_rollout
from sightline.methods.attention.token_matrices import identity, rows_to_one, square, with_identity
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.passes import shared
from sightline.models.vit.adapter import VisionTransformer
from sightline.models.vit.last_block import PrefixAttention
from sightline.recipe import text
from sightline.registry import METHODS, HasOptions
from sightline.types import Attribution, Method, Passes, Target

Fusion = Literal["mean", "max", "min"]


def transformer(model: Adapter, start: int = 0) -> VisionTransformer:
    """Return the model as a transformer with the start block checked, or raise if it is none."""
    if not isinstance(model, VisionTransformer):
        raise UnsupportedModel(f"this method needs attention maps; {model.name} has none")
    if not 0 <= start < model.depth:
        raise RecipeError(f"got start={start}; {model.name} has blocks 0 to {model.depth - 1}")
    return model


def _by_blocks(model: Adapter, asked: bool) -> bool:
    """Tell whether blocks are asked for, as options and operators of layers do, and the model has equal ones."""
    return asked and isinstance(model, VisionTransformer)


@shared
def probabilities(model: VisionTransformer, images: Tensor, start: int = 0) -> list[Tensor]:
    """Return the attention probabilities (batch, head, to, from) of every block from `start` on; one forward pass."""
    with model.capture(*model.every("probabilities", start)) as seen:
        model(images)
    return list(seen.values())


@shared
def probabilities_and_gradients(
    model: VisionTransformer, images: Tensor, targets: Sequence[Target], start: int = 0
) -> list[list[tuple[Tensor, Tensor]]]:
    """Return, for each target, (probabilities, gradient) of every block from `start` on.

    Rows of the last block that no classifier reads have no gradient. Where that block runs for the prefix alone the
    patches' rows are not computed, and zero in both.
    """
    last, names = model.unwatched_last_block(), model.every("probabilities", start)
    with model.capture(*names if last is None else names[:-1], gradient=True) as captured:
        attend = PrefixAttention()
        logits = model(images) if last is None else model.logits_by(last, images, attend)
        scores = [target(logits) for target in targets]
    seen = dict(captured) if last is None else {**captured, names[-1]: attend.probabilities}
    each_target = model.gradients_each(scores, seen)
    return [[(square(seen[name].detach()), square(gradients[name])) for name in seen] for gradients in each_target]


def positive_weighted(
    model: VisionTransformer, images: Tensor, targets: Sequence[Target], start: int = 0
) -> list[list[Tensor]]:
    """Return, for each target and block, the positive part of attention times gradient, mean over heads."""
    each_target = probabilities_and_gradients(model, images, targets, start)
    return [[(p * g).clamp_(min=0).mean(dim=1) for p, g in pairs] for pairs in each_target]


def read_rows(model: VisionTransformer, matrix: Tensor) -> Tensor:
    """Return the row of a (batch, to, from) matrix that the classifier reads: (batch, from)."""
    return torch.einsum("t,btf->bf", model.readout(matrix.shape[-1]).to(matrix), matrix)


def rollout(
    model: VisionTransformer, images: Tensor, matrices: Sequence[Tensor], *, normalised: bool = False
) -> Attribution:
    """Multiply (batch, to, from) matrices from the last block down to each start layer; keep the classifier's row.

    With `normalised` that row is divided by its sum: after every block, which is the same as at the end and stays
    finite.
    """
    row = model.readout(matrices[-1].shape[-1]).to(matrices[-1]).expand(len(images), 1, -1)
    rows = []
    for matrix in reversed(matrices):
        row = rows_to_one(row @ matrix) if normalised else row @ matrix
        rows.append(row[:, 0])
    grid = model.grid_of(images)
    return Attribution(grid.to_map(torch.stack(rows[::-1])), grid, layers=last_blocks(model, len(matrices)))


def own_rows(model: VisionTransformer, images: Tensor, matrices: Sequence[Tensor]) -> Attribution:
    """Return the classifier's row of each block's own (batch, to, from) matrix, as one layer each."""
    grid = model.grid_of(images)
    rows = torch.stack([read_rows(model, matrix) for matrix in matrices])
    return Attribution(grid.to_map(rows), grid, layers=last_blocks(model, len(matrices)))


def last_blocks(model: VisionTransformer, count: int) -> tuple[int, ...]:
    """Return the numbers of the last blocks."""
    return tuple(range(model.depth - count, model.depth))


@runtime_checkable
class HasTokenMatrices(Protocol):
    """A method with one matrix from tokens to tokens per block, the same for every class, that can be rolled out."""

    def token_matrices(self, model: VisionTransformer, images: Tensor, start: int = 0) -> list[Tensor]:
        """Return the (batch, to, from) matrix of every block from `start` on; one forward pass."""
        ...


def divide_by_maximum(attribution: Attribution) -> Attribution:
    """Divide each map by its maximum; a map without positive values stays as it is."""
    largest = attribution.values.flatten(2).amax(dim=-1)[..., None, None]
    return replace(attribution, values=attribution.values / largest.where(largest > 0, 1.0))


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
    r"""Raw attention: the attention weights of the last block from the class token to the patches, mean over heads.

    .. math:: A = r^\top \frac1H \sum_h P_{L-1,h}

    The simplest look at a transformer. It depends neither on the class nor on what earlier blocks mixed.

    Attributes:
        layer: the block, counted from the end when negative.
    """

    layer: int = -1

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        if model.attention_layers is not None and not _by_blocks(model, every_layer or self.layer != -1):
            return layer_raw_attention(model, images, targets, self.layer)
        model = transformer(model)
        grid = model.grid_of(images)
        rows = [read_rows(model, p.mean(dim=1)) for p in probabilities(model, images)]
        if not -len(rows) <= self.layer < len(rows):
            raise RecipeError(f"got layer={self.layer}; {model.name} has blocks 0 to {len(rows) - 1}")
        own = self.layer % len(rows)
        values = grid.to_map(torch.stack(rows))
        if not every_layer:
            return [Attribution(values[own : own + 1], grid, layers=(own,))] * len(targets)
        return [Attribution(values, grid, layers=last_blocks(model, len(rows)), own=own)] * len(targets)

    def token_matrices(self, model: VisionTransformer, images: Tensor, start: int = 0) -> list[Tensor]:
        return [p.mean(dim=1) for p in probabilities(model, images, start)]

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
    r"""Attention rollout: the attention maps of all blocks, mixed with the identity and multiplied.

    .. math:: A = r^\top \prod_{\ell=L-1}^{\text{start}} \tfrac12\Bigl(I + \frac1H\sum_h P_{\ell,h}\Bigr)

    Traces how much attention reaches each patch through all blocks and their residual connections. It does not depend
    on the class. ``rollout(matrix=att_in)`` rolls out another matrix from tokens to tokens, its rows divided by their
    sums first: AttIN-Rollout.

    Attributes:
        start: the first block of the product.
        matrix: the method whose blocks' matrices are multiplied: raw_attention, which is the default, att_in, globenc
            or alti.
        variant: "paper", or "vit_explain" for that repository's released code: the smallest nine tenths of each matrix
            are set to zero, columns instead of rows are divided, and the map is divided by its maximum.
        fusion: how "vit_explain" joins heads: mean, max or min.
    """

    start: int = 0
    variant: Literal["paper", "vit_explain"] = "paper"
    fusion: Fusion = "mean"
    matrix: Method | None = None

    def __post_init__(self) -> None:
        if self.matrix is not None and not isinstance(self.matrix, HasTokenMatrices):
            raise RecipeError(
                f"got matrix={text(self.matrix)}, which has no matrix from tokens to tokens that is the same for every "
                "class; choose raw_attention, att_in, globenc or alti, or write grad_rollout"
            )
        if self.matrix is not None and self.variant != "paper":
            raise RecipeError(f"got matrix={text(self.matrix)} with variant={self.variant!r}; leave out one of them")

    def __call__(self, model: Adapter, images: Tensor, target: Target) -> Attribution:
        if model.attention_layers is not None and not _by_blocks(model, self != Rollout()):
            self._refuse_options(model)
            return layer_rollout(model, images, target)
        model = transformer(model, self.start)
        if isinstance(self.matrix, HasTokenMatrices):
            matrices = self.matrix.token_matrices(model, images, self.start)
            return rollout(model, images, [with_identity(rows_to_one(matrix)) for matrix in matrices])
        attention = probabilities(model, images, self.start)
        if self.variant == "paper":
            return rollout(model, images, [with_identity(p.mean(dim=1)) for p in attention])
        return divide_by_maximum(rollout(model, images, [_vit_explain(fuse_heads(p, self.fusion)) for p in attention]))

    def _refuse_options(self, model: Adapter) -> None:
        """Refuse what is not defined where attention is no single square matrix per block."""
        if self != Rollout():
            raise RecipeError(f"got {text(self)}; {model.name} is no plain vision transformer: write rollout alone")

    def cost(self, model: Adapter) -> Passes:
        return Passes(1, 0)


def fuse_heads(attention: Tensor, fusion: Fusion) -> Tensor:
    """Join the heads of (batch, head, to, from)."""
    return {"mean": attention.mean(dim=1), "max": attention.amax(dim=1), "min": attention.amin(dim=1)}[fusion]


def _vit_explain(attention: Tensor) -> Tensor:
    """Discard small entries, but never the first one, as the released code does."""
    kept = without_smallest(attention)
    kept[:, 0, 0] = attention[:, 0, 0]
    return half_identity_columns(kept)


def without_smallest(matrix: Tensor, share: float = 0.9) -> Tensor:
    """Set the smallest share of the entries of each (batch, to, from) matrix to zero."""
    flat = matrix.flatten(1)
    smallest = flat.topk(int(flat.shape[-1] * share), dim=-1, largest=False).indices
    return flat.scatter(1, smallest, 0.0).view_as(matrix)


def half_identity_columns(matrix: Tensor) -> Tensor:
    """Average with the identity, and divide column j by row j's sum, as the released code of vit-explain does."""
    mixed = (matrix + identity(matrix)) / 2
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
    r"""GAE, generic attention explainability: gradient-weighted attention maps accumulated over all blocks.

    .. math:: A = r^\top \prod_{\ell=L-1}^{\text{start}} (I + E_\ell), \qquad
        E_\ell = \frac1H \sum_h \bigl(P_{\ell,h} \odot G_{\ell,h}\bigr)^+

    A class-specific rollout. The positive part is taken before heads are averaged; the other order is a different
    method. ``plus(gae)`` and ``skip_plus(gae)`` sum the blocks' own :math:`E_\ell` instead of multiplying them, as the
    paper on SkipPLUS composes them: ``plus(gae)`` is Grad-SAM times the number of blocks.

    Attributes:
        start: the first block of the product.
    """

    start: int = 0

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        if model.attention_layers is not None and not _by_blocks(model, every_layer or self.start > 0):
            return layer_gae(model, images, targets, self.start, every_layer=every_layer)
        model = transformer(model, self.start)
        weighted = positive_weighted(model, images, targets, self.start)
        if every_layer:
            return [own_rows(model, images, layers) for layers in weighted]
        return [rollout(model, images, [identity(e) + e for e in layers]) for layers in weighted]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        if model.attention_layers is not None and not _by_blocks(model, every_layer or self.start > 0):
            return Passes(1, count * model.remaining(model.attention_layers.layers[0].name))
        return Passes(1, count * (1 - self.start / transformer(model).depth))
