"""What operators share: asking a method for its own map, or for every start layer, about one target or several."""

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
    """An operator that may ask its method several times and combines the answers layer by layer.

    A subclass is a frozen dataclass with a field `method`. In `combine` it is handed the way of asking and the targets,
    and answers each of them. So layers survive it, ``plus(rectify(ixg))`` sums rectified layers, and so does sharing:
    ``var(rectify(ixg))`` runs the model forward once.
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
        """Answer each target with what the method says."""

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return multi_target_cost(self.method, model, count, every_layer=every_layer)
