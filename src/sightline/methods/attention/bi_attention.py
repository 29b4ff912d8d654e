r"""Bi-Attn, and the integrated gradients of the last block's attention on which it is based.

The gradient of the target with respect to the last block's attention is averaged along the straight path from a zero
image to the image, and its positive part is averaged over heads (the "reasoning feedback" of :cite:p:`chen2023`):

.. math:: W = \frac1H \sum_h \Bigl(\frac1S \sum_{k=0}^{S-1} G_{L-1,h}\bigl(\tfrac{k}{S-1}\,x\bigr)\Bigr)^+

Only the last block is differentiated; the blocks before it run without a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import RecipeError, UnsupportedModel
from sightline.methods.attention.attention import last_blocks, probabilities_and_gradients, read_rows, transformer
from sightline.methods.attention.token_matrices import identity
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.passes import in_batches, shared
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target


@shared
def last_attention_gradients(
    model: VisionTransformer, images: Tensor, targets: Sequence[Target], sites: Sequence[str] = ()
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Run forward once; return the sites' values, and each target's gradient at the last block's probabilities."""
    last = model.every("probabilities")[-1]
    before = model.depth - 1
    split = "tokens" in model.offers  # the last block can be run by itself
    with torch.inference_mode(False), ExitStack() as stack:
        with torch.no_grad():
            tokens = model.start(images) if split else images
            captured = stack.enter_context(model.capture(*sites)) if sites else {}
            tokens = model.run(tokens, 0, before) if split else tokens
        seen = stack.enter_context(model.capture(last, gradient=True))
        logits = model.finish(model.run(tokens, before)) if split else model(images)
        scores = [target(logits) for target in targets]
    return dict(captured), [gradients[last] for gradients in model.gradients_each(scores, seen)]


def integrated_attention_gradients(
    model: VisionTransformer, images: Tensor, targets: Sequence[Target], steps: int, at_image: Sequence[Tensor]
) -> list[Tensor]:
    """Return W, (batch, to, from), for each target; `at_image` are the gradients at the end of the path."""
    totals = summed_attention_gradients(model, images, targets, steps)
    return [
        ((total + gradient) / steps).clamp(min=0).mean(dim=1) for total, gradient in zip(totals, at_image, strict=True)
    ]


@shared
def summed_attention_gradients(
    model: VisionTransformer, images: Tensor, targets: Sequence[Target], steps: int
) -> list[Tensor]:
    """Return, for each target, the sum of the gradients along the path from a zero image, its end left out."""
    scales = torch.linspace(0, 1, steps, dtype=images.dtype, device=images.device)
    totals: list[Tensor] = []

    def work(part: slice) -> None:
        index = torch.arange(part.start, part.stop, device=images.device)
        of_image = index // (steps - 1)
        rows = [place // (steps - 1) for place in range(part.start, part.stop)]
        scaled = scales[index % (steps - 1)][:, None, None, None] * images[of_image]
        _, gradients = last_attention_gradients(model, scaled, [target.take(rows) for target in targets])
        if not totals:
            totals.extend(gradient.new_zeros(len(images), *gradient.shape[1:]) for gradient in gradients)
        for total, gradient in zip(totals, gradients, strict=True):
            total.index_add_(0, of_image, gradient)

    in_batches(work, len(images) * (steps - 1), model.batch)
    return totals


def head_weights(attention: Tensor, gradient: Tensor) -> Tensor:
    r"""Return the importance of each head, (batch, head), summing to one.

    .. math:: I_h = \operatorname{mean}_{ij}\,\bigl\lvert A_h^\top G_h \bigr\rvert_{ij} \Big/ \sum_{h'} \dots
    """
    size = (attention.transpose(-1, -2) @ gradient).abs().mean(dim=(-2, -1))
    total = size.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, size / total, 1 / size.shape[-1])


class AttentionPath(MultiTarget):
    """A method that averages attention gradients along the path to the image; a subclass has the field `steps`."""

    __slots__ = ()
    steps: int

    def __post_init__(self) -> None:
        if self.steps < 2:
            raise RecipeError(f"got steps={self.steps}; at least two are needed, the empty image and the image itself")


