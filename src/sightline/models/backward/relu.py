"""Guided backpropagation and deconvnet: change how gradients pass through ReLUs, without touching the model.

The ReLUs of a forward pass are intercepted where they are called (`torch.overrides.TorchFunctionMode`), for that thread
and only inside the ``with``: a module used several times, an in-place one and a plain function are all the same here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

# What autograd itself keeps of these calls, and what a network may therefore not overwrite: the output of the first,
# the input of the second unless they write into it, and nothing of the clamps, of which a copy is kept.
RELU = {F.relu, torch.relu, Tensor.relu, torch.relu_, Tensor.relu_}
CAPPED = {F.relu6, F.hardtanh, F.hardtanh_}
FROM_BELOW = {torch.clamp_min, Tensor.clamp_min}
CLAMPS = FROM_BELOW | {torch.clamp, Tensor.clamp, torch.clamp_, Tensor.clamp_}
KNOWN = RELU | CAPPED | CLAMPS
IN_PLACE = {torch.relu_, Tensor.relu_, F.hardtanh_, torch.clamp_, Tensor.clamp_}


class Guided(TorchFunctionMode):
    """The guided backward of every ReLU: positive gradients alone pass, and only where the input was positive.

    Attributes:
        capped: whether a ReLU with a maximum, such as ReLU6, is guided as well.
        gated: whether gradients pass only where the input was positive; a deconvnet passes them everywhere.
        count: how many ReLUs ran, of either kind.
        guiding: read during the backward pass; set it to False and the same graph yields plain gradients, if it is
            gated.
    """

    def __init__(self, *, capped: bool = True, gated: bool = True) -> None:
        super().__init__()
        self.capped, self.gated = capped, gated
        self.count = 0
        self.guiding = True

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func not in KNOWN:
            return func(*args, **(kwargs or {}))
        kwargs = kwargs or {}
        maximum = _maximum(func, args, kwargs)
        self.count += maximum is not None
        if maximum is None or (maximum != float("inf") and not self.capped):
            return func(*args, **kwargs)
        x, in_place = args[0] if args else kwargs["input"], writes(func, args, kwargs)
        activation: Tensor = _GuidedReLU.apply(x, maximum, in_place, func, self)  # type: ignore[no-untyped-call]
        return activation


def writes(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> bool:
    """Tell whether an activation overwrites its input."""
    asked = kwargs.get("inplace", args[-1] if len(args) > 1 else False)
    return func in IN_PLACE or (asked is True)


def _maximum(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> float | None:
    """Return the largest value a ReLU lets through, infinity for a plain one; None for another clamp."""
    if func is F.relu6:
        return 6.0
    if func in RELU:
        return float("inf")
    if func in FROM_BELOW:
        return float("inf") if _bounds(args, kwargs)[0] == 0 else None
    low, high = _bounds(args, kwargs)
    return (float("inf") if high is None else high) if low == 0 and not isinstance(high, Tensor) else None


def _bounds(args: tuple[Any, ...], kwargs: Any) -> tuple[Any, Any]:
    low = args[1] if len(args) > 1 else kwargs.get("min_val", kwargs.get("min"))
    high = args[2] if len(args) > 2 else kwargs.get("max_val", kwargs.get("max"))
    return (None if isinstance(low, Tensor) else low), high


class _GuidedReLU(torch.autograd.Function):
    """A ReLU whose backward keeps positive gradients, and only where the input lay between zero and the maximum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, maximum: float, in_place: bool, func: Any, mode: Guided) -> Tensor:
        ctx.mode, ctx.maximum = mode, maximum
        if in_place:
            ctx.mark_dirty(x)
        value = x.clamp_(0, maximum) if in_place else x.clamp(0, maximum)
        if mode.gated:  # the value lies strictly inside the bounds where the input does
            ctx.save_for_backward(x if func in CAPPED and not in_place else value.clone() if func in CLAMPS else value)
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = gradients
        if not ctx.mode.gated:
            return gradient.clamp(min=0) if ctx.mode.guiding else gradient, None, None, None, None
        (value,) = ctx.saved_tensors
        passed: Tensor = torch.ops.aten.hardtanh_backward(gradient, value, 0, ctx.maximum)
        if ctx.mode.guiding:
            passed = passed.clamp(min=0) if torch.is_grad_enabled() else passed.clamp_(min=0)  # it is nobody else's
        return passed, None, None, None, None
