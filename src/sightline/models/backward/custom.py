"""Calls whose way back is of our own making: a network's values, with relevance instead of gradients behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

Back = Callable[..., tuple[Tensor, ...]]


def ruled(
    make: Callable[[], Tensor], back: Back, *inputs: Tensor, keep: tuple[Tensor, ...] = (), replace: bool = False
) -> Tensor:
    """Compute a call, and let `back` hand what comes back at its output on to the inputs.

    Args:
        make: computes the value, on tensors that nobody else sees.
        back: is given what came back, and what was kept; returns what goes to each input.
        inputs: whom to hand on to.
        keep: tensors to keep until then; autograd complains if somebody writes into one meanwhile.
        replace: write the value into the first input, as an in-place call does.
    """
    output: Tensor = _Ruled.apply(make, back, keep, replace, *inputs)  # type: ignore[no-untyped-call]
    return output


class _Ruled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, make: Any, back: Any, keep: tuple[Tensor, ...], replace: bool, *inputs: Tensor) -> Tensor:
        ctx.back = back
        ctx.save_for_backward(*keep)
        value: Tensor = make()
        if not replace:
            return value
        ctx.mark_dirty(inputs[0])
        return inputs[0].copy_(value)

    @staticmethod
    def backward(ctx: Any, *came: Tensor) -> tuple[Any, ...]:
        return None, None, None, None, *ctx.back(*came, *ctx.saved_tensors)


def pass_on(came: Tensor) -> tuple[Tensor]:
    """Hand on what came."""
    return (came,)


def run(func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Call a function on copies of its tensors, so that it may write into them."""
    return func(*map(_copy, args), **{key: _copy(x) for key, x in kwargs.items()})


def _copy(x: Any) -> Any:
    return x.detach().clone() if traced(x) else x


def traced(x: Any) -> bool:
    """Tell whether a value depends on the image."""
    return isinstance(x, Tensor) and x.requires_grad and not isinstance(x, nn.Parameter)


def constant(x: Any) -> Any:
    """Cut a tensor, or a list of them, off the graph; leave anything else as it is."""
    if type(x) in (list, tuple):
        return type(x)(map(constant, x))
    return x.detach() if isinstance(x, Tensor) and x.requires_grad else x


def tensors(x: Any) -> Iterator[Tensor]:
    """Yield the tensors among the arguments of a call, or in its result."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, list | tuple):
        for part in x:
            yield from tensors(part)
    elif isinstance(x, dict):
        yield from tensors(tuple(x.values()))


def named(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name."""
    return dict(zip(names, args, strict=False)) | kwargs


def split(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, tuple[Any, ...], dict[str, Any]]:
    """Part the arguments of a call into its input and the rest."""
    if args:
        return args[0], args[1:], kwargs
    return kwargs["input"], (), {key: value for key, value in kwargs.items() if key != "input"}
