"""DeepLIFT's backward pass: propagate multipliers through a network instead of gradients, without touching it.

The network runs twice. On the baseline every nonlinear call is recorded (`RecordCalls`); on the image the backward of
each such call is the slope between its two values (`DeepLiftBackward`), so that what `torch.autograd.grad` returns are
multipliers. Calls are intercepted where they are made (`torch.overrides.TorchFunctionMode`) and matched by their order:
a module used several times, an in-place one and a plain function are all the same here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from sightline.errors import UnsupportedModel
from sightline.models.backward import deeplift_clamps as clamps
from sightline.models.backward import deeplift_norms as norms
from sightline.models.backward import deeplift_pools as pools
from sightline.models.backward import deeplift_rules as rules
from sightline.models.backward.custom import depends_on_image, split_input, tensors
from sightline.models.vit.multi_head import fused, multi_head

ELEMENTWISE = {
    "__pow__", "__rdiv__", "__rpow__", "__rtruediv__", "abs", "celu", "clamp", "clamp_max", "clamp_min", "clip", "elu",
    "erf", "exp", "expm1", "gelu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log", "log1p",
    "log_sigmoid", "logsigmoid", "mish", "pow", "prelu", "reciprocal", "relu", "relu6", "rsqrt", "selu", "sigmoid",
    "silu", "softplus", "softshrink", "softsign", "sqrt", "square", "tanh", "tanhshrink", "threshold",
}  # fmt: skip
PRODUCTS = {"__imul__", "__matmul__", "__mul__", "__rmul__", "bmm", "matmul", "mm", "mul", "multiply"}
QUOTIENTS = {"__itruediv__", "__truediv__", "div", "divide", "true_divide"}
RULES: dict[str, rules.Rule] = {
    **dict.fromkeys(ELEMENTWISE, rules.elementwise_call),
    **dict.fromkeys(clamps.BOUNDS, clamps.clamp_call),
    **dict.fromkeys(PRODUCTS, rules.product),
    **dict.fromkeys(QUOTIENTS, rules.quotient),
    **dict.fromkeys(pools.MAXIMA, pools.maximum),
    "einsum": rules.einsum,
    "softmax": rules.soft(rules.softmax),
    "log_softmax": rules.soft(rules.log_softmax),
    "logsumexp": rules.soft(rules.log_sum_exp),
    "glu": rules.gated,
    "layer_norm": norms.layer_norm,
    "rms_norm": norms.rms_norm,
    "group_norm": norms.group_norm,
    "instance_norm": norms.instance_norm,
    **dict.fromkeys(("norm", "linalg_vector_norm"), norms.length),
    "normalize": norms.unit,
    "cosine_similarity": norms.cosine,
    "scaled_dot_product_attention": rules.attention,
}
WATCHED = {*RULES, F.multi_head_attention_forward.__name__, F.batch_norm.__name__}
IN_PLACE = {"__imul__", "__itruediv__"}


class RecordedCall(NamedTuple):
    """A call on the baseline.

    Attributes:
        name: of the function.
        call: its arguments.
        pooled: what a max pool took.
    """

    name: str
    call: rules.Call
    pooled: pools.Pooled | None = None


class _DifferentCalls(Exception):
    """Image and baseline made different calls. No TypeError, as `UnsupportedModel` is: operators would swallow that."""


class _Intercepted(TorchFunctionMode, ABC):
    """Intercept every call that has a rule and is not linear in what depends on the image."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        call = args, kwargs or {}
        name = _call_name(func)
        if name not in WATCHED:
            return func(*args, **call[1])
        if func is F.batch_norm:
            return norms.batch_norm(func, call)
        if not any(map(depends_on_image, tensors(call))):
            return func(*args, **call[1])
        if func is F.multi_head_attention_forward:
            with self:  # each call inside it is intercepted
                return multi_head(fused, *call)
        return self._handle(name, func, call) if _is_nonlinear(name, call) else func(*args, **call[1])

    @abstractmethod
    def _handle(self, name: str, func: Callable[..., Any], call: rules.Call) -> Any:
        """Return the value of the call."""


