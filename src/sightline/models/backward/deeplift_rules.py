"""What DeepLIFT hands back through a call: contributions that add up to the call's own difference.

Every rule sees a call twice, on the image and on the reference. The value is the call's own; the way back is that of a
line between both. Rules of compound calls (a softmax, a norm, an attention) are made of those of their parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sightline.models.backward.custom import named, pass_on, ruled, run, split

NEAR = 1e-10  # differences below this share of the values, or of one, are too small to divide by


class Both(NamedTuple):
    """A value on the image, with its graph, and on the reference, without one."""

    image: Tensor
    reference: Tensor

    def each(self, function: Callable[[Tensor], Tensor]) -> Both:
        """Apply a linear function to both."""
        return Both(function(self.image), function(self.reference))

    def middle(self) -> Tensor:
        """Return the point half-way, as a constant."""
        return (self.image.detach() + self.reference) / 2


Options = dict[str, Any]
Call = tuple[tuple[Any, ...], Options]
Rule = Callable[[Callable[..., Any], Call, Call], Any]


def swapped(value: Tensor, way: Tensor) -> Tensor:
    """Return a value whose way back is another tensor's."""
    return ruled(lambda: value, pass_on, way.to(value.dtype))


def through(x: Both, function: Callable[[Tensor], Tensor]) -> Both:
    r"""Apply an elementwise function; its multiplier is the slope :math:`(f(x) - f(x')) / (x - x')`."""
    inside = x.image.detach()
    value, low = function(inside.clone()), function(x.reference.clone())
    slope = _slope(Both(inside, x.reference), Both(value, low), function)
    return Both(ruled(lambda: value, lambda came, kept: (came * kept,), x.image, keep=(slope,)), low)


def _slope(x: Both, y: Both, function: Callable[[Tensor], Tensor]) -> Tensor:
    apart = _apart(x)
    near = _near(apart, *x, *y)
    slope = (y.image - y.reference) / torch.where(near, 1.0, apart)
    if not near.any():
        return slope
    with torch.enable_grad():
        leaf = x.image.clone().requires_grad_()
        (local,) = torch.autograd.grad(function(leaf.clone()).sum(), leaf)
    # an infinite slope, as a root has at zero, would meet a difference of zero
    return torch.where(near, local.nan_to_num(0, 0, 0), slope)


def _apart(x: Both) -> Tensor:
    """Return the difference; two infinite values, as masked scores are, are equal."""
    return torch.where(x.image == x.reference, 0.0, x.image - x.reference)


def _near(apart: Tensor, *values: Tensor) -> Tensor:
    """Tell where a difference is nothing against the values that it is a difference of, or against one."""
    size = torch.stack([value.abs() for value in values]).amax(dim=0).clamp(max=1)
    return apart.abs() <= max(NEAR, torch.finfo(apart.dtype).eps) * size


def together(function: Callable[[Tensor, Tensor], Tensor], a: Both, b: Both) -> Both:
    r"""Apply a bilinear function, a product; each factor's multiplier is the other's middle, its Shapley value.

    .. math:: ab - a'b' = (a - a')\,\frac{b + b'}2 + (b - b')\,\frac{a + a'}2
    """
    way = function(a.image, b.middle()) + function(a.middle(), b.image)
    value = function(a.image.detach(), b.image.detach())
    return Both(swapped(value, way), function(a.reference, b.reference))


def log_sum_exp(x: Both, dim: int) -> Both:
    """Sum exponentials and take the logarithm: the slopes of both, on a scale on which neither overflows."""
    inside = x.image.detach()
    top = torch.maximum(inside, x.reference).amax(dim, keepdim=True)
    exponentials = Both(inside - top, x.reference - top).each(torch.exp)
    apart = _apart(Both(inside, x.reference))
    near = _near(apart, *exponentials)
    weight = (exponentials.image - exponentials.reference) / torch.where(near, 1.0, apart)
    weight = torch.where(near, exponentials.image, weight)
    sums = exponentials.each(lambda e: e.sum(dim, keepdim=True))
    value, low = inside.logsumexp(dim, keepdim=True), x.reference.logsumexp(dim, keepdim=True)
    rise = sums.image - sums.reference
    level = _near(rise, *sums)
    weight = weight * torch.where(level, 1 / sums.image, (value - low) / torch.where(level, 1.0, rise))
    return Both(ruled(lambda: value, lambda came, kept: (came * kept,), x.image, keep=(weight,)), low)


def softmax(x: Both, dim: int) -> Both:
    """Exponentiate the logarithms of the probabilities."""
    return through(log_softmax(x, dim), torch.exp)


def log_softmax(x: Both, dim: int) -> Both:
    """Subtract the logarithm of the sum of exponentials."""
    total = log_sum_exp(x, dim)
    return Both(x.image - total.image, x.reference - total.reference)


# ---- calls -----------------------------------------------------------------------------------------------------------


def curve(func: Callable[..., Any], call: Call, reference: Call) -> Tensor:
    """Any elementwise call."""
    x, rest, options = split(*call)
    low, _, _ = split(*reference)
    return through(Both(x, low), lambda t: func(t, *rest, **options)).image


