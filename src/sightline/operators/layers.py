"""Sum a method over the layers it can be started at."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from sightline.errors import RecipeError, UnsupportedMethod
from sightline.models.adapter import Adapter
from sightline.models.vit import VisionTransformer
from sightline.operators.wrapper import every_layer, layers_cost
from sightline.registry import OPERATORS, spec_of
from sightline.types import Attribution, Method, Passes, Target


def sum_layers(method: Method, model: Adapter, images: Tensor, target: Target, first: int, last: int) -> Attribution:
    """Sum the start layers `first` up to, not including, `last`; a method started late has no earlier ones to give."""
    every = every_layer(method)(model, images, target)
    missing = depth_of(model, method) - len(every.values)
    kept = every.values[max(0, first - missing) : max(0, last - missing)]
    if len(every.values) == 1 and missing:
        raise UnsupportedMethod(
            f"{spec_of(method).name} gives one map and no start layers to sum on {model.name}; "
            "sum layers of ixg, gradient, grad_cam, gae, rollout or raw_attention instead"
        )
    if not len(kept):
        raise RecipeError(f"layers {first} to {last} leave nothing of the {len(every.values)} there are; widen them")
    return replace(every, values=kept.sum(dim=0, keepdim=True))


def depth_of(model: Adapter, method: Any) -> int:
    """Return how many blocks there are to start at."""
    if isinstance(model, VisionTransformer):
        return model.depth
    raise UnsupportedMethod(
        f"{model.name} has no blocks to start {spec_of(method).name} at; layers are summed on transformers only"
    )


@OPERATORS.register("plus", family="layers", cite="skipplus2024", cost="the method's")
@dataclass(frozen=True, slots=True)
class Plus:
    r"""The sum of a method over all start layers.

    .. math:: M = \sum_{\ell=0}^{L-1} A(f_\ell)(X_\ell)

    where :math:`f_\ell` is the part of the network from block :math:`\ell` on and :math:`X_\ell` what enters it.
    Methods that yield all start layers from one pass cost no more with it.
    """

    method: Method

    def __call__(self, model: Adapter, images: Tensor, target: Target) -> Attribution:
        return sum_layers(self.method, model, images, target, 0, depth_of(model, self.method))

    def cost(self, model: Adapter) -> Passes:
        return layers_cost(self.method, model)


@OPERATORS.register("skip_plus", family="layers", cite="skipplus2024", cost="the method's")
@dataclass(frozen=True, slots=True)
class SkipPlus:
    r"""The sum of a method over the later start layers.

    .. math:: M = \sum_{\ell=m}^{L-1} A(f_\ell)(X_\ell), \qquad m = \lceil L/2 \rceil

    Early layers are left out because their attributions are noisier.

    Attributes:
        start: the first layer of the sum, m.
    """

    method: Method
    start: int | None = None

    def __call__(self, model: Adapter, images: Tensor, target: Target) -> Attribution:
        depth = depth_of(model, self.method)
        first = -(-depth // 2) if self.start is None else self.start
        if not 0 <= first < depth:
            raise RecipeError(f"got start={first}; {model.name} has blocks 0 to {depth - 1}")
        return sum_layers(self.method, model, images, target, first, depth)

    def cost(self, model: Adapter) -> Passes:
        return layers_cost(self.method, model)


@OPERATORS.register("layers", family="layers", cost="the method's")
@dataclass(frozen=True, slots=True)
class Layers:
    r"""The sum of a method over a range of start layers.

    .. math:: M = \sum_{\ell=\text{first}}^{\text{last}-1} A(f_\ell)(X_\ell)

    ``layers(ixg, first=6, last=7)`` is the method started at block 6 alone.

    Attributes:
        first: the first layer.
        last: the layer before which to stop; by default all that follow.
    """

    method: Method
    first: int = 0
    last: int | None = None

    def __call__(self, model: Adapter, images: Tensor, target: Target) -> Attribution:
        depth = depth_of(model, self.method)
        last = depth if self.last is None else self.last
        if not 0 <= self.first < last <= depth:
            raise RecipeError(f"got first={self.first} and last={last}; {model.name} has blocks 0 to {depth - 1}")
        return sum_layers(self.method, model, images, target, self.first, last)

    def cost(self, model: Adapter) -> Passes:
        return layers_cost(self.method, model)
