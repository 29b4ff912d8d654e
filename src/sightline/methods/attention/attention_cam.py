r"""Attention times its gradient (Grad-CAM on attention, Grad-SAM), and input × gradient weighted by attention (AttCAT).

Blocks are added up or taken alone, not multiplied. Notation as in `attention`: :math:`P_\ell`, :math:`G_\ell` the
probabilities and the target's gradient with respect to them, :math:`r` the row the classifier reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.attention.attention import last_blocks, probabilities_and_gradients, read_rows, transformer
from sightline.methods.attention.bi_attention import last_attention_gradients
from sightline.methods.gradient.gradient import values_and_gradients
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target


def _sums_from_the_end(layers: Sequence[Tensor]) -> Tensor:
    """Return, for every start layer, the sum over the layers from it on."""
    return torch.stack(list(layers)).flip(0).cumsum(dim=0).flip(0)


@METHODS.register(
    "att_cam",
    family="attention",
    cite="chefer2021transformer",
    cost="1 forward, 1/blocks backward",
    needs=("attention", "gradient"),
    parity="authors' code of chefer2021transformer and mda2025, random and real ViT, 1e-4; float64 1e-8",
)
@dataclass(frozen=True, slots=True)
class AttentionCam(MultiTarget):
    r"""Grad-CAM on the last block's attention: attention maps of the heads, weighted by their mean gradients.

    .. math:: A = \Bigl(\frac1H \sum_h w_h\, r^\top P_{L-1,h}\Bigr)^+, \qquad
        w_h = \operatorname{mean}_{j \in \text{patches}} \bigl(r^\top G_{L-1,h}\bigr)_j

    The Grad-CAM baseline of attention-based papers; ``grad_cam`` itself is on the tokens.

    Attributes:
        variant: "chefer" as above, or "mda", the Grad-CAM of that paper's tables, in which every entry keeps its own
            gradient: :math:`r^\top (\frac1H \sum_h P_{L-1,h} \odot G_{L-1,h})^+`.
    """

    variant: Literal["chefer", "mda"] = "chefer"

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = transformer(model)
        grid = model.grid_of(images)
        site = model.every("probabilities")[-1]
        captured, gradients = last_attention_gradients(model, images, targets, [site])
        rows = [self._row(model, captured[site], gradient) for gradient in gradients]
        return [Attribution(grid.to_map(row)[None], grid, layers=last_blocks(model, 1)) for row in rows]

    def _row(self, model: VisionTransformer, attention: Tensor, gradient: Tensor) -> Tensor:
        if self.variant == "mda":
            return read_rows(model, (attention * gradient).mean(dim=1).clamp(min=0))
        attention, gradient = (
            read_rows(model, x.flatten(0, 1)).unflatten(0, x.shape[:2]) for x in (attention, gradient)
        )
        weights = gradient[..., model.prefix :].mean(dim=-1, keepdim=True)
        return (weights * attention).mean(dim=1).clamp(min=0)

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1, count / transformer(model).depth)


@METHODS.register(
    "grad_sam",
    family="attention",
    cite="barkan2021",
    cost="1 forward, 1 backward",
    needs=("attention", "gradient"),
    parity="the formula written out, float64 1e-10 (its authors released no code)",
)
@dataclass(frozen=True, slots=True)
class GradSam(MultiTarget):
    r"""Grad-SAM: attention maps times their positive gradients, averaged over heads and blocks.

    .. math:: A = \frac{1}{L H} \sum_{\ell, h} r^\top \bigl(P_{\ell,h} \odot G_{\ell,h}^+\bigr)

    Attributes:
        rows: "class" takes the classifier's row; "mean" averages over all rows, as other implementations do.
    """

    rows: Literal["class", "mean"] = "class"

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = transformer(model)
        grid = model.grid_of(images)
        counts = torch.arange(model.depth, 0, -1, device=images.device)[:, None, None]
        attributions = []
        for pairs in probabilities_and_gradients(model, images, targets):
            weighted = [(p * g.clamp(min=0)).mean(dim=1) for p, g in pairs]
            rows = [w.mean(dim=1) if self.rows == "mean" else read_rows(model, w) for w in weighted]
            values = grid.to_map(_sums_from_the_end(rows) / counts)
            attributions.append(Attribution(values, grid, layers=last_blocks(model, model.depth)))
        return attributions

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1, count)


@METHODS.register(
    "cat",
    family="attention",
    cite="qiang2022",
    cost="1 forward, 1 backward",
    needs=("attention", "gradient"),
    parity="plus(ixg), exactly",
)
@dataclass(frozen=True, slots=True)
class ClassActivationTokens(MultiTarget):
    r"""CAT, class activation tokens: input × gradient of the tokens, summed over all blocks.

    .. math:: A_i = \sum_\ell \sum_d x_{\ell,i,d}\, \frac{\partial s}{\partial x_{\ell,i,d}}

    The same as ``plus(ixg)``.
    """

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = transformer(model)
        each_target, grid = values_and_gradients(model, images, targets, "tokens")
        scores = [_sums_from_the_end([(x * g).sum(dim=-1) for x, g in pairs]) for pairs in each_target]
        return [Attribution(grid.to_map(each), grid, layers=last_blocks(model, model.depth)) for each in scores]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1, count)

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image: a graph, since no attention is kept."""
        return model.peak(Passes(1, 1))


