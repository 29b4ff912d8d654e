"""What operators share: asking a method for its own map, or for every start layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor

from sightline.models.adapter import Adapter
from sightline.types import Attribution, Method, Passes, Target

Ask = Callable[[Adapter, Tensor, Target], Attribution]


def every_layer(method: Method) -> Ask:
    """Return how to ask a method for all start layers: its own `at_every_layer` where it has one, else itself."""
    ask: Ask = getattr(method, "at_every_layer", method)
    return ask


def layers_cost(method: Method, model: Adapter) -> Passes:
    """Return what all start layers of a method cost, where that differs from the method itself."""
    found: Passes = getattr(method, "layers_cost", method.cost)(model)
    return found


class Wrapper(ABC):
    """An operator that may ask its method several times and combines the answers layer by layer.

    A subclass is a frozen dataclass with a field `method`, and says in `combine` what it does with the way of asking
    it is handed. So the layers survive it: ``plus(rectify(ixg))`` sums rectified layers.
    """

    __slots__ = ()
    method: Method

    def __call__(self, model: Adapter, images: Tensor, target: Target) -> Attribution:
        return self.combine(self.method, model, images, target)

    def at_every_layer(self, model: Adapter, images: Tensor, target: Target) -> Attribution:
        return self.combine(every_layer(self.method), model, images, target)

    @abstractmethod
    def combine(self, ask: Ask, model: Adapter, images: Tensor, target: Target) -> Attribution: ...

    def cost(self, model: Adapter) -> Passes:
        return self.method.cost(model) * self.times

    def layers_cost(self, model: Adapter) -> Passes:
        return layers_cost(self.method, model) * self.times

    @property
    def times(self) -> int:
        """How often the method is asked."""
        return 1