class RecordCalls(_Intercepted):
    """Record the arguments of the nonlinear calls of a forward pass.

    Attributes:
        calls: names and arguments, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[RecordedCall] = []

    def _handle(self, name: str, func: Callable[..., Any], call: rules.Call) -> Any:
        if pools.returns_values(func, call):
            pooled = pools.with_places(func, call)
            kept = pools.Pooled(pooled.values.detach().clone(), pooled.places)
            self.calls.append(RecordedCall(name, _detached_copies(call), kept))
            return pooled.values
        if name in clamps.BOUNDS and _is_in_place(func, name, call):
            before, value = clamps.clamp_recorded(func, call)
            self.calls.append(RecordedCall(name, before))
            return value
        self.calls.append(RecordedCall(name, _detached_copies(call)))
        return func(*call[0], **call[1])


class DeepLiftBackward(_Intercepted):
    """Give every nonlinear call the slope between its values on the image and on the baseline as its backward.

    The recorded calls are taken out of their list, so that each is freed once it was needed.
    """

    def __init__(self, calls: list[RecordedCall]) -> None:
        super().__init__()
        self._recorded = calls[::-1]
        calls.clear()

    def _handle(self, name: str, func: Callable[..., Any], call: rules.Call) -> Any:
        recorded, baseline, pooled = self._recorded.pop() if self._recorded else RecordedCall("nothing", ((), {}))
        if recorded != name or [x.shape for x in tensors(baseline)] != [x.shape for x in tensors(call)]:
            raise _DifferentCalls(
                f"the model calls {name!r} on the image where it calls {recorded!r} on the baseline; DeepLIFT needs "
                "the same calls on both: use ig or ixg here"
            )
        if pooled is not None:
            return pools.max_pool(func, call, baseline, pooled)
        in_place = _is_in_place(func, name, call)
        if in_place and name in ELEMENTWISE:
            rule = clamps.clamp_call if name in clamps.BOUNDS else rules.elementwise_call
            return rule(func, call, baseline, in_place=True)
        value = RULES[name](func, call, baseline)
        return call[0][0].copy_(value) if in_place else value

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if isinstance(error, _DifferentCalls):
            raise UnsupportedModel(str(error)) from None


def saving_nothing() -> saved_tensors_hooks:
    """Return a context in which no call keeps tensors for a backward pass: the memory is free for the next layer."""
    return saved_tensors_hooks(lambda saved: None, lambda kept: kept)


@cache
def _call_name(func: Callable[..., Any]) -> str:
    """Return a call's name, the same whether it writes in place or not."""
    name: str = getattr(func, "__name__", "")
    return name if name.startswith("__") else name.strip("_")


def _is_nonlinear(name: str, call: rules.Call) -> bool:
    """Tell whether a call has a rule, and needs it: a product with a constant is linear."""
    args, options = call
    if name not in RULES:
        return False
    if name in PRODUCTS:
        return all(map(depends_on_image, (*args, *options.values())))
    if name in QUOTIENTS:
        return depends_on_image(args[1] if len(args) > 1 else options["other"]) and not options.get("rounding_mode")
    if name == "einsum":
        operands = args[1] if len(args) == 2 else args[1:]
        return len(operands) == 2 and all(map(depends_on_image, operands))
    if name == "scaled_dot_product_attention":
        return True
    if name == "max" and len(args) + len(options) < 2:
        return False  # over the whole batch
    x, rest, more = split_input(args, options)
    return depends_on_image(x) and not any(map(depends_on_image, tensors((rest, more))))


def _is_in_place(func: Callable[..., Any], name: str, call: rules.Call) -> bool:
    """Tell whether a call overwrites its first argument."""
    args, options = call
    asked = options.get("inplace") is True or (name in ELEMENTWISE and len(args) > 1 and args[-1] is True)
    return asked or name in IN_PLACE or (not name.startswith("__") and func.__name__.endswith("_"))


def _detached_copies(x: Any) -> Any:
    """Return the arguments of a call with its tensors detached and copied: later calls may overwrite them."""
    if isinstance(x, Tensor):
        return x.detach().clone() if depends_on_image(x) else x.detach()
    if type(x) in (list, tuple):
        return type(x)(map(_detached_copies, x))
    return {key: _detached_copies(value) for key, value in x.items()} if isinstance(x, dict) else x
