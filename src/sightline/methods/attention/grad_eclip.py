"""Grad-ECLIP: the values of the last attention, weighted by the gradient at its output and by a loosened attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.methods.attention.attention import transformer
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target


@METHODS.register(
    "grad_eclip",
    family="attention",
    cite="zhao2024eclip",
    cost="1 forward, 1/blocks backward",
    needs=("attention", "gradient", "tokens"),
    parity="the paper's formula written out with autograd on open_clip, 1e-6; the authors' code has no licence",
)
@dataclass(frozen=True, slots=True)
class GradEclip(MultiTarget):
    r"""Grad-ECLIP: how much the value of each patch in the last attention raises the score of an image and a text.

    .. math:: A_i = \Bigl[\sum_j \sum_d \frac{\partial s}{\partial o_{j,d}}\, \lambda_{ji}\, v_{i,d}\Bigr]^+, \qquad
        \lambda_{ji} = \operatorname{minmax}_i \cos(q_j, k_i)

    where :math:`o_j` is what the last attention gives token j before its output projection, all heads side by side, v
    the values, q and k the queries and keys. In a model that is read at its class token only that token has a gradient,
    which is the paper's formula; one that pools its patches is summed over them. The similarity of query and key,
    scaled to 0..1 over the patches, takes the place of attention probabilities, which few patches share. Made for CLIP
    with ``TextSimilarity`` or texts as classes. The map is never negative. The authors' code compares queries and keys
    after the output projection; here they are compared as they are.
    """

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = transformer(model)
        names = [f"block.{model.depth - 1}.{place}" for place in ("q", "k", "v", "context")]
        with model.capture(*names, gradient=True) as seen:
            logits = model(images)
            scores = [target(logits) for target in targets]
        heads = seen[names[0]].shape[1]
        query, key, value = (_side_by_side(seen[name], heads).detach() for name in names[:3])
        patches = slice(model.prefix, None)
        loosened = _min_max(F.normalize(query, dim=-1) @ F.normalize(key[:, patches], dim=-1).mT)  # (batch, to, from)
        grid, maps = model.grid_of(images), []
        for gradients in model.gradients_each(scores, {names[3]: seen[names[3]]}):
            products = _side_by_side(gradients[names[3]], heads) @ value[:, patches].mT
            row = (products * loosened).sum(dim=1).clamp(min=0)
            maps.append(Attribution(row.view(1, -1, grid.height, grid.width), grid))
        return maps

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1, count / transformer(model).depth)


def _side_by_side(each: Tensor, heads: int) -> Tensor:
    """Lay heads side by side: (batch, head, token, channel) -> (batch, token, head · channel).

    Keys and values that several heads share are repeated for each of them.
    """
    return each.repeat_interleave(heads // each.shape[1], dim=1).transpose(1, 2).flatten(2)


def _min_max(rows: Tensor) -> Tensor:
    low, high = rows.amin(dim=-1, keepdim=True), rows.amax(dim=-1, keepdim=True)
    return (rows - low) / (high - low).clamp(min=torch.finfo(rows.dtype).tiny)
