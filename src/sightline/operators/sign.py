"""The positive part and the absolute value of an attribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from sightline.models.adapter import Adapter
from sightline.operators.wrapper import MultiTargetCall, Wrapper
from sightline.registry import OPERATORS
from sightline.types import Attribution, Method, Target


@OPERATORS.register("rectify", family="sign", cost="the method's")
@dataclass(frozen=True, slots=True)
class Rectify(Wrapper):
    r"""The positive part of an attribution (ReLU): the evidence for the target.

    .. math:: M = A^+ = \max(A, 0)
    """

    method: Method

    def combine(
        self, multi_target: MultiTargetCall, model: Adapter, images: Tensor, targets: Sequence[Target]
    ) -> list[Attribution]:
        return [replace(inner, values=inner.values.clamp(min=0)) for inner in multi_target(model, images, targets)]


@OPERATORS.register("absolute", family="sign", cost="the method's")
@dataclass(frozen=True, slots=True)
class Absolute(Wrapper):
    r"""The absolute value of an attribution: importance for the target, whatever its sign.

    .. math:: M = \lvert A \rvert
    """

    method: Method

    def combine(
        self, multi_target: MultiTargetCall, model: Adapter, images: Tensor, targets: Sequence[Target]
    ) -> list[Attribution]:
        return [replace(inner, values=inner.values.abs()) for inner in multi_target(model, images, targets)]
