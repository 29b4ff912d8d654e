"""Layer-wise relevance propagation: propagate relevance through a network instead of gradients, without touching it.

Inside the ``with`` every call that the network makes is intercepted (`torch.overrides.TorchFunctionMode`) and given a
backward that is its relevance rule; what `torch.autograd.grad` then returns is relevance. Modules used twice, in-place
calls and plain functions are all the same here. A call without a rule is refused, never guessed at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from sightline.errors import UnsupportedModel
from sightline.models.backward.custom import (
    Backward,
    custom_backward,
    depends_on_image,
    detached,
    named,
    run,
    split_input,
    tensors,
    unchanged,
)
from sightline.models.backward.lrp_rules import (
    Affine,
    Box,
    Composite,
    Tally,
    box,
    epsilon,
    propagate_linear,
    stabilised,
    with_transposed,
)

# Calls that only move values: relevance goes where the value came from. Dropout does nothing in eval mode.
MOVES = {
    "__get__", "__getitem__", "adaptive_max_pool2d", "alpha_dropout", "broadcast_to", "cat", "channel_shuffle",
    "chunk", "clone", "concat", "concatenate", "constant_pad_nd", "contiguous", "double", "dropout", "dropout2d",
    "expand", "expand_as", "feature_dropout", "flatten", "flip", "float", "max_pool2d", "max_pool2d_with_indices",
    "movedim", "narrow", "pad", "permute", "pixel_shuffle", "pixel_unshuffle", "ravel", "repeat", "reshape", "roll",
    "select", "split", "squeeze", "stack", "swapaxes", "t", "to", "transpose", "type", "type_as", "unbind",
    "unflatten", "unsqueeze", "view", "view_as",
}  # fmt: skip
MAX_POOLS = {"max_pool2d", "max_pool2d_with_indices", "adaptive_max_pool2d"}
ACTIVATIONS = {
    "celu", "clamp", "clamp_min", "elu", "gelu", "hardswish", "hardtanh", "leaky_relu", "mish", "prelu", "relu",
    "relu6", "selu", "silu", "softplus", "tanh",
}  # fmt: skip
GATES = {"hardsigmoid", "sigmoid"}
LINEAR_MAPS = {"adaptive_avg_pool2d", "avg_pool2d", "interpolate", "mean", "sum"}
CONVOLUTIONS = {"conv1d", "conv2d", "conv3d"}
SUMS = {"__add__", "__iadd__", "__radd__", "add", "add_"}
DIFFERENCES = {"__isub__", "__sub__", "sub", "sub_"}
IN_PLACE = {"__iadd__", "__imul__", "__isub__", "__itruediv__", "add_", "div_", "mul_", "sub_"}
PRODUCTS = {"__imul__", "__mul__", "__rmul__", "mul", "mul_", "multiply"}
QUOTIENTS = {"__itruediv__", "__truediv__", "div", "div_", "divide"}
_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")


class _NoRule(Exception):
    """A call without a rule. No TypeError, as `UnsupportedModel` is: Python's operators would swallow that."""


@dataclass(frozen=True, eq=False, slots=True)
class _LayerOutput:
    """The output of an affine layer: by this call, from this input; valid until the tensor is overwritten."""

    layer: Affine
    x: Tensor
    version: int


@dataclass(frozen=True, eq=False, slots=True)
class _PaddedInput:
    """A zero-padded tensor: what was padded, and how; valid until the tensor is overwritten."""

    x: Tensor
    pad: Callable[[Tensor], Tensor]
    version: int


class _KeptOutput:
    """The output of a layer, kept without its graph for the backward pass; copied before a call overwrites it."""

    def __init__(self, output: Tensor) -> None:
        self._value = output.detach()
        self._version = output._version

    def copy(self) -> None:
        """Copy what is about to be overwritten."""
        if (value := self.value) is not None:
            self._value, self._version = value.clone(), 0

    @property
    def value(self) -> Tensor | None:
        """The output; None where it was overwritten after all, as by a call on a view of it."""
        return self._value if self._value._version == self._version else None


