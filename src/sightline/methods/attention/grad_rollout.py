"""Gradient rollout: attention rollout of gradient-weighted attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.attention.attention import (
    divide_by_maximum,
    half_identity_columns,
    positive_weighted,
    rollout,
    transformer,
    without_smallest,
)
from sightline.methods.attention.token_matrices import with_identity
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target


@METHODS.register(
    "grad_rollout",
    family="attention",
    cite="iia2023",
    cost="1 forward, 1 backward",
    needs=("attention", "gradient"),
    parity="authors' code of iia2023 (real ViT) and vit-explain (random and real ViT), 1e-4; float64 1e-8",
)
@dataclass(frozen=True, slots=True)
class GradRollout(MultiTarget):
    r"""Gradient rollout: attention rollout with attention maps weighted by their positive gradients.

    .. math:: A = r^\top \prod_{\ell=L-1}^{\text{start}} \operatorname{rows}\bigl(I + E_\ell\bigr), \qquad
        E_\ell = \frac1H \sum_h \bigl(P_{\ell,h} \odot G_{\ell,h}\bigr)^+

    where rows(·) divides each row by its sum. Makes rollout class-specific. Three different methods go by this name;
    this is the one that iterated integrated attributions (IIA) use.

    Attributes:
        start: the first block of the product.
        variant: "iia", or "vit_explain" for what that repository's released code computes: block l is weighted by the
            gradient at the scores (before the softmax) of block L-1-l, the smallest nine tenths of each matrix are set
            to zero, columns instead of rows are divided, and the map is divided by its maximum. It is for comparison
            with published maps; its block order is reversed by mistake, so it always uses all blocks.
    """

    start: int = 0
    variant: Literal["iia", "vit_explain"] = "iia"

    def __post_init__(self) -> None:
        if self.variant == "vit_explain" and self.start:
            raise RecipeError(f"got start={self.start} with variant='vit_explain', which has none; leave start out")

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = transformer(model, self.start)
        if self.variant == "vit_explain":
            return [
                divide_by_maximum(rollout(model, images, layers)) for layers in _vit_explain(model, images, targets)
            ]
        weighted = positive_weighted(model, images, targets, self.start)
        return [rollout(model, images, [with_identity(e) for e in layers]) for layers in weighted]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1, count * (1 - self.start / transformer(model).depth))


def _vit_explain(model: VisionTransformer, images: Tensor, targets: Sequence[Target]) -> list[list[Tensor]]:
    """Return each target's matrices, (batch, to, from): block l's attention with block L-1-l's score gradient."""
    with (
        model.capture(*model.every("probabilities")) as seen,
        model.capture(*model.every("scores"), gradient=True) as scores,
    ):
        logits = model(images)
        values = [target(logits) for target in targets]
    attention = list(seen.values())
    return [
        [
            half_identity_columns(without_smallest((p * g).mean(dim=1).clamp(min=0)))
            for p, g in zip(attention, reversed(gradients.values()), strict=True)
        ]
        for gradients in model.gradients_each(values, scores)
    ]
