"""DeepLIFT's rule for activations that clamp, as ReLU and ReLU6 do: the slope in few passes over memory.

Values are clamped without rounding, so that no difference is too small to divide by, except zero: 0 / 0 is no number,
and the derivative stands there. No mask is boolean: on a processor those cost several times as much as numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sightline.models.backward.custom import named, split_input
from sightline.models.backward.deeplift_rules import Call, Options, Paired, multiplied, not_in_place, order_in_memory

BOUNDS = {"relu": (0.0, math.inf), "relu6": (0.0, 6.0), "hardtanh": (-1.0, 1.0)}  # of activations that clamp
AT_ONCE = 2**18  # values whose slopes are computed at once on a processor, few enough to stay in its cache
OWN_USES = 3  # of a tensor's memory: the tensor, its detached self and what counts them
TINY = {torch.float16: 2**-24}  # the least number that is not zero; others' least normal number is small enough


def clamp_call(func: Callable[..., Any], call: Call, baseline: Call, *, in_place: bool = False) -> Tensor:
    """A ReLU, or another activation that clamps."""
    x, rest, options = split_input(*call)
    low, _, _ = split_input(*baseline)
    return clamp(Paired(x, low), not_in_place(func, rest, options), _bounds(func, rest, options), in_place=in_place)


def clamp_recorded(func: Callable[..., Any], call: Call) -> tuple[Call, Tensor]:
    """Clamp values in place, as a call does; return the call with the values that there were, and the clamped ones.

    Those go into memory of their own, which the tensor then has instead, unless another tensor lies in the same memory.
    """
    x, rest, options = split_input(*call)
    bounds = _bounds(func, rest, options)
    kept = x.detach()
    if _is_shared(x):
        kept = kept.clone()
        x.detach().clamp_(*bounds)
    else:
        x.data = kept.clamp(*bounds)
    return ((kept, *rest), options), x


def _is_shared(x: Tensor) -> bool:
    """Tell whether another tensor, such as a view, may lie in the same memory."""
    count = getattr(torch._C, "_storage_Use_Count", None)
    return count is None or x._is_view() or count(x.untyped_storage()._cdata) > OWN_USES


def _bounds(func: Callable[..., Any], rest: tuple[Any, ...], options: Options) -> tuple[float, float]:
    name = func.__name__.strip("_")
    given = named(("min_val", "max_val", "inplace"), rest, options) if name == "hardtanh" else {}
    return given.get("min_val", BOUNDS[name][0]), given.get("max_val", BOUNDS[name][1])


def clamp(
    x: Paired, function: Callable[[Tensor], Tensor], bounds: tuple[float, float], *, in_place: bool = False
) -> Tensor:
    """Clamp values; the backward is the slope of any elementwise function. The baseline's tensor is overwritten."""
    inside, slope = x.image.detach(), x.baseline
    value = inside if in_place else function(inside)
    parts = _parts(inside, slope, value)
    spare = [torch.empty_like(parts[0][0]) for _ in range(2)]
    for inside_part, slope_part, value_part in parts:
        rise, local = (tensor[: len(inside_part)] for tensor in spare)
        torch.clamp(slope_part, *bounds, out=rise)
        difference = slope_part.sub_(inside_part)
        if in_place:
            inside_part.clamp_(*bounds)
        _divide(rise.sub_(value_part), difference, value_part, bounds, local)
    return multiplied(None if in_place else value, x.image, slope, in_place=in_place)


def _parts(*alike: Tensor) -> list[tuple[Tensor, ...]]:
    """Split tensors as they lie in memory on a processor; take them whole elsewhere, or where they lie differently."""
    first, order = alike[0], order_in_memory(alike[0])
    split = first.device.type == "cpu" and first.numel() > AT_ONCE and first.permute(order).is_contiguous()
    if not split or any(other.stride() != first.stride() for other in alike):
        return [alike]
    return [*zip(*(tensor.permute(order).flatten().split(AT_ONCE) for tensor in alike), strict=True)]


def _divide(rise: Tensor, difference: Tensor, value: Tensor, bounds: tuple[float, float], local: Tensor) -> None:
    """Write the slope over the difference: the rise divided by it, or where both are zero the derivative.

    A number that is lost in any other sum is added to both, to the rise where the derivative is one.
    """
    tiny = torch.full((), TINY.get(rise.dtype, torch.finfo(rise.dtype).tiny), dtype=rise.dtype, device=rise.device)
    torch.ops.aten.hardtanh_backward.grad_input(tiny.expand_as(value), value, *bounds, grad_input=local)
    torch.div(rise.add_(local), difference.add_(tiny), out=difference).nan_to_num_(0.0)