def _attended_tokens(
    model: VisionTransformer, images: Tensor, targets: Sequence[Target], shift: int
) -> list[list[Tensor]]:
    """Return for each target and block input × gradient of the tokens times the attention each receives."""
    with model.capture(*model.every("probabilities")) as attention:
        each_target, _ = values_and_gradients(model, images, targets, "tokens")
    received = [p.mean(dim=(1, 2)) for p in attention.values()]
    weighted = []
    for pairs in each_target:
        scores = [(x * g).sum(dim=-1) for x, g in pairs]
        scores = [*scores[shift:], *[torch.zeros_like(scores[0])] * shift]
        weighted.append([a * s for a, s in zip(received, scores, strict=True)])
    return weighted


class _AttendedTokens(MultiTarget):
    """Input × gradient weighted by the attention received; a subclass has the field `shift`."""

    __slots__ = ()
    shift: int
    total: ClassVar[bool] = False  # whether blocks are added up

    def __post_init__(self) -> None:
        if self.shift not in (0, 1):
            raise RecipeError(f"got shift={self.shift}; 0 pairs a block's attention with its input, 1 with its output")

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = transformer(model)
        grid = model.grid_of(images)
        aggregate = _sums_from_the_end if self.total else torch.stack
        return [
            Attribution(grid.to_map(aggregate(layers)), grid, layers=last_blocks(model, model.depth))
            for layers in _attended_tokens(model, images, targets, self.shift)
        ]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1, count)


@METHODS.register(
    "att_ixg",
    family="attention",
    cite="skipplus2024",
    cost="1 forward, 1 backward",
    needs=("attention", "gradient"),
    parity="the formula written out, float64 1e-10",
)
@dataclass(frozen=True, slots=True)
class AttendedInputTimesGradient(_AttendedTokens):
    r"""Attention × input × gradient: input × gradient of each token, weighted by the attention it receives.

    .. math:: A_{\ell,j} = \Bigl(\operatorname{mean}_{h,i} P_{\ell,h,i,j}\Bigr)
        \sum_d x_{\ell,j,d}\, \frac{\partial s}{\partial x_{\ell,j,d}}

    Attributes:
        shift: 0 pairs a block's attention with its input, as the authors of AttCAT do; 1 with its output, the next
            block's input, and leaves the last block out, as the code behind the SkipPLUS and LibraGrad tables does.
    """

    shift: int = 0


@METHODS.register(
    "att_cat",
    family="attention",
    cite="qiang2022",
    cost="1 forward, 1 backward",
    needs=("attention", "gradient"),
    parity="plus(att_ixg), exactly",
)
@dataclass(frozen=True, slots=True)
class AttentiveClassActivationTokens(_AttendedTokens):
    r"""AttCAT, attentive class activation tokens: input × gradient × attention received, summed over all blocks.

    .. math:: A_j = \sum_\ell \Bigl(\operatorname{mean}_{h,i} P_{\ell,h,i,j}\Bigr)
        \sum_d x_{\ell,j,d}\, \frac{\partial s}{\partial x_{\ell,j,d}}

    The same as ``plus(att_ixg)``.

    Attributes:
        shift: 0 or 1, as for ``att_ixg``.
    """

    total: ClassVar[bool] = True
    shift: int = 0
