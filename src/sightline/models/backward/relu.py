"""Change how gradients pass through rectifiers, without touching the model.

The rectifiers of a pass are intercepted where they are called (`torch.overrides.TorchFunctionMode`), for that thread
and only inside the ``with``: a module used several times, an in-place one and a plain function are all the same here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

RELU = {F.relu, torch.relu, Tensor.relu, torch.relu_, Tensor.relu_, torch.clamp_min, Tensor.clamp_min}
RELU6 = {F.relu6, F.hardtanh, F.hardtanh_, torch.clamp, Tensor.clamp, torch.clamp_, Tensor.clamp_}
IN_PLACE = {torch.relu_, Tensor.relu_, F.hardtanh_, torch.clamp_, Tensor.clamp_}


class Guided(TorchFunctionMode):
    """Let through a rectifier only what is positive on the way back, where its input was positive on the way up.

    Attributes:
        capped: whether a rectifier with a ceiling, such as ReLU6, guides as well.
        count: how many rectifiers ran, of either kind.
        guiding: read on the way back; set it to False and the same graph yields plain gradients.
    """

    def __init__(self, *, capped: bool = True) -> None:
        super().__init__()
        self.capped = capped
        self.count = 0
        self.guiding = True

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        ceiling = _ceiling(func, args, kwargs)
        self.count += ceiling is not None
        if ceiling is None or (ceiling != float("inf") and not self.capped):
            return func(*args, **kwargs)
        x, in_place = args[0] if args else kwargs["input"], writes(func, args, kwargs)
        rectified: Tensor = _Rectified.apply(x, ceiling, in_place, self)  # type: ignore[no-untyped-call]
        return rectified


def writes(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> bool:
    """Tell whether an activation overwrites its input."""
    asked = kwargs.get("inplace", args[-1] if len(args) > 1 else False)
    return func in IN_PLACE or (asked is True)


def _ceiling(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> float | None:
    """Return the largest value a rectifier lets through; None for whatever is no rectifier."""
    if func is F.relu6:
        return 6.0
    if func in RELU6:
        low, high = _bounds(args, kwargs)
        return (float("inf") if high is None else high) if low == 0 and not isinstance(high, Tensor) else None
    if func in (torch.clamp_min, Tensor.clamp_min):
        return float("inf") if _bounds(args, kwargs)[0] == 0 else None
    return float("inf") if func in RELU else None


def _bounds(args: tuple[Any, ...], kwargs: Any) -> tuple[Any, Any]:
    low = args[1] if len(args) > 1 else kwargs.get("min_val", kwargs.get("min"))
    high = args[2] if len(args) > 2 else kwargs.get("max_val", kwargs.get("max"))
    return (None if isinstance(low, Tensor) else low), high


class _Rectified(torch.autograd.Function):
    """Rectify; on the way back keep what is positive, and only where the input lay between zero and the ceiling."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ceiling: float, in_place: bool, mode: Guided) -> Tensor:
        ctx.mode = mode
        ctx.save_for_backward((x > 0) & (x < ceiling))
        if not in_place:
            return x.clamp(0, ceiling)
        ctx.mark_dirty(x)
        return x.clamp_(0, ceiling)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (passing,) = ctx.saved_tensors
        gradient = gradients[0].clamp(min=0) if ctx.mode.guiding else gradients[0]
        return gradient * passing, None, None, None