class Relevance(TorchFunctionMode):
    """The mode in which every call of a network has its relevance rule as backward.

    Attributes:
        composite: which rule where.
        box: the lowest and the highest value of a pixel, per channel.
        count: how many convolutions and linear layers ran.
        tally: what biases and the stabiliser absorb in a backward pass; set a new one before each.
    """

    def __init__(self, composite: Composite, box: Box, images: Tensor) -> None:
        super().__init__()
        self.composite = composite
        self.box = box
        self.count = 0
        self.tally = Tally(images)
        self._layer_outputs: Any = WeakTensorKeyDictionary()
        self._layer_nodes: dict[Any, _LayerOutput] = {}  # the same, by what made them in autograd's graph
        self._layer_inputs: Any = WeakTensorKeyDictionary()  # by version: whether a layer with a rule took it
        self._kept_outputs: Any = WeakTensorKeyDictionary()
        self._gates: Any = WeakTensorKeyDictionary()
        self._padded_inputs: Any = WeakTensorKeyDictionary()

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not any(map(depends_on_image, tensors((args, kwargs)))):
            with torch.no_grad():  # weights made of weights stay constants
                return detached(func(*args, **kwargs))
        name = getattr(func, "__name__", str(func))
        if rule := self._rule(name):
            return rule(func, args, kwargs)
        output = func(*args, **kwargs)
        if name not in MOVES and any(map(depends_on_image, tensors(output))):
            raise _NoRule(
                f"lrp has no rule for the call {name!r}; it serves convolutions, linear layers, batch and layer norms, "
                "pools, elementwise activations, sums and gates: use ig or ixg here"
            )
        return output

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._layer_nodes.clear()  # the graph refers to this mode, and would else never be freed without the collector
        if isinstance(error, _NoRule):
            raise UnsupportedModel(str(error)) from None

    def _rule(self, name: str) -> Callable[..., Any] | None:
        plain = name if name.startswith("__") else name.rstrip("_")
        if plain in ACTIVATIONS | GATES:
            return partial(self._activation, gate=plain in GATES)
        if name in CONVOLUTIONS or name == "linear":
            return self._affine
        if name in LINEAR_MAPS or (self.composite.captum and name in MAX_POOLS):
            return self._linear_map
        if name in SUMS | DIFFERENCES:
            return self._sum
        if name in PRODUCTS | QUOTIENTS:
            return self._product
        return {"batch_norm": self._batch_norm, "layer_norm": self._layer_norm, "pad": self._pad}.get(name)

    # ---- layers ------------------------------------------------------------------------------------------------

    def _affine(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Tensor:
        given = named(("input", "weight", "bias", "stride", "padding", "dilation", "groups"), args, kwargs)
        x, weight, bias = given.pop("input"), given.pop("weight"), given.pop("bias", None)
        if depends_on_image(weight):
            raise _NoRule("lrp has no rule for weights that depend on the image; use ig or ixg here")
        chosen = self.composite.linear if func.__name__ == "linear" else self.composite.convolution
        rule = self.composite.first if self.count == 0 and self.composite.first else chosen
        if rule is box and x.shape[1] != self.box[0].shape[1]:
            raise _NoRule(
                f"the box rule needs the bounds of what the first layer is fed, and its {x.shape[1]} channels are not "
                f"the image's {self.box[0].shape[1]}; take composite='epsilon_plus_flat' here"
            )
        self.count += 1
        last = func.__name__ == "linear"
        x, pad = (x, None) if last else self._without_padding(x)
        layer = Affine(
            lambda x, w, b: func(x if pad is None else pad(x), w, b, **given),
            detached(weight), detached(bias), rule, self.box, last,
        )  # fmt: skip
        if rule is epsilon:
            value, transposed = with_transposed(layer.rerun, x)
            layer = replace(layer, transposed=transposed)
        else:
            value = layer.rerun(x.detach())
        output = self._through(layer, x, value)
        if not last or output.ndim == 2:  # channels on axis 1, where a batch norm expects them
            self._layer_outputs[output] = _LayerOutput(layer, x, output._version)
            self._layer_nodes[output.grad_fn] = self._layer_outputs[output]
        return output

    def _layer_before(self, x: Tensor) -> _LayerOutput | None:
        """Return the affine layer that a tensor is the output of, also where a module's backward hook wraps it."""
        node, found = x.grad_fn, self._layer_outputs.get(x)
        if node is not None and type(node).__name__ == "BackwardHookFunctionBackward":
            found = self._layer_nodes.get(node.next_functions[0][0])
        return found if found is not None and found.version == x._version else None

    def _pad(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Tensor:
        given = named(("input", "pad", "mode", "value"), args, kwargs)
        output: Tensor = func(*args, **kwargs)
        if given.get("mode", "constant") == "constant" and not given.get("value"):
            pad = partial(func, pad=given["pad"])
            self._padded_inputs[output] = _PaddedInput(given["input"], pad, output._version)
        return output

    def _without_padding(self, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor] | None]:
        """Return what zeros were put around, and how: they belong to the convolution, not to its input.

        The flat and the box rule would give them relevance, and it would be lost.
        """
        padded = self._padded_inputs.get(x)
        return (x, None) if padded is None or padded.version != x._version else (padded.x, padded.pad)

    def _batch_norm(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Tensor:
        given = named(_NORM, args, kwargs)
        x, mean = given["input"], given["running_mean"]
        if mean is None or given.get("training"):
            raise _NoRule("lrp needs batch norms with running statistics; put the model in eval mode")
        scale = (given["running_var"] + given.get("eps", 1e-5)).rsqrt()
        scale = scale if given.get("weight") is None else scale * detached(given["weight"])
        shift = -mean * scale if given.get("bias") is None else detached(given["bias"]) - mean * scale
        before = self._layer_before(x)
        if self.composite.captum or (before is None and self.composite.norms):
            return self._linear_map(func, args, kwargs, shift.reshape(-1, *[1] * (x.ndim - 2)))
        if before is None:
            return custom_backward(partial(run, func, args, kwargs), unchanged, x)
        with torch.no_grad():
            value = func(*args, **kwargs)
        return self._through(before.layer.merged(scale, shift), before.x, value)

    def _through(self, layer: Affine, x: Tensor, value: Tensor) -> Tensor:
        """Return the output of a layer, whose backward is its rule."""
        kept = _KeptOutput(value) if layer.needs_output else None

        def propagate(relevance: Tensor, x: Tensor) -> Tensor:
            own = None if kept is None else kept.value
            output = lambda: layer.rerun(x) if own is None else own  # noqa: E731
            return layer.propagate(relevance, x, output, self.composite.stabiliser, self.tally)

        return self._with_relevance(x, value, propagate, kept)

    def _with_relevance(
        self, x: Tensor, value: Tensor, propagate: Callable[[Tensor, Tensor], Tensor], kept: _KeptOutput | None
    ) -> Tensor:
        """Return a value computed from an input, with what propagates its relevance as backward."""
        self._uses_as_layer_input(x).append(True)
        output = custom_backward(lambda: value, lambda *given: (propagate(*given),), x, saved=(x,))
        if kept is not None:
            self._kept_outputs[output] = kept
        return output

    def _overwrites(self, x: Tensor) -> None:
        """Copy what is kept of a tensor before a call overwrites it."""
        if kept := self._kept_outputs.pop(x, None):
            kept.copy()

    def _linear_map(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any, biases: Tensor | None = None
    ) -> Tensor:
        x, rest, options = split_input(args, kwargs)

        def repeated(x: Tensor) -> Tensor:
            again: Tensor = func(x, *rest, **options)
            return again

        value, transposed = with_transposed(repeated, x)
        kept, stabiliser = _KeptOutput(value), self.composite.stabiliser

        def propagate(relevance: Tensor, x: Tensor) -> Tensor:
            z = kept.value
            share = self.tally.divided(relevance, repeated(x) if z is None else z, stabiliser, biases)
            return transposed(share) * x

        return self._with_relevance(x, value, propagate, kept)

    def _layer_norm(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Tensor:
        given = named(("input", "normalized_shape", "weight", "bias", "eps"), args, kwargs)
        if self.composite.captum:
            raise _NoRule("captum has no rule for a layer norm; leave out preset='captum'")
        x = given["input"].detach()
        shape = tuple(given["normalized_shape"])
        axes = tuple(range(-len(shape), 0))
        _, _, inverse = torch.native_layer_norm(x, shape, None, None, given.get("eps", 1e-5))
        scale = inverse.to(x.dtype)
        scale = scale if given.get("weight") is None else scale * detached(given["weight"])
        shift = torch.zeros_like(x[:1]) if given.get("bias") is None else detached(given["bias"])
        stabiliser = self.composite.stabiliser

        def backward(relevance: Tensor, x: Tensor) -> tuple[Tensor]:
            # the norm's own deviation is held, which makes it linear
            norm = lambda x: (x - x.mean(dim=axes, keepdim=True)) * scale + shift  # noqa: E731
            return (propagate_linear(norm, relevance, x, stabiliser, self.tally, shift),)

        return custom_backward(partial(run, func, args, kwargs), backward, given["input"], saved=(given["input"],))

    # ---- elementwise -------------------------------------------------------------------------------------------

    def _activation(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any, *, gate: bool) -> Tensor:
        x, _, _ = split_input(args, kwargs)
        asked = kwargs.get("inplace", args[-1] if len(args) > 1 else False) is True
        in_place = asked or func.__name__.endswith("_")
        output = self._computed(func, args, kwargs, unchanged, x, in_place=in_place)
        if gate:
            self._gates[output] = True
        return output

    def _sum(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Tensor:
        a, b = args if len(args) == 2 else (args[0], kwargs["other"])
        in_place = func.__name__ in IN_PLACE
        computed = partial(self._computed, func, args, kwargs, in_place=in_place)
        if not (depends_on_image(a) and depends_on_image(b)) and (depends_on_image(a) or not in_place):
            x = a if depends_on_image(a) else b
            shape = x.shape
            return computed(lambda relevance: (relevance.sum_to_size(shape),), x)
        if kwargs.get("alpha", 1) != 1 or func.__name__ in DIFFERENCES or not depends_on_image(a):
            raise _NoRule("lrp has no rule for a difference or a weighted sum of two signals; use ig or ixg here")
        if self.composite.captum:
            return computed(self._copy_to_summands([a, b]), a, b)
        total, stabiliser = a.detach() + b.detach(), self.composite.stabiliser
        z = stabilised(total, stabiliser)
        shares = [(x.detach() / z, x.shape) for x in (a, b)]  # computed now: a summand may be overwritten later

        def backward(relevance: Tensor) -> tuple[Tensor, ...]:
            self.tally.add(relevance / z, z - total)
            return tuple((relevance * share).sum_to_size(shape) for share, shape in shares)

        return computed(backward, a, b)

    def _computed(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Any,
        backward: Backward,
        *inputs: Tensor,
        in_place: bool,
    ) -> Tensor:
        """Return the value of an elementwise call with a backward; in place, it is written where the call writes it."""
        if not in_place:
            return custom_backward(partial(func, *detached(args), **detached(kwargs)), backward, *inputs)
        self._overwrites(inputs[0])

        def compute() -> None:
            func(*detached(args), **detached(kwargs))

        return custom_backward(compute, backward, *inputs, in_place=True)

    def _product(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Tensor:
        a, b = args if len(args) == 2 else (args[0], kwargs["other"])
        name, in_place = func.__name__, func.__name__ in IN_PLACE
        signal = self._signal(a, b)
        both = torch.broadcast_shapes(*(x.shape for x in (a, b) if isinstance(x, Tensor)))
        if (name in QUOTIENTS and depends_on_image(b)) or signal is None or both != signal.shape:
            raise _NoRule("lrp has no rule for a product or a quotient of two signals; use ig or ixg here")
        if in_place and signal is not a:
            raise _NoRule("lrp has no rule for a gate that is overwritten; use ig or ixg here")
        return self._computed(func, args, kwargs, unchanged, signal, in_place=in_place)

    def _signal(self, a: Any, b: Any) -> Tensor | None:
        """Return the factor that relevance belongs to; the other is a constant or a gate, and gets none."""
        factors: list[Tensor] = [x for x in (a, b) if depends_on_image(x)]
        if len(factors) == 1:
            return factors[0]
        gates = [x in self._gates for x in factors]
        if gates[0] != gates[1]:
            return factors[gates.index(False)]
        sizes = [x.numel() for x in factors]
        return None if sizes[0] == sizes[1] else factors[sizes.index(max(sizes))]

    def _copy_to_summands(self, summands: list[Tensor]) -> Backward:
        """Give all relevance to every summand, times its value where a layer takes it too, as captum's hooks do."""
        saved = [(self._uses_as_layer_input(x), x.detach().clone()) for x in summands]

        def backward(relevance: Tensor) -> tuple[Tensor, ...]:
            copies = [relevance * value if uses else relevance for uses, value in saved]
            return tuple(copy.sum_to_size(value.shape) for copy, (_, value) in zip(copies, saved, strict=True))

        return backward

    def _uses_as_layer_input(self, x: Tensor) -> list[bool]:
        """Return a list that is empty until a layer takes this tensor, in its present version, as its input."""
        uses: list[bool] = self._layer_inputs.setdefault(x, {}).setdefault(x._version, [])
        return uses
