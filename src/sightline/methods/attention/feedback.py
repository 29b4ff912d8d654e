r"""Attention, weighted by what the output feeds back to the last block: Bi-Attn, and the feedback alone.

The reasoning feedback of a target is the gradient at the last block's attention, averaged over copies of the image
scaled from nothing to itself, its positive part averaged over heads:

.. math:: W = \frac1H \sum_h \Bigl(\frac1S \sum_{k=0}^{S-1} G_{L-1,h}\bigl(\tfrac{k}{S-1}\,x\bigr)\Bigr)^+

Only the last block is differentiated; the blocks before it run without a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import RecipeError, UnsupportedModel
from sightline.methods.attention.attention import identity, probabilities_and_gradients, read_rows, transformer
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.batch import in_batches
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target


def last_attention(
    model: VisionTransformer, images: Tensor, targets: Sequence[Target], sites: Sequence[str] = ()
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Run forward once; return what the sites hold, and each target's gradient at the last block's probabilities."""
    last = model.every("probabilities")[-1]
    before = model.depth - 1
    apart = "tokens" in model.offers
    with torch.inference_mode(False), ExitStack() as stack:
        with torch.no_grad():
            tokens = model.start(images) if apart else images
            held = stack.enter_context(model.capture(*sites)) if sites else {}
            tokens = model.run(tokens, 0, before) if apart else tokens
        seen = stack.enter_context(model.capture(last, gradient=True))
        logits = model.finish(model.run(tokens, before)) if apart else model(images)
        scores = [target(logits) for target in targets]
    return dict(held), [found[last] for found in model.gradients_each(scores, seen)]


def feedback(
    model: VisionTransformer, images: Tensor, targets: Sequence[Target], steps: int, ends: Sequence[Tensor]
) -> list[Tensor]:
    """Return W, (batch, to, from), for each target; `ends` are the gradients at the image itself, the last copy."""
    scales = torch.linspace(0, 1, steps, dtype=images.dtype, device=images.device)
    copies = [(row, step) for row in range(len(images)) for step in range(steps - 1)]
    totals = [end.clone() for end in ends]

    def work(part: slice) -> None:
        rows = [row for row, _ in copies[part]]
        scaled = scales[[step for _, step in copies[part]]][:, None, None, None] * images[rows]
        _, found = last_attention(model, scaled, [target.take(rows) for target in targets])
        for total, gradient in zip(totals, found, strict=True):
            total.index_add_(0, torch.tensor(rows, device=images.device), gradient)

    in_batches(work, len(copies), model.batch)
    return [(total / steps).clamp(min=0).mean(dim=1) for total in totals]


def head_weights(attention: Tensor, gradient: Tensor) -> Tensor:
    r"""Return how much each head matters, (batch, head), summing to one.

    .. math:: I_h = \operatorname{mean}_{ij}\,\bigl\lvert A_h^\top G_h \bigr\rvert_{ij} \Big/ \sum_{h'} \dots
    """
    size = (attention.transpose(-1, -2) @ gradient).abs().mean(dim=(-2, -1))
    total = size.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, size / total, 1 / size.shape[-1])


def check_steps(steps: int) -> None:
    """Refuse fewer copies than the two ends."""
    if steps < 2:
        raise RecipeError(f"got steps={steps}; at least two are needed, the empty image and the image itself")


