r"""LibraGrad's backward rules: the forward pass is bit-identical, and gradients are balanced.

LibraGrad :cite:p:`libragrad2025` prunes and scales the backward paths that break the balance between a network's output
and its input times gradient. Inside ``with balanced():`` the network behaves, for gradients, as if these were linear:

* norms: the denominator is a constant, the mean is not;
* attention: the probabilities are constants, so gradients flow through the values alone;
* gated activations, :math:`u\,\phi(u)` (GELU, QuickGELU, SiLU, …): the gate :math:`\phi(u)` is a constant;
* products of two streams (SwiGLU and other gated MLPs): each stream gets half its gradient.

What remains is homogeneous of degree one up to its biases, so input times gradient and biases times gradient sum to
the logit from every layer on. It acts on function calls, whichever library makes them, for that thread and inside the
``with`` only; no module is touched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from sightline.models.vit.multi_head import fused, multi_head

SCORES = 2**20  # of attention that are computed again at once: they stay in the processor's cache
Preset = Literal["libra", "libra_unit", "attn_lrp", "ali_lrp"]


@dataclass(frozen=True, slots=True)
class Rules:
    """Which backward rules apply.

    Attributes:
        attention: "constant" stops gradients at the probabilities; "halved" keeps the softmax's gradient and gives
            values a half and queries and keys a quarter each of theirs.
        activation: gates of activations are constants.
        product: products of two streams split their gradient.
        unit: the length in a division by a vector's own length is a constant.
    """

    attention: Literal["constant", "halved"] = "constant"
    activation: bool = True
    product: bool = True
    unit: bool = False


PRESETS: dict[Preset, Rules] = {
    "libra": Rules(),
    "libra_unit": Rules(unit=True),
    "attn_lrp": Rules(attention="halved"),
    "ali_lrp": Rules(activation=False, product=False),
}


@contextmanager
def balanced(preset: Preset = "libra") -> Iterator[None]:
    """Apply a preset's backward rules to every gradient of what runs inside."""
    with _Balanced(PRESETS[preset]):
        yield


class _Swap(torch.autograd.Function):
    """One tensor's value with another's gradient."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, surrogate: Tensor) -> Tensor:
        return value.clone()  # the next call may write in place, which a view of the input forbids

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, gradient


class _Scale(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a number."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return value.clone()  # the next call may write in place, which a view of the input forbids

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


class _HeldNorm(torch.autograd.Function):
    """A layer norm, with the gradient at its input of the norm whose standard deviation is a constant."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        value, _, inverse = torch.native_layer_norm(x, shape, weight, bias, eps)
        ctx.axes = tuple(range(-len(shape), 0))
        ctx.save_for_backward(inverse, weight)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        inverse, weight = ctx.saved_tensors
        scaled = gradient * (1 if weight is None else weight.detach())
        scaled = scaled.sub_(scaled.mean(dim=ctx.axes, keepdim=True)).mul_(inverse.to(scaled))
        return scaled, None, None, None, None