@METHODS.register(
    "bi_attn",
    family="attention",
    cite="chen2023",
    cost="steps forward, 1 + steps/blocks backward",
    needs=("attention", "gradient"),
    parity="authors' code and the copy in mda2025, random and real ViT, 1e-4; float64 1e-8",
)
@dataclass(frozen=True, slots=True)
class BiAttention(AttentionPath):
    r"""Bi-Attn: rollout of importance-weighted attention times integrated gradients of the last block's attention.

    .. math:: A = r^\top (W \odot R), \qquad R = \prod_{\ell=L-1}^{s-1} (I + \bar A_\ell)

    with :math:`\bar A_\ell = \sum_h I_h P_{\ell,h}`, :math:`I_h \propto \operatorname{mean} |P_h^\top G_h|` (heads
    weighted by importance), or :math:`\bar A_\ell = (\frac1H\sum_h P_{\ell,h}) \operatorname{diag}
    \bigl(\lVert W_O v_j \rVert / \lVert x_j \rVert\bigr)` (tokens weighted by the norm of their values relative to the
    residual stream). :math:`W` is the mean gradient of the last block's attention along the path from a zero image to
    the image. Class-specific; MDA's default seed.

    Attributes:
        steps: points of the path behind W, both ends included.
        start: the first block of the product, counted from 1 as its authors do; by default a third of the depth
            (4 of 12) for heads and seven twelfths (7 of 12) for tokens.
        variant: head or token.
    """

    steps: int = 20
    start: int | None = None
    variant: Literal["head", "token"] = "head"

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = transformer(model)
        start = 0 if every_layer else self.first_block(model)
        if self.variant == "head":
            each_target = probabilities_and_gradients(model, images, targets, start)
            at_image = [pairs[-1][1] for pairs in each_target]
            matrices = [[_head_weighted(p, g) for p, g in pairs] for pairs in each_target]
        else:
            shared, at_image = _token_weighted(model, images, targets, start)
            matrices = [shared] * len(targets)
        weights = integrated_attention_gradients(model, images, targets, self.steps, at_image)
        rolled = [_weighted_rollout(model, images, *each) for each in zip(weights, matrices, strict=True)]
        return [replace(each, own=self.first_block(model) - start) for each in rolled]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        model = transformer(model)
        start = 0 if every_layer else self.first_block(model)
        first = 1 - start / model.depth if self.variant == "head" else 1 / model.depth
        return Passes(self.steps, count * (first + (self.steps - 1) / model.depth))

    def first_block(self, model: VisionTransformer) -> int:
        """Return the index of the first block."""
        share = 4 if self.variant == "head" else 7
        start = max(1, round(model.depth * share / 12)) if self.start is None else self.start
        if not 1 <= start <= model.depth:
            raise RecipeError(f"got start={start}; bi_attn counts the blocks of {model.name} from 1 to {model.depth}")
        return start - 1


def _head_weighted(attention: Tensor, gradient: Tensor) -> Tensor:
    return torch.einsum("bh,bhtf->btf", head_weights(attention, gradient), attention)


def _token_weighted(
    model: VisionTransformer, images: Tensor, targets: Sequence[Target], start: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Return mean attention with columns scaled by value norm over stream norm, and the gradients at the image."""
    names = ("probabilities", "v", "input")
    sites = [site for name in names for site in model.every(name, start)]
    captured, at_image = last_attention_gradients(model, images, targets, sites)
    matrices = []
    for index in range(start, model.depth):
        attention, values, stream = (captured[f"block.{index}.{name}"] for name in names)
        block = model.blocks[index]
        if block.projection is None:
            raise UnsupportedModel(
                f"the attention of {model.name} has no output projection of its own, which variant='token' needs; "
                "write variant='head'"
            )
        added = F.linear(values.transpose(1, 2).flatten(2), cast(Tensor, block.projection.weight))
        added = added if block.scale1 is None else added * block.scale1
        added_norm, norm = (torch.linalg.vector_norm(x, dim=-1) for x in (added, stream))
        share = (added_norm / norm.where(norm > 0, 1.0)) * (norm > 0)  # a zero token has no norm to compare with
        matrices.append(attention.mean(dim=1) * share[:, None, :])
    return matrices, at_image


def _weighted_rollout(
    model: VisionTransformer, images: Tensor, weight: Tensor, matrices: Sequence[Tensor]
) -> Attribution:
    """Roll the matrices out, with residual connections, for the rows that the classifier reads; weight them by W."""
    readout = model.readout(weight.shape[-1]).to(weight)
    read = readout.nonzero()[:, 0]
    rows = identity(weight)[read].expand(len(images), -1, -1)
    maps = []
    for matrix in reversed(matrices):
        rows = rows + rows @ matrix
        maps.append(torch.einsum("t,btf,btf->bf", readout[read], weight[:, read], rows))
    grid = model.grid_of(images)
    return Attribution(grid.to_map(torch.stack(maps[::-1])), grid, layers=last_blocks(model, len(matrices)))


@METHODS.register(
    "att_ig",
    family="attention",
    cite="chen2023",
    cost="steps forward, steps/blocks backward",
    needs=("attention", "gradient"),
    parity="code of mda2025 (its IG), real ViT, 1e-4; float64 1e-8",
)
@dataclass(frozen=True, slots=True)
class AttentionIntegratedGradients(AttentionPath):
    r"""Integrated gradients of the last block's attention: mean gradient on the path from a zero image to the image.

    .. math:: A = r^\top W

    where W is the positive part of that mean, averaged over heads; :math:`r` reads the classifier's row. The tables of
    the MDA paper call it IG; integrated gradients of the pixels are ``ig(at='pixels')``.

    Attributes:
        steps: points of the path, both ends included.
    """

    steps: int = 20

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = transformer(model)
        grid = model.grid_of(images)
        _, at_image = last_attention_gradients(model, images, targets)
        weights = integrated_attention_gradients(model, images, targets, self.steps, at_image)
        rows = [grid.to_map(read_rows(model, weight))[None] for weight in weights]
        return [Attribution(row, grid, layers=last_blocks(model, 1)) for row in rows]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(self.steps, count * self.steps / transformer(model).depth)
