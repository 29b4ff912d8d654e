"""DeepLIFT's rules for maxima: what a maximum gains goes to the largest value on the image, what it loses to the other.

The larger of both maxima, :math:`m = \\max(o, o')`, stands between them. What lies above the baseline,
:math:`m - o'`, is due to the value that is largest on the image; what is missing, :math:`o - m`, to the one that was
largest on the baseline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.models.backward.custom import custom_backward, split_input
from sightline.models.backward.deeplift_rules import Call, Options

PLACED = {
    **{getattr(F, f"{kind}max_pool{n}d"): (getattr(F, f"{kind}max_pool{n}d_with_indices"), n)
       for kind in ("", "adaptive_") for n in (1, 2, 3)},
    **{getattr(torch, f"max_pool{n}d"): (getattr(F, f"max_pool{n}d_with_indices"), n) for n in (1, 2, 3)},
}  # fmt: skip
_POOLS = [f"{kind}max_pool{n}d" for kind in ("", "adaptive_") for n in (1, 2, 3)]
MAXIMA = {*_POOLS, *(f"{name}_with_indices" for name in _POOLS), "amax", "max"}


class Pooled(NamedTuple):
    """What a max pool takes: the largest values, and where each stands in its plane."""

    values: Tensor
    places: Tensor


def returns_values(func: Callable[..., Any], call: Call) -> bool:
    """Tell whether a call is a max pool over windows that returns values alone."""
    args, options = call
    return func in PLACED and not options.get("return_indices") and not (len(args) > 2 and args[-1] is True)


def with_places(func: Callable[..., Any], call: Call) -> Pooled:
    """Run a max pool, and tell where the values stand that it takes."""
    return Pooled(*PLACED[func][0](*call[0], **call[1]))


def max_pool(func: Callable[..., Any], call: Call, baseline: Call, low: Pooled) -> Tensor:
    """A max pool over windows, given what it took on the baseline; a multiplier for each value that it takes."""
    x, rest, options = split_input(*call)
    before, _, _ = split_input(*baseline)
    axes = PLACED[func][1]
    high = with_places(func, ((x.detach(), *rest), options))
    most = torch.maximum(high.values, low.values)
    gained = _share(most - low.values, high.values - _taken(before, high.places, axes), where_zero=1.0)
    lost = _share(high.values - most, _taken(x.detach(), low.places, axes) - low.values, where_zero=0.0)
    shape = x.shape

    def backward(gradient: Tensor, gained: Tensor, lost: Tensor, high: Tensor, low: Tensor) -> tuple[Tensor]:
        flat = torch.zeros(shape, dtype=gradient.dtype, device=gradient.device).flatten(-axes)
        for multiplier, places in ((gained, high), (lost, low)):
            flat.scatter_add_(-1, places.flatten(-axes), (gradient * multiplier).flatten(-axes))
        return (flat.view(shape),)

    return custom_backward(lambda: high.values, backward, x, saved=(gained, lost, high.places, low.places))


def _taken(values: Tensor, places: Tensor, axes: int) -> Tensor:
    """Return the values at these places."""
    return values.flatten(-axes).gather(-1, places.flatten(-axes)).view(places.shape)


def _share(part: Tensor, difference: Tensor, *, where_zero: float) -> Tensor:
    """Divide what a maximum gains or loses by the difference of the value that it comes from."""
    same = difference == 0
    return torch.where(same, where_zero, part / torch.where(same, 1.0, difference))


def maximum(func: Callable[..., Any], call: Call, baseline: Call) -> Any:
    """Any other maximum: along axes, or a pool that returns places too."""
    x, rest, options = split_input(*call)
    low, _, _ = split_input(*baseline)
    output, output_low = (func(t.detach(), *rest, **options) for t in (x, low))
    value, value_low = (_values(out) for out in (output, output_low))
    most = torch.maximum(value, value_low)

    def backward(gradient: Tensor, x: Tensor, low: Tensor, above: Tensor, missing: Tensor) -> tuple[Tensor]:
        difference = x - low
        given = _propagated(func, rest, options, x, gradient * above)
        given = given + _propagated(func, rest, options, low, gradient * missing)
        same = difference == 0
        local = _propagated(func, rest, options, x, gradient)
        return (torch.where(same, local, given / torch.where(same, 1.0, difference)),)

    taken = custom_backward(lambda: value, backward, x, saved=(x.detach(), low, most - value_low, value - most))
    return taken if output is value else type(output)((taken, *output[1:]))


def _values(output: Any) -> Tensor:
    values: Tensor = output if isinstance(output, Tensor) else output[0]
    return values


def _propagated(
    func: Callable[..., Any], rest: tuple[Any, ...], options: Options, x: Tensor, gradient: Tensor
) -> Tensor:
    with torch.enable_grad():
        leaf = x.detach().clone().requires_grad_()
        (propagated,) = torch.autograd.grad(_values(func(leaf, *rest, **options)), leaf, gradient)
    return propagated
