"""The difference between two classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from sightline.errors import TargetError
from sightline.methods.multi_target import multi_target_cost
from sightline.models.adapter import Adapter
from sightline.operators.wrapper import MultiTargetCall, Wrapper
from sightline.registry import OPERATORS
from sightline.types import Attribution, Indices, Logit, LogProbability, Method, Passes, Probability, Target


def with_class(target: Target, index: Indices) -> Target:
    """Return the same kind of target for another class, or one per image."""
    if isinstance(target, Logit | Probability | LogProbability):
        return replace(target, index=index)
    raise TargetError(
        f"a contrast needs a target of one class, and got {type(target).__name__}; give Logit, "
        "Probability or LogProbability"
    )


@OPERATORS.register("against", family="contrast", cost="the method's for two targets")
@dataclass(frozen=True, slots=True)
class Against(Wrapper):
    r"""A method's map for the target minus its map for another class: why this and not that.

    .. math:: M = A_c - A_{\text{other}}

    For methods that are linear in the target it is the method on the difference of the two logits; against itself a
    class gives zero.

    Attributes:
        other: index of the class to contrast with.
    """

    method: Method
    other: int

    def combine(
        self, multi_target: MultiTargetCall, model: Adapter, images: Tensor, targets: Sequence[Target]
    ) -> list[Attribution]:
        if self.other < 0 or (model.num_classes is not None and self.other >= model.num_classes):
            raise TargetError(f"got class {self.other} to contrast with; {model.name} has {model.num_classes} classes")
        found = multi_target(model, images, [*targets, *(with_class(target, self.other) for target in targets)])
        pairs = zip(found[: len(targets)], found[len(targets) :], strict=True)
        return [replace(mine, values=mine.values - other.values) for mine, other in pairs]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return multi_target_cost(self.method, model, 2 * count, every_layer=every_layer)
