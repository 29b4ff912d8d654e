"""LeGrad: the gradient of each block's own score with respect to its attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.errors import RecipeError, UnsupportedModel
from sightline.methods.attention.attention import transformer
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.capture import Site, capture
from sightline.models.passes import spend
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target

BLOCKS = 2  # at the end of the network, as the authors' code


@METHODS.register(
    "legrad",
    family="attention",
    cite="bousselham2025",
    cost="1 forward, 1/blocks backward for every block; 1 forward where attention pools the tokens",
    needs=("attention", "gradient", "tokens"),
    parity="torchcam LeGrad on a random torchvision ViT, 1e-9; attention pooling: the formula written out, 1e-9",
)
@dataclass(frozen=True, slots=True)
class LeGrad(MultiTarget):
    r"""LeGrad: the positive gradient of each block's own score with respect to its attention, summed over blocks.

    .. math:: A = \sum_{\ell \ge \ell_0} \frac{1}{H n} \sum_{h, i}
        \Bigl[\frac{\partial s_\ell}{\partial P_{\ell,h}}\Bigr]^+_{i,\cdot}, \qquad
        s_\ell = s\bigl(\operatorname{head}(\operatorname{norm}(\bar z_\ell))\bigr)

    where :math:`\bar z_\ell` is the mean of the n tokens that leave block :math:`\ell`, :math:`P_{\ell,h}` the
    attention probabilities of its heads, and i runs over all queries. Attention itself is not multiplied in. Made for
    CLIP with ``TextSimilarity``; it serves any plain vision transformer. A model that pools its tokens by attention
    (SigLIP, CoCa) is explained by the gradient at that attention instead, fed with the tokens of each block, its first
    query alone. The map is never negative.

    Attributes:
        start: the first block that is added; by default the last two blocks, as the authors' code.
    """

    start: int | None = None

    def __post_init__(self) -> None:
        if self.start is not None and self.start < 0:
            raise RecipeError(f"got start={self.start}; count blocks from 0")

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = self._transformer(model)
        blocks = range(self._start(model), model.depth)
        rows = (self._pooled if model.pool == "map" else self._attention)(model, images, targets, blocks)
        grid = model.grid_of(images)
        return [Attribution(grid.to_map(row)[None], grid) for row in rows]

    def _transformer(self, model: Adapter) -> VisionTransformer:
        return transformer(model, 0 if self.start is None else self.start)

    def _start(self, model: VisionTransformer) -> int:
        return max(model.depth - BLOCKS, 0) if self.start is None else self.start

    def _attention(
        self, model: VisionTransformer, images: Tensor, targets: Sequence[Target], blocks: range
    ) -> list[Tensor]:
        """Return each target's sum of gradients at the attention of the blocks, (batch, token)."""
        places = [(f"block.{index}.probabilities", f"block.{index}.output") for index in blocks]
        with model.capture(*(site for pair in places for site in pair), gradient=True) as seen:
            model(images)
            totals = [torch.zeros_like(images[:, 0, 0, :1]) for _ in targets]
            for attention, output in places:
                # every token the mean: whatever the classifier pools, it reads the mean's own logits
                logits = model.finish(seen[output].mean(dim=1, keepdim=True).expand_as(seen[output]))
                for index, target in enumerate(targets):
                    (gradient,) = torch.autograd.grad(target(logits).sum(), seen[attention], retain_graph=True)
                    totals[index] = totals[index] + gradient.clamp(min=0).mean(dim=(1, 2))
        spend(backward=len(images) * len(targets) * len(blocks) / model.depth)
        return totals

    def _pooled(
        self, model: VisionTransformer, images: Tensor, targets: Sequence[Target], blocks: range
    ) -> list[Tensor]:
        """Return the same for the attention that pools the tokens."""
        pooling = model.pooling_attention
        if pooling is None:
            raise UnsupportedModel(f"the attention that pools the tokens of {model.name} is not known; use gae")
        with model.capture(*(f"block.{index}.output" for index in blocks)) as seen:
            model(images)
        totals = [torch.zeros_like(images[:, 0, 0, :1]) for _ in targets]
        for tokens in seen.values():
            with capture({"pool": Site(pooling, "probabilities")}, gradient=True) as pool:
                logits = model.finish(tokens)
                for index, target in enumerate(targets):
                    (gradient,) = torch.autograd.grad(target(logits).sum(), pool["pool"], retain_graph=True)
                    row = gradient.clamp(min=0).mean(dim=1)[:, 0]
                    totals[index] = totals[index] + row
        return totals

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        model = self._transformer(model)
        blocks = 0 if model.pool == "map" else model.depth - self._start(model)
        return Passes(1, count * blocks / model.depth)