@METHODS.register(
    "bi_attn",
    family="attention",
    cite="chen2023",
    cost="steps forward, 1 + steps/blocks backward",
    needs=("attention", "gradient"),
    parity="authors' code and the copy in mda2025, random and real ViT, 1e-4; float64 1e-8",
)
@dataclass(frozen=True, slots=True)
class BiAttention(MultiTarget):
    r"""Bi-Attn: what attention carries up to the classifier, times what the output feeds back.

    .. math:: A = r^\top (W \odot R), \qquad R = \prod_{\ell=L-1}^{s-1} (I + \bar A_\ell)

    with :math:`\bar A_\ell = \sum_h I_h P_{\ell,h}`, :math:`I_h \propto \operatorname{mean} |P_h^\top G_h|` (heads
    weighted by what they matter), or :math:`\bar A_\ell = (\frac1H\sum_h P_{\ell,h}) \operatorname{diag}
    \bigl(\lVert W_O v_j \rVert / \lVert x_j \rVert\bigr)` (tokens weighted by how much of the stream their values
    make up). It is what MDA starts from.

    Attributes:
        steps: scaled copies of the image behind W, both ends included.
        start: the first block that takes part, counted from 1 as its authors do; by default a third of the depth
            (4 of 12) for heads and seven twelfths (7 of 12) for tokens.
        variant: head or token.
    """

    steps: int = 20
    start: int | None = None
    variant: Literal["head", "token"] = "head"

    def __post_init__(self) -> None:
        check_steps(self.steps)

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = transformer(model)
        start = 0 if every_layer else self.first_block(model)
        if self.variant == "head":
            found = probabilities_and_gradients(model, images, targets, start)
            ends = [pairs[-1][1] for pairs in found]
            flows = [[_head_flow(p, g) for p, g in pairs] for pairs in found]
        else:
            flow, ends = _token_flows(model, images, targets, start)
            flows = [flow] * len(targets)
        weights = feedback(model, images, targets, self.steps, ends)
        return [_weighed(model, images, w, flow) for w, flow in zip(weights, flows, strict=True)]

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


def _head_flow(attention: Tensor, gradient: Tensor) -> Tensor:
    return torch.einsum("bh,bhtf->btf", head_weights(attention, gradient), attention)


def _token_flows(
    model: VisionTransformer, images: Tensor, targets: Sequence[Target], start: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Return mean attention whose columns are scaled by what a token's value adds to the stream it is added to."""
    places = ("probabilities", "v", "input")
    held, ends = last_attention(model, images, targets, [s for place in places for s in model.every(place, start)])
    flows = []
    for index in range(start, model.depth):
        attention, values, stream = (held[f"block.{index}.{place}"] for place in places)
        block = model.blocks[index]
        if block.projection is None:
            raise UnsupportedModel(
                f"the attention of {model.name} has no output projection of its own, which variant='token' needs; "
                "write variant='head'"
            )
        added = F.linear(values.transpose(1, 2).flatten(2), block.projection.get_parameter("weight"))
        added = added if block.scale1 is None else added * block.scale1
        share, length = (torch.linalg.vector_norm(x, dim=-1) for x in (added, stream))
        share = (share / length.where(length > 0, 1.0)) * (length > 0)  # an empty token has no stream to be a share of
        flows.append(attention.mean(dim=1) * share[:, None, :])
    return flows, ends


def _weighed(model: VisionTransformer, images: Tensor, weight: Tensor, flows: Sequence[Tensor]) -> Attribution:
    """Follow the rows that the classifier reads down to each start layer, and weigh them by the feedback."""
    readout = model.readout(weight.shape[-1]).to(weight)
    read = readout.nonzero()[:, 0]
    rows = identity(weight)[read].expand(len(images), -1, -1)
    maps = []
    for flow in reversed(flows):
        rows = rows + rows @ flow
        maps.append(torch.einsum("t,btf,btf->bf", readout[read], weight[:, read], rows))
    grid = model.grid_of(images)
    return Attribution(grid.to_map(torch.stack(maps[::-1])), grid)


@METHODS.register(
    "att_ig",
    family="attention",
    cite="chen2023",
    cost="steps forward, steps/blocks backward",
    needs=("attention", "gradient"),
    parity="code of mda2025 (its IG), real ViT, 1e-4; float64 1e-8",
)
@dataclass(frozen=True, slots=True)
class AttentionFeedback(MultiTarget):
    r"""The reasoning feedback alone: the last block's attention gradient over scaled copies of the image.

    .. math:: A = r^\top W

    The tables of the MDA paper call it IG; integrated gradients of the pixels are ``ig(at='pixels')``.

    Attributes:
        steps: scaled copies of the image, both ends included.
    """

    steps: int = 20

    def __post_init__(self) -> None:
        check_steps(self.steps)

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = transformer(model)
        grid = model.grid_of(images)
        _, ends = last_attention(model, images, targets)
        weights = feedback(model, images, targets, self.steps, ends)
        return [Attribution(grid.to_map(read_rows(model, weight))[None], grid) for weight in weights]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(self.steps, count * self.steps / transformer(model).depth)
