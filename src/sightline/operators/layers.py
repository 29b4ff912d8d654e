"""Aggregation over layers: a method's attributions summed over the blocks at which it can start."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from sightline.errors import RecipeError, UnsupportedMethod
from sightline.methods.multi_target import MultiTarget, multi_target, multi_target_cost
from sightline.models.adapter import Adapter
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import OPERATORS, spec_of
from sightline.types import Attribution, Method, Passes, Target


class LayerSum(MultiTarget):
    """An operator that sums start layers; a subclass is a frozen dataclass that gives their range."""

    __slots__ = ()
    method: Method

    @abstractmethod
    def span(self, model: Adapter, depth: int) -> tuple[int, int]:
        """Return the first start layer of the sum, and the layer before which it stops."""

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        first, last = self.span(model, depth_of(model, self.method))
        every_layer_of = multi_target(self.method, model, images, targets, every_layer=True)
        return [sum_layers(self.method, model, attribution, first, last) for attribution in every_layer_of]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        self.span(model, depth_of(model, self.method))  # what cannot be summed has no cost
        return multi_target_cost(self.method, model, count, every_layer=True)


def sum_layers(method: Method, model: Adapter, attribution: Attribution, first: int, last: int) -> Attribution:
    """Sum the layers of the blocks `first` up to, not including, `last`; blocks the method does not have add nothing.

    Layers are chosen by the number of their block (`Attribution.layers`), not by their place among the values.
    """
    if len(attribution.values) == 1 and depth_of(model, method) > 1:
        raise UnsupportedMethod(
            f"{spec_of(method).name} gives one map and no start layers to sum on {model.name}; "
            "sum layers of ixg, gradient, grad_cam, gae, rollout or raw_attention instead"
        )
    numbers = [(place, block) for place, block in enumerate(attribution.layers) if isinstance(block, int)]
    kept = [place for place, block in numbers if first <= block < last]
    if not kept:
        raise RecipeError(
            f"layers {first} to {last} leave nothing of the {len(attribution.values)} there are; widen them"
        )
    return replace(attribution, values=attribution.values[kept].sum(dim=0, keepdim=True), layers=(), own=0)


def depth_of(model: Adapter, method: Any) -> int:
    """Return how many blocks the model has to start a method at."""
    if isinstance(model, VisionTransformer):
        return model.depth
    raise UnsupportedMethod(
        f"{model.name} has no blocks to start {spec_of(method).name} at; layers are summed on transformers only"
    )


def half(depth: int) -> int:
    """Return the first layer of SkipPLUS: half the blocks, rounded up."""
    return -(-depth // 2)


@OPERATORS.register("plus", family="layers", cite="skipplus2024", cost="the method's")
@dataclass(frozen=True, slots=True)
class Plus(LayerSum):
    r"""PLUS: a method's attributions summed over all layers of the model at which it can start.

    .. math:: M = \sum_{\ell=0}^{L-1} A(f_\ell)(X_\ell)

    where :math:`f_\ell` is the part of the network from block :math:`\ell` on and :math:`X_\ell` its input tokens.
    Aggregates the information of all layers. Methods that yield all start layers in one pass cost no more with it. Of a
    class activation map it sums those of the tokens that enter each block; of ``gae``, ``globenc`` and ``alti``, which
    multiply one matrix per block, the blocks' own matrices.
    """

    method: Method

    def span(self, model: Adapter, depth: int) -> tuple[int, int]:
        return 0, depth


@OPERATORS.register("skip_plus", family="layers", cite="skipplus2024", cost="the method's")
@dataclass(frozen=True, slots=True)
class SkipPlus(LayerSum):
    r"""SkipPLUS: a method's attributions summed over the later layers; the first half is skipped.

    .. math:: M = \sum_{\ell=m}^{L-1} A(f_\ell)(X_\ell), \qquad m = \lceil L/2 \rceil

    PLUS without the early layers, whose attributions are noisier.

    Attributes:
        start: the first layer of the sum, m; half the depth by default.
    """

    method: Method
    start: int | None = None

    def span(self, model: Adapter, depth: int) -> tuple[int, int]:
        first = half(depth) if self.start is None else self.start
        if not 0 <= first < depth:
            raise RecipeError(f"got start={first}; {model.name} has blocks 0 to {depth - 1}")
        return first, depth


@OPERATORS.register("layers", family="layers", cost="the method's")
@dataclass(frozen=True, slots=True)
class Layers(LayerSum):
    r"""A method's attributions summed over a chosen range of start layers.

    .. math:: M = \sum_{\ell=\text{first}}^{\text{last}-1} A(f_\ell)(X_\ell)

    ``layers(ixg, first=6, last=7)`` is the method started at block 6 alone. Layers are those that `plus` sums, by the
    number of their block.

    Attributes:
        first: the first layer; a negative number counts from the last one, so that -1 is the last block on any model.
        last: the layer before which to stop, likewise; by default all that follow.
    """

    method: Method
    first: int = 0
    last: int | None = None

    def span(self, model: Adapter, depth: int) -> tuple[int, int]:
        ends = (self.first, depth if self.last is None else self.last)
        first, last = (end + depth if end < 0 else end for end in ends)
        if not 0 <= first < last <= depth:
            raise RecipeError(f"got first={self.first} and last={ends[1]}; {model.name} has blocks 0 to {depth - 1}")
        return first, last
