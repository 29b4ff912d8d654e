"""Contrastive attribution: the difference between the maps of two classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from sightline.errors import TargetError
from sightline.methods.multi_target import multi_target_cost
from sightline.models.adapter import Adapter
from sightline.operators.wrapper import MultiTargetCall, Wrapper
from sightline.registry import OPERATORS
from sightline.targets.words import Word
from sightline.types import Attribution, Indices, Logit, LogProbability, Method, Passes, Probability, Target


def with_class(target: Target, index: Indices) -> Target:
    """Return the same kind of target for another class, or for one class per image."""
    return replace(_single_class(target), index=index)


def class_of(target: Target) -> Indices:
    """Return the class that a target reads, one for all images or one per image."""
    return _single_class(target).index


def check_class(model: Adapter, index: int) -> None:
    """Refuse a class that the model does not have."""
    if index < 0 or (model.num_classes is not None and index >= model.num_classes):
        raise TargetError(f"got class {index} to contrast with; {model.name} has {model.num_classes} classes")


def _single_class(target: Target) -> Logit | Probability | LogProbability:
    if isinstance(target, Logit | Probability | LogProbability):
        return target
    if isinstance(target, Word):
        raise TargetError(
            "a contrast needs a target of one class, and got Word; explain Word(word) and Word(word, token=…), the "
            "word and another in its place, and compare the two maps"
        )
    raise TargetError(
        f"a contrast needs a target of one class, and got {type(target).__name__}; give Logit, "
        "Probability or LogProbability"
    )


@OPERATORS.register("against", family="contrast", cost="the method's for two targets")
@dataclass(frozen=True, slots=True)
class Against(Wrapper):
    r"""Contrastive attribution: the attribution of the target minus the attribution of another class.

    .. math:: M = A_c - A_{\text{other}}

    Shows what speaks for one class rather than the other. For methods that are linear in the target it equals the
    method applied to the difference of the two logits; a class against itself gives zero.

    Attributes:
        other: index of the class to contrast with.
    """

    method: Method
    other: int

    def combine(
        self, multi_target: MultiTargetCall, model: Adapter, images: Tensor, targets: Sequence[Target]
    ) -> list[Attribution]:
        check_class(model, self.other)
        attributions = multi_target(model, images, [*targets, *(with_class(target, self.other) for target in targets)])
        pairs = zip(attributions[: len(targets)], attributions[len(targets) :], strict=True)
        return [replace(mine, values=mine.values - other.values) for mine, other in pairs]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return multi_target_cost(self.method, model, 2 * count, every_layer=every_layer)
