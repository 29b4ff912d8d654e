"""Rollout of attention weighted by its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.attention.attention import identity, of_largest, probabilities_and_gradients, rolled, transformer
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
    r"""Gradient rollout: attention weighted by its positive gradient, rolled out with the identity.

    .. math:: A = r^\top \prod_{\ell=L-1}^{\text{start}} \operatorname{rows}\bigl(I + E_\ell\bigr), \qquad
        E_\ell = \frac1H \sum_h \bigl(P_{\ell,h} \odot G_{\ell,h}\bigr)^+

    where rows(·) divides each row by its sum. Three different things go by this name; this is the one that iterated
    integrated attributions build on.

    Attributes:
        start: the first block that takes part.
        variant: "iia", or "vit_explain" for what that repository's released code computes: block l is weighted by the
            gradient at the scores (before the softmax) of block L-1-l, the smallest nine tenths of each matrix are set
            to zero, columns instead of rows are divided, and the map is divided by its maximum. It is kept to compare
            with published maps; its block order is reversed by mistake, so it always takes part as a whole.
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
            return [of_largest(rolled(model, images, layers)) for layers in _vit_explain(model, images, targets)]
        pairs = probabilities_and_gradients(model, images, targets, self.start)
        weighted = [[(p * g).clamp(min=0).mean(dim=1) for p, g in layers] for layers in pairs]
        return [rolled(model, images, [_with_identity(e) for e in layers]) for layers in weighted]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1, count * (1 - self.start / transformer(model).depth))


def _with_identity(weighted: Tensor) -> Tensor:
    mixed = weighted + identity(weighted)
    return mixed / mixed.sum(dim=-1, keepdim=True)


def _vit_explain(model: VisionTransformer, images: Tensor, targets: Sequence[Target]) -> list[list[Tensor]]:
    """Return each target's matrices, (batch, to, from): block l's attention with block L-1-l's score gradient."""
    with (
        model.capture(*model.every("probabilities")) as seen,
        model.capture(*model.every("scores"), gradient=True) as scores,
    ):
        logits = model(images)
        wanted = [target(logits) for target in targets]
    found = model.gradients_each(wanted, scores)
    attention = list(seen.values())
    return [
        [_discard((p * g).mean(dim=1)) for p, g in zip(attention, reversed(gradients.values()), strict=True)]
        for gradients in found
    ]


def _discard(weighted: Tensor, discard: float = 0.9) -> Tensor:
    """Keep the largest tenth of the positive part, add half the identity, divide column j by row j's sum."""
    flat = weighted.clamp(min=0).flatten(1)
    smallest = flat.topk(int(flat.shape[-1] * discard), dim=-1, largest=False).indices
    kept = flat.scatter(1, smallest, 0.0).view_as(weighted)
    mixed = (kept + identity(kept)) / 2
    return mixed / mixed.sum(dim=-1)[:, None, :]