class _HeldGate(torch.autograd.Function):
    """A gated activation, with the gradient of its argument times the gate as a constant."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, compute: Callable[[Tensor], Tensor], at_zero: float) -> Tensor:
        value = compute(u)
        ctx.save_for_backward((value / u).nan_to_num_(nan=at_zero))  # not the value: the next call may write in place
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (gate,) = ctx.saved_tensors
        return gradient * gate, None, None


class _HeldAttention(torch.autograd.Function):
    """Torch's own attention, with the gradient of its values alone: the probabilities are constants.

    The fused kernel's backward computes the gradients of queries and keys as well, wanted or not. Here probabilities
    are computed again, a number of queries at a time.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, compute: Callable[..., Tensor], scale: float) -> Tensor:
        ctx.scale = scale
        ctx.save_for_backward(q, k)
        return compute(q, k, v)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor, None, None]:
        q, k = ctx.saved_tensors
        rows = max(1, SCORES // (k.shape[-2] * math.prod(k.shape[:-2])))
        total: Tensor | None = None
        for some, of_some in zip((q * ctx.scale).split(rows, dim=-2), gradient.split(rows, dim=-2), strict=True):
            part = (some @ k.mT).softmax(dim=-1).mT @ of_some
            total = part if total is None else total.add_(part)
        assert total is not None
        return None, None, total, None, None


def _swap(value: Tensor, surrogate: Tensor) -> Tensor:
    swapped: Tensor = _Swap.apply(value.detach(), surrogate)  # type: ignore[no-untyped-call]
    return swapped


def _scaled(value: Tensor, factor: float) -> Tensor:
    scaled: Tensor = _Scale.apply(value, factor)  # type: ignore[no-untyped-call]
    return scaled


class _Balanced(TorchFunctionMode):
    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self.rules = rules

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not torch.is_grad_enabled():
            return func(*args, **kwargs)
        if func in _NORMS:
            return _NORMS[func](func, args, kwargs)
        if func is F.scaled_dot_product_attention:
            if self.rules.attention == "constant" and args[2].requires_grad and _attends_plainly(*args, **kwargs):
                return _held_attention(func, args, kwargs)
            q, k, v = self._heads(*args[:3])
            return func(q, k, v, *args[3:], **kwargs)
        if func is F.multi_head_attention_forward and self._needs_gradient(args):
            with self:  # each call inside it gets its own rule
                return multi_head(fused, args, kwargs)
        if func in _SOFTMAX and self.rules.attention == "constant" and args[0].ndim >= 3:
            return func(args[0].detach(), *args[1:], **kwargs)
        if func in _GATED and self.rules.activation:
            return _gated(func, args, kwargs)
        if func in _GATES and self.rules.activation and args[0].ndim >= 3:  # a head's own sigmoid is (batch, class)
            return func(args[0].detach(), *args[1:], **kwargs)
        if func in _PRODUCTS and self.rules.product and _two_streams(args):
            return func(_scaled(args[0], 0.5), _scaled(args[1], 0.5), *args[2:], **kwargs)
        if func is F.normalize and self.rules.unit:
            return _swap(value := func(*args, **kwargs), args[0] * _ratio(value, args[0]))
        return func(*args, **kwargs)

    def _heads(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.rules.attention == "constant":
            return q.detach(), k.detach(), v
        return _scaled(q, 0.25), _scaled(k, 0.25), _scaled(v, 0.5)

    def _needs_gradient(self, args: tuple[Any, ...]) -> bool:
        return any(isinstance(x, Tensor) and x.requires_grad for x in args[:3])


def _attends_plainly(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> bool:
    """Tell whether the probabilities of an attention follow from its queries and keys alone."""
    alike = q.shape[:-2] == k.shape[:-2] == v.shape[:-2]
    return alike and attn_mask is None and not dropout_p and not is_causal


def _held_attention(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    q, k, v = args[:3]
    scale = args[6] if len(args) > 6 else kwargs.get("scale")
    compute = lambda q, k, v: func(q, k, v, *args[3:], **kwargs)  # noqa: E731
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    return _HeldAttention.apply(q.detach(), k.detach(), v, compute, factor)  # type: ignore[no-untyped-call]


def _layer_norm(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    x, shape, weight, bias, eps = _bound(args, kwargs, ("input", "normalized_shape", "weight", "bias", "eps"), 1e-5)
    if not x.requires_grad:
        return func(*args, **kwargs)
    return _HeldNorm.apply(x, list(shape), weight, bias, eps)  # type: ignore[no-untyped-call]


def _rms_norm(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    value: Tensor = func(*args, **kwargs)
    x, shape, weight, eps = _bound(args, kwargs, ("input", "normalized_shape", "weight", "eps"), None)
    if not x.requires_grad:
        return value
    axes = tuple(range(-len(shape), 0))
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    length = x.detach().square().mean(dim=axes, keepdim=True)
    return _swap(value, _affine(x * (length + eps).rsqrt(), weight, None))


def _group_norm(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    value: Tensor = func(*args, **kwargs)
    x, groups, weight, bias, eps = _bound(args, kwargs, ("input", "num_groups", "weight", "bias", "eps"), 1e-5)
    if not x.requires_grad:
        return value
    grouped = x.unflatten(1, (groups, -1)).flatten(2)
    spread = grouped.detach().var(dim=-1, unbiased=False, keepdim=True)
    plain = ((grouped - grouped.mean(dim=-1, keepdim=True)) * (spread + eps).rsqrt()).reshape(x.shape)
    channels = (-1, *[1] * (x.ndim - 2))
    weight, bias = (None if p is None else p.reshape(channels) for p in (weight, bias))
    return _swap(value, _affine(plain, weight, bias))


def _detached_output(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    return func(args[0].detach(), *args[1:], **kwargs)


def _bound(args: tuple[Any, ...], kwargs: Any, names: tuple[str, ...], eps: float | None) -> list[Any]:
    """Return the arguments of a norm by name, eps last."""
    given = dict(zip(names, args, strict=False)) | kwargs
    return [given.get(name, eps if name == "eps" else None) for name in names]


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _gated(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    r"""Compute :math:`u\,\phi(u)` with the gate held fixed in the backward pass."""
    options = {**kwargs, **({"inplace": False} if kwargs.get("inplace") else {})}
    if not args[0].requires_grad:
        return func(*args, **options)
    compute = lambda u: func(u, *args[1:], **options)  # noqa: E731
    return _HeldGate.apply(args[0], compute, _GATED[func])  # type: ignore[no-untyped-call]


def _ratio(value: Tensor, x: Tensor) -> Tensor:
    """Return what a tensor was multiplied by, as a constant."""
    value, x = value.detach(), x.detach()
    return torch.where(x == 0, torch.zeros_like(x), value / x)


def _two_streams(args: tuple[Any, ...]) -> bool:
    """Tell a product of two activations from one with a parameter, a buffer or a number."""
    return (
        len(args) >= 2
        and all(isinstance(x, Tensor) and x.requires_grad and not x.is_leaf and x.ndim >= 3 for x in args[:2])
        and args[0].shape == args[1].shape
    )


_Handler = Callable[[Callable[..., Any], tuple[Any, ...], Any], Any]
_NORMS: dict[Callable[..., Any], _Handler] = {
    F.layer_norm: _layer_norm,
    torch.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.group_norm: _group_norm,
    torch.rsqrt: _detached_output,  # norms written out step by step
    Tensor.rsqrt: _detached_output,
}
# the gate of each activation where its argument is zero; elsewhere it is the value over the argument
_GATED: dict[Callable[..., Any], float] = {F.gelu: 0.5, F.silu: 0.5, F.hardswish: 0.5, F.mish: 0.6}
_GATES = frozenset({torch.sigmoid, Tensor.sigmoid, F.sigmoid, torch.tanh, Tensor.tanh, torch.erf, Tensor.erf})
_SOFTMAX = frozenset({torch.softmax, F.softmax, Tensor.softmax})
_PRODUCTS = frozenset({torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__})
