"""Explain several targets in one forward pass.

Explaining K classes need not cost K times as much as one: gradient methods share the forward pass, patching and
sampling methods compute the logits of every class anyway. A method that can share passes derives from `MultiTarget` and
defines

``multi_target(model, images, targets, *, every_layer=False) -> list[Attribution]`` and
``multi_target_cost(model, count, *, every_layer=False) -> Passes``;

any other is called once per target, or once in all when it ignores the class. `every_layer` asks for all start layers
of a method that by itself returns one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from sightline.models.adapter import Adapter
from sightline.registry import HasOptions, is_registered, spec_of
from sightline.types import Attribution, Method, Passes, Target

Choose = Callable[[Tensor], Sequence[Target]]


@runtime_checkable
class SupportsChosenTargets(Protocol):
    """A method that runs the images before it needs its targets, so that choosing them by logits costs little."""

    def can_choose(self, model: Adapter) -> bool:
        """Tell whether that holds on this model."""
        ...

    def choosing_cost(self, model: Adapter) -> Passes:
        """Return what the logits cost beyond the method with given targets, per image."""
        ...

    def multi_target_chosen(self, model: Adapter, images: Tensor, choose: Choose) -> list[Attribution]:
        """Return the attribution for each target that `choose` gives for the logits, (batch, class)."""
        ...


@runtime_checkable
class SupportsMultiTarget(Protocol):
    """A method that explains several targets for less than one call each."""

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]: ...

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes: ...


class MultiTarget(HasOptions, ABC):
    """A method written for several targets at once; one target is a list of one."""

    __slots__ = ()

    @abstractmethod
    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        """Return the attribution for each target."""

    @abstractmethod
    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        """Return what `count` targets cost, per image."""

    def __call__(self, model: Adapter, images: Tensor, target: Target) -> Attribution:
        return self.multi_target(model, images, [target])[0]

    def cost(self, model: Adapter) -> Passes:
        return self.multi_target_cost(model, 1)


def multi_target(
    method: Method, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
) -> list[Attribution]:
    """Return a method's attribution for each target, in order."""
    if isinstance(method, SupportsMultiTarget):
        return method.multi_target(model, images, targets, every_layer=every_layer)
    if _ignores_the_class(method, model):
        return [method(model, images, targets[0])] * len(targets)
    return [method(model, images, target) for target in targets]


def multi_target_cost(method: Method, model: Adapter, count: int = 1, *, every_layer: bool = False) -> Passes:
    """Return what a method costs for `count` targets, per image."""
    if isinstance(method, SupportsMultiTarget):
        return method.multi_target_cost(model, count, every_layer=every_layer)
    return method.cost(model) * (1 if _ignores_the_class(method, model) else count)


def _ignores_the_class(method: Method, model: Adapter) -> bool:
    """Tell whether one map does for every target; the attention of a detector is read at the query of a box."""
    by_query = model.attention_layers is not None and model.attention_layers.reader == "query"
    return is_registered(method) and spec_of(method).agnostic and not by_query