def product(func: Callable[..., Any], call: Call, reference: Call) -> Tensor:
    """A product of two tensors, elementwise or of matrices."""
    (a, b), (c, d) = (args if len(args) == 2 else (args[0], options["other"]) for args, options in (call, reference))
    way = func(a.clone(), _half(b, d)) + func(_half(a, c), b)  # an in-place call writes into what it is given
    return swapped(run(func, *call), way)


def _half(x: Tensor, reference: Tensor) -> Tensor:
    return Both(x, reference).middle()


def quotient(func: Callable[..., Any], call: Call, reference: Call) -> Tensor:
    """A quotient: a product with the reciprocal."""
    (a, b), (c, d) = (args if len(args) == 2 else (args[0], options["other"]) for args, options in (call, reference))
    below = through(Both(b, d), torch.reciprocal)
    above = Both(*(x if isinstance(x, Tensor) else torch.as_tensor(x).to(b) for x in (a, c)))
    return swapped(run(func, *call), together(torch.mul, above, below).image)


def einsum(func: Callable[..., Any], call: Call, reference: Call) -> Tensor:
    """A product of two tensors, spelled out."""
    equation = call[0][0]
    (a, b), (c, d) = (args[1] if len(args) == 2 else args[1:] for args, _ in (call, reference))
    return together(lambda x, y: func(equation, x, y), Both(a, c), Both(b, d)).image


def pool(func: Callable[..., Any], call: Call, reference: Call) -> Any:
    r"""A maximum over some of the values: the larger of both maxima, :math:`m = \max(o, o')`, stands between them.

    What lies above the reference, :math:`m - o'`, is due to the value that is largest on the image; what is missing,
    :math:`o - m`, to the one that was largest on the reference.
    """
    x, rest, options = split(*call)
    low, _, _ = split(*reference)
    output, output_low = (func(t.detach(), *rest, **options) for t in (x, low))
    value, value_low = (_values(out) for out in (output, output_low))
    most = torch.maximum(value, value_low)

    def back(came: Tensor, x: Tensor, low: Tensor, above: Tensor, missing: Tensor) -> tuple[Tensor]:
        apart = x - low
        maximum = lambda t: _values(func(t, *rest, **options))  # noqa: E731
        given = _back(maximum, x, came * above) + _back(maximum, low, came * missing)
        same = apart == 0
        return (torch.where(same, _back(maximum, x, came), given / torch.where(same, 1.0, apart)),)

    made = ruled(lambda: value, back, x, keep=(x.detach(), low, most - value_low, value - most))
    return made if output is value else type(output)((made, *output[1:]))


def _values(output: Any) -> Tensor:
    found: Tensor = output if isinstance(output, Tensor) else output[0]
    return found


def _back(function: Callable[[Tensor], Tensor], x: Tensor, came: Tensor) -> Tensor:
    with torch.enable_grad():
        leaf = x.detach().clone().requires_grad_()
        (found,) = torch.autograd.grad(function(leaf), leaf, came)
    return found


def soft(kind: Callable[[Both, int], Both]) -> Rule:
    """A softmax, its logarithm, or the logarithm of the sum."""

    def rule(func: Callable[..., Any], call: Call, reference: Call) -> Tensor:
        x, rest, options = split(*call)
        low, _, _ = split(*reference)
        value = run(func, *call)
        way = kind(Both(x, low), rest[0] if rest else options["dim"]).image
        return swapped(value, way.reshape(value.shape))

    return rule


def attention(func: Callable[..., Any], call: Call, reference: Call) -> Tensor:
    """Scaled dot-product attention: two products and a softmax between them."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    given, low = named(names, *call), named(names, *reference)
    q, k, v = (Both(given[name], low[name]) for name in names[:3])
    if given.get("enable_gqa"):
        times = q.image.shape[-3] // k.image.shape[-3]
        k, v = (x.each(lambda t: t.repeat_interleave(times, dim=-3)) for x in (k, v))
    scale = given.get("scale") or 1 / math.sqrt(q.image.shape[-1])
    scores = together(torch.matmul, q.each(lambda t: t * scale), k.each(lambda t: t.mT))
    mask = given.get("attn_mask")
    if given.get("is_causal"):
        mask = torch.ones(scores.image.shape[-2:], dtype=torch.bool, device=scores.image.device).tril()
    if mask is not None:
        boolean = mask.dtype == torch.bool
        scores = scores.each(lambda t: t.masked_fill(~mask, -math.inf) if boolean else t + mask)
    return swapped(run(func, *call), together(torch.matmul, softmax(scores, -1), v).image)


def gated(func: Callable[..., Any], call: Call, reference: Call) -> Tensor:
    """A gated linear unit: one half of the channels times the sigmoid of the other."""
    x, rest, options = split(*call)
    low, _, _ = split(*reference)
    dim = rest[0] if rest else options.get("dim", -1)
    (a, c), (b, d) = zip(x.chunk(2, dim), low.chunk(2, dim), strict=True)
    return together(torch.mul, Both(a, c), through(Both(b, d), torch.sigmoid)).image
