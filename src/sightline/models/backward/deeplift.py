"""Send DeepLIFT's multipliers back through a network instead of gradients, without touching it.

The network runs twice. On the reference every call that is not linear is written down (`Noted`); on the image each such
call is given, as its way back, the line between its two values (`Multiplied`), so that what `torch.autograd.grad`
returns are multipliers. Calls are intercepted where they are made (`torch.overrides.TorchFunctionMode`) and told apart
by their order: a module used several times, an in-place one and a plain function are all the same here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from sightline.errors import UnsupportedModel
from sightline.models.backward import deeplift_norms as norms
from sightline.models.backward import deeplift_rules as rules
from sightline.models.backward.custom import split, tensors, traced
from sightline.models.vit.multi_head import fused, multi_head

CURVES = {
    "__pow__", "__rdiv__", "__rpow__", "__rtruediv__", "abs", "celu", "clamp", "clamp_max", "clamp_min", "clip", "elu",
    "erf", "exp", "expm1", "gelu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log", "log1p",
    "log_sigmoid", "logsigmoid", "mish", "pow", "prelu", "reciprocal", "relu", "relu6", "rsqrt", "selu", "sigmoid",
    "silu", "softplus", "softshrink", "softsign", "sqrt", "square", "tanh", "tanhshrink", "threshold",
}  # fmt: skip
PRODUCTS = {"__imul__", "__matmul__", "__mul__", "__rmul__", "bmm", "matmul", "mm", "mul", "multiply"}
QUOTIENTS = {"__itruediv__", "__truediv__", "div", "divide", "true_divide"}
_MAX_POOLS = [f"{kind}max_pool{axes}d" for kind in ("", "adaptive_") for axes in (1, 2, 3)]
POOLS = {*_MAX_POOLS, *(f"{name}_with_indices" for name in _MAX_POOLS), "amax", "max"}
RULES: dict[str, rules.Rule] = {
    **dict.fromkeys(CURVES, rules.curve),
    **dict.fromkeys(PRODUCTS, rules.product),
    **dict.fromkeys(QUOTIENTS, rules.quotient),
    **dict.fromkeys(POOLS, rules.pool),
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
IN_PLACE = {"__imul__", "__itruediv__"}
Note = tuple[str, rules.Call]


class _AnotherWay(Exception):
    """Image and reference ran differently. No TypeError, as `UnsupportedModel` is: operators would swallow that."""


class _Calls(TorchFunctionMode, ABC):
    """Meet every call that has a rule and depends on the image in more than a linear way."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        call = args, kwargs or {}
        if not any(map(traced, tensors(call))):
            return func(*args, **call[1])
        if func is F.multi_head_attention_forward:
            with self:  # the calls it consists of are met one by one
                return multi_head(fused, *call)
        name = _plain(func)
        return self._meet(name, func, call) if _bends(name, call) else func(*args, **call[1])

    @abstractmethod
    def _meet(self, name: str, func: Callable[..., Any], call: rules.Call) -> Any:
        """Answer the call."""


class Noted(_Calls):
    """Write down what the calls of a pass were given.

    Attributes:
        notes: the calls, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[Note] = []

    def _meet(self, name: str, func: Callable[..., Any], call: rules.Call) -> Any:
        self.notes.append((name, _copies(call)))
        return func(*call[0], **call[1])


class Multiplied(_Calls):
    """Give every call, on the way back, the line between its values on the image and on the reference."""

    def __init__(self, notes: list[Note]) -> None:
        super().__init__()
        self._notes = notes[::-1]

    def _meet(self, name: str, func: Callable[..., Any], call: rules.Call) -> Any:
        noted, reference = self._notes.pop() if self._notes else ("nothing", ((), {}))
        if noted != name or [x.shape for x in tensors(reference)] != [x.shape for x in tensors(call)]:
            raise _AnotherWay(
                f"the model calls {name!r} on the image where it calls {noted!r} on the reference; DeepLIFT needs both "
                "to go the same way: use ig or ixg here"
            )
        value = RULES[name](func, call, reference)
        return call[0][0].copy_(value) if _writes(func, name, call) else value

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if isinstance(error, _AnotherWay):
            raise UnsupportedModel(str(error)) from None


def _plain(func: Callable[..., Any]) -> str:
    """Return a call's name, the same whether it writes in place or not."""
    name: str = getattr(func, "__name__", "")
    return name if name.startswith("__") else name.strip("_")


def _bends(name: str, call: rules.Call) -> bool:
    """Tell whether a call has a rule, and needs it: a product with a constant is linear."""
    args, options = call
    if name not in RULES:
        return False
    if name in PRODUCTS:
        return all(map(traced, (*args, *options.values())))
    if name in QUOTIENTS:
        return traced(args[1] if len(args) > 1 else options["other"]) and not options.get("rounding_mode")
    if name == "einsum":
        operands = args[1] if len(args) == 2 else args[1:]
        return len(operands) == 2 and all(map(traced, operands))
    if name == "scaled_dot_product_attention":
        return True
    if name == "max" and len(args) + len(options) < 2:
        return False  # over the whole batch
    x, rest, more = split(args, options)
    return traced(x) and not any(map(traced, tensors((rest, more))))


def _writes(func: Callable[..., Any], name: str, call: rules.Call) -> bool:
    """Tell whether a call overwrites its first argument."""
    args, options = call
    asked = options.get("inplace") is True or (name in CURVES and len(args) > 1 and args[-1] is True)
    return asked or name in IN_PLACE or (not name.startswith("__") and func.__name__.endswith("_"))


def _copies(x: Any) -> Any:
    """Copy the tensors among the arguments of a call, off the graph; later calls may write into the originals."""
    if isinstance(x, Tensor):
        return x.detach().clone() if traced(x) else x.detach()
    if type(x) in (list, tuple):
        return type(x)(map(_copies, x))
    return {key: _copies(value) for key, value in x.items()} if isinstance(x, dict) else x
