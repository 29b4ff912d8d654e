"""Base class of operators that call the wrapped method and combine its attributions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from sightline.methods.multi_target import MultiTarget, multi_target, multi_target_cost
from sightline.models.adapter import Adapter
from sightline.types import Attribution, Method, Passes, Target

MultiTargetCall = Callable[[Adapter, Tensor, Sequence[Target]], list[Attribution]]


class Wrapper(MultiTarget):
    """An operator that calls its method, perhaps several times, and combines the attributions layer by layer.

    A subclass is a frozen dataclass with a field `method`, and defines `combine`, which is given a function that calls
    the method for several targets. The layer axis is kept, so ``plus(rectify(ixg))`` sums rectified layers, and so is
    the shared forward pass: ``var(rectify(ixg))`` runs the model forward once.
    """

    __slots__ = ()
    method: Method

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        return self.combine(partial(multi_target, self.method, every_layer=every_layer), model, images, targets)

    @abstractmethod
    def combine(
        self, multi_target: MultiTargetCall, model: Adapter, images: Tensor, targets: Sequence[Target]
    ) -> list[Attribution]:
        """Return the operator's attribution for each target."""

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return multi_target_cost(self.method, model, count, every_layer=every_layer)
