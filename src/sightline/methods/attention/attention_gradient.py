r"""The gradient with respect to attention weights, by itself: attention is not multiplied in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.attention.attention import last_blocks, probabilities_and_gradients, read_rows, transformer
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target

Part = Literal["signed", "absolute", "positive"]


@METHODS.register(
    "att_grad",
    family="attention",
    cite="skipplus2024",
    cost="1 forward, 1/blocks backward; 1 forward, 1 backward for all blocks",
    needs=("attention", "gradient"),
    parity="the gradient of attention × values written out, float64 1e-10 (its authors released no code)",
)
@dataclass(frozen=True, slots=True)
class AttentionGradient(MultiTarget):
    r"""Attention gradient: the gradient of the score with respect to a block's attention weights, mean over heads.

    .. math:: A_\ell = r^\top \frac1H \sum_h \frac{\partial s}{\partial P_{\ell,h}}

    The vanilla gradient of attention weights, as the paper on SkipPLUS sums it over layers: how the score would change
    if the token that the classifier reads attended more to a patch. Unlike ``gae`` and ``grad_sam`` it does not
    multiply attention in, so patches that no head attends to can score high. One backward pass yields every block:
    ``plus(att_grad)`` and ``skip_plus(att_grad)`` sum them.

    Attributes:
        layer: the block, counted from the end when negative.
        variant: what is averaged over heads: the signed gradient, its absolute value or its positive part.
    """

    layer: int = -1
    variant: Part = "signed"

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = transformer(model)
        own = self._own(model)
        first = 0 if every_layer else own
        layers = last_blocks(model, model.depth) if every_layer else (own,)
        grid = model.grid_of(images)
        attributions = []
        for pairs in probabilities_and_gradients(model, images, targets, first):
            rows = [read_rows(model, self._part(gradient).mean(dim=1)) for _, gradient in pairs[: len(layers)]]
            attributions.append(Attribution(grid.to_map(torch.stack(rows)), grid, layers=layers, own=own - first))
        return attributions

    def _own(self, model: VisionTransformer) -> int:
        if not -model.depth <= self.layer < model.depth:
            raise RecipeError(f"got layer={self.layer}; {model.name} has blocks 0 to {model.depth - 1}")
        return self.layer % model.depth

    def _part(self, gradient: Tensor) -> Tensor:
        match self.variant:
            case "absolute":
                return gradient.abs()
            case "positive":
                return gradient.clamp(min=0)
            case _:
                return gradient

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        model = transformer(model)
        first = 0 if every_layer else self._own(model)
        return Passes(1, count * (1 - first / model.depth))
