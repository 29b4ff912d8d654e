"""DeepLIFT's rules: how a call propagates multipliers, so that contributions add up to the call's own difference.

Every rule is given a call twice, on the image and on the baseline. The value is the call's own; the backward is that of
the line between both. Rules of compound calls (a softmax, a norm, an attention) are made of those of their parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sightline.models.backward.custom import custom_backward, named, run, split_input, tensors, unchanged

CHANNELS_LAST = (0, 2, 3, 1)  # axes of images in the order in which they lie in memory
SMALL = 1e-10  # differences below this share of the values, or of one, are too small to divide by


class Paired(NamedTuple):
    """A value on the image, with its graph, and on the baseline, without one."""

    image: Tensor
    baseline: Tensor

    def apply(self, function: Callable[[Tensor], Tensor]) -> Paired:
        """Apply a linear function to both."""
        return Paired(function(self.image), function(self.baseline))

    def middle(self) -> Tensor:
        """Return the point half-way, as a constant."""
        return (self.image.detach() + self.baseline) / 2


Options = dict[str, Any]
Call = tuple[tuple[Any, ...], Options]
Rule = Callable[[Callable[..., Any], Call, Call], Any]


def with_backward_of(value: Tensor, surrogate: Tensor) -> Tensor:
    """Return a value whose backward is that of another tensor."""
    return custom_backward(lambda: value, unchanged, surrogate.to(value.dtype))


def elementwise(
    x: Paired, function: Callable[[Tensor], Tensor], *, alike: bool = True, in_place: bool = False
) -> Paired:
    r"""Apply an elementwise function; its multiplier is the slope :math:`(f(x) - f(x')) / (x - x')`.

    The function must not write into what it is given. `alike` says that it does the same to every value, wherever that
    stands. With `in_place` the value is written into the image's, as the call itself does.
    """
    inside = x.image.detach()
    value, low = function(inside), function(x.baseline)
    slope = _slope(Paired(inside, x.baseline), Paired(value, low), function, alike=alike)
    return Paired(multiplied(value, x.image, slope, in_place=in_place), low)


def square(x: Paired) -> Paired:
    r"""Square; the slope is :math:`x + x'`, in which nothing cancels."""
    inside = x.image.detach()
    return Paired(multiplied(inside.square(), x.image, inside + x.baseline), x.baseline.square())


def reciprocal(x: Paired) -> Paired:
    r"""Divide one by the values; the slope is :math:`-1 / (x x')`."""
    value, low = x.image.detach().reciprocal(), x.baseline.reciprocal()
    return Paired(multiplied(value, x.image, -value * low), low)


def multiplied(value: Tensor | None, x: Tensor, multiplier: Tensor, *, in_place: bool = False) -> Tensor:
    """Return a value whose backward multiplies by a given multiplier; None where it was written in place already."""
    multiply = lambda gradient, saved: (gradient * saved,)  # noqa: E731
    return custom_backward(lambda: value, multiply, x, saved=(multiplier,), in_place=in_place)


def _slope(x: Paired, y: Paired, function: Callable[[Tensor], Tensor], *, alike: bool) -> Tensor:
    difference = x.image - x.baseline
    slope = (y.image - y.baseline).div_(difference)
    size, least = difference.abs_(), _least(difference.dtype)
    if size.amin() > least:  # whatever the values are; only where it is not, they matter
        return slope
    few, order = (size > least).logical_not_(), order_in_memory(slope)  # NaN as well
    places = few.permute(order).flatten().nonzero()[:, 0]
    corrected = (
        slope.permute(order).flatten().index_copy_(0, places, _small_slope(x, y, places, order, function, alike=alike))
    )
    return corrected.view([slope.shape[axis] for axis in order]).permute(_inverse(order))


def order_in_memory(values: Tensor) -> tuple[int, ...]:
    """Return the axes in the order in which they lie in memory, so that a flat tensor of them is no copy."""
    if values.ndim == 4 and not values.is_contiguous() and values.is_contiguous(memory_format=torch.channels_last):
        return CHANNELS_LAST
    return tuple(range(values.ndim))


def _inverse(order: tuple[int, ...]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def _small_slope(
    x: Paired,
    y: Paired,
    places: Tensor,
    order: tuple[int, ...],
    function: Callable[[Tensor], Tensor],
    *,
    alike: bool,
) -> Tensor:
    """Return the slope at some places whose difference is small: the derivative where it is too small to divide by.

    Places are counted along the axes in this order.
    """
    inside, outside = (each.apply(lambda t: t.permute(order).flatten()[places]) for each in (x, y))
    difference = _difference(inside)
    local = _derivative(function, inside.image if alike else x.image)
    local = local if alike else local.permute(order).flatten()[places]
    local = local.nan_to_num_(0, 0, 0)  # an infinite slope, as a root has at zero, would be multiplied by zero
    if not difference.any():  # as where channels are dead
        return local
    small = _is_small(difference, *inside, *outside)
    slope = (outside.image - outside.baseline) / torch.where(small, 1.0, difference)
    return torch.where(small, local, slope)


def _derivative(function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    with torch.enable_grad():
        leaf = values.clone().requires_grad_()
        (local,) = torch.autograd.grad(function(leaf).sum(), leaf)
    return local


def _difference(x: Paired) -> Tensor:
    """Return the difference; two infinite values, as masked scores are, are equal."""
    return torch.where(x.image == x.baseline, 0.0, x.image - x.baseline)


def _is_small(difference: Tensor, *values: Tensor) -> Tensor:
    """Tell where a difference is too small, against the values it is a difference of or against one, to divide by."""
    size = reduce(torch.maximum, (value.abs() for value in values)).clamp_(max=1)
    return difference.abs() <= size.mul_(_least(difference.dtype))


def _least(dtype: torch.dtype) -> float:
    """Return the largest difference that can be too small: that of values of one and more."""
    return max(SMALL, torch.finfo(dtype).eps)


def bilinear(function: Callable[[Tensor, Tensor], Tensor], a: Paired, b: Paired) -> Paired:
    r"""Apply a bilinear function, a product; each factor's multiplier is the other's middle, its Shapley value.

    .. math:: ab - a'b' = (a - a')\,\frac{b + b'}2 + (b - b')\,\frac{a + a'}2
    """
    surrogate = function(a.image, b.middle()) + function(a.middle(), b.image)
    value = function(a.image.detach(), b.image.detach())
    return Paired(with_backward_of(value, surrogate), function(a.baseline, b.baseline))


def normalised(a: Paired, b: Paired) -> Paired:
    r"""Multiply values by the inverse of their size, as a norm does; each difference meets the smaller of its factors.

    .. math:: ab - a'b' = (a - a')\,b + a'\,(b - b') \quad\text{where } |b| \le |b'|

    and the same with both inputs exchanged elsewhere. Where one input is nearly constant, its :math:`b'` is huge, and
    with the middles of `bilinear` two huge contributions would cancel, in every norm of the network again.
    """
    inside = b.image.detach()
    is_smaller = inside.abs() <= b.baseline.abs()
    factor = torch.where(is_smaller, inside, b.baseline)
    surrogate = a.image * factor + torch.where(is_smaller, a.baseline, a.image.detach()) * b.image
    return Paired(with_backward_of(a.image.detach() * inside, surrogate), a.baseline * b.baseline)


def log_sum_exp(x: Paired, dim: int) -> Paired:
    """Sum exponentials and take the logarithm: the slopes of both functions, on a scale where neither overflows."""
    inside = x.image.detach()
    top = torch.maximum(inside, x.baseline).amax(dim, keepdim=True)
    exponentials = Paired(inside - top, x.baseline - top).apply(torch.exp)
    difference = _difference(Paired(inside, x.baseline))
    small = _is_small(difference, *exponentials)
    weight = (exponentials.image - exponentials.baseline) / torch.where(small, 1.0, difference)
    weight = torch.where(small, exponentials.image, weight)
    sums = exponentials.apply(lambda e: e.sum(dim, keepdim=True))
    value, low = inside.logsumexp(dim, keepdim=True), x.baseline.logsumexp(dim, keepdim=True)
    rise = sums.image - sums.baseline
    level = _is_small(rise, *sums)
    weight = weight * torch.where(level, 1 / sums.image, (value - low) / torch.where(level, 1.0, rise))
    return Paired(multiplied(value, x.image, weight), low)


def softmax(x: Paired, dim: int) -> Paired:
    """Exponentiate the logarithms of the probabilities."""
    return elementwise(log_softmax(x, dim), torch.exp)


def log_softmax(x: Paired, dim: int) -> Paired:
    """Subtract the logarithm of the sum of exponentials."""
    total = log_sum_exp(x, dim)
    return Paired(x.image - total.image, x.baseline - total.baseline)


# ---- calls -----------------------------------------------------------------------------------------------------------


def elementwise_call(func: Callable[..., Any], call: Call, baseline: Call, *, in_place: bool = False) -> Tensor:
    """Any elementwise call."""
    x, rest, options = split_input(*call)
    low, _, _ = split_input(*baseline)
    alike = not any(True for _ in tensors((rest, options)))  # a PReLU has a slope for each channel
    return elementwise(Paired(x, low), not_in_place(func, rest, options), alike=alike, in_place=in_place).image


def not_in_place(func: Callable[..., Any], rest: tuple[Any, ...], options: Options) -> Callable[[Tensor], Tensor]:
    """Return the function of its input alone that a call computes, without writing into it."""
    if rest and rest[-1] is True:  # the last argument of activations says whether they do
        rest = (*rest[:-1], False)
    if options.get("inplace"):
        options = options | {"inplace": False}
    name = func.__name__
    if name.endswith("_") and not name.endswith("__"):
        return lambda t: func(t.clone(), *rest, **options)
    return lambda t: func(t, *rest, **options)


def product(func: Callable[..., Any], call: Call, baseline: Call) -> Tensor:
    """A product of two tensors, elementwise or of matrices."""
    (a, b), (c, d) = (args if len(args) == 2 else (args[0], options["other"]) for args, options in (call, baseline))
    surrogate = func(a.clone(), _half(b, d)) + func(_half(a, c), b)  # an in-place call writes into what it is given
    return with_backward_of(run(func, *call), surrogate)


def _half(x: Tensor, baseline: Tensor) -> Tensor:
    return Paired(x, baseline).middle()


def quotient(func: Callable[..., Any], call: Call, baseline: Call) -> Tensor:
    """A quotient: values times a reciprocal, as in a norm."""
    (a, b), (c, d) = (args if len(args) == 2 else (args[0], options["other"]) for args, options in (call, baseline))
    above = Paired(*(x if isinstance(x, Tensor) else torch.as_tensor(x).to(b) for x in (a, c)))
    return with_backward_of(run(func, *call), normalised(above, reciprocal(Paired(b, d))).image)


def einsum(func: Callable[..., Any], call: Call, baseline: Call) -> Tensor:
    """A product of two tensors, spelled out."""
    equation = call[0][0]
    (a, b), (c, d) = (args[1] if len(args) == 2 else args[1:] for args, _ in (call, baseline))
    return bilinear(lambda x, y: func(equation, x, y), Paired(a, c), Paired(b, d)).image


def soft(kind: Callable[[Paired, int], Paired]) -> Rule:
    """A softmax, its logarithm, or the logarithm of the sum."""

    def rule(func: Callable[..., Any], call: Call, baseline: Call) -> Tensor:
        x, rest, options = split_input(*call)
        low, _, _ = split_input(*baseline)
        value = run(func, *call)
        surrogate = kind(Paired(x, low), rest[0] if rest else options["dim"]).image
        return with_backward_of(value, surrogate.reshape(value.shape))

    return rule


def attention(func: Callable[..., Any], call: Call, baseline: Call) -> Tensor:
    """Scaled dot-product attention: two products and a softmax between them."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    given, low = named(names, *call), named(names, *baseline)
    q, k, v = (Paired(given[name], low[name]) for name in names[:3])
    if given.get("enable_gqa"):
        times = q.image.shape[-3] // k.image.shape[-3]
        k, v = (x.apply(lambda t: t.repeat_interleave(times, dim=-3)) for x in (k, v))
    scale = given.get("scale") or 1 / math.sqrt(q.image.shape[-1])
    scores = bilinear(torch.matmul, q.apply(lambda t: t * scale), k.apply(lambda t: t.mT))
    mask = given.get("attn_mask")
    if given.get("is_causal"):
        mask = torch.ones(scores.image.shape[-2:], dtype=torch.bool, device=scores.image.device).tril()
    if mask is not None:
        boolean = mask.dtype == torch.bool
        scores = scores.apply(lambda t: t.masked_fill(~mask, -math.inf) if boolean else t + mask)
    return with_backward_of(run(func, *call), bilinear(torch.matmul, softmax(scores, -1), v).image)


def gated(func: Callable[..., Any], call: Call, baseline: Call) -> Tensor:
    """A gated linear unit: one half of the channels times the sigmoid of the other."""
    x, rest, options = split_input(*call)
    low, _, _ = split_input(*baseline)
    dim = rest[0] if rest else options.get("dim", -1)
    (a, c), (b, d) = zip(x.chunk(2, dim), low.chunk(2, dim), strict=True)
    return bilinear(torch.mul, Paired(a, c), elementwise(Paired(b, d), torch.sigmoid)).image
