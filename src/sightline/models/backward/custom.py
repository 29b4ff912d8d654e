"""Calls with a custom backward: the network's own values forward, a rule of an attribution method backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

Backward = Callable[..., tuple[Tensor, ...]]


def custom_backward(
    compute: Callable[[], Tensor | None],
    backward: Backward,
    *inputs: Tensor,
    saved: tuple[Tensor, ...] = (),
    in_place: bool = False,
) -> Tensor:
    """Compute a call, and propagate what arrives at its output to its inputs by `backward`.

    Args:
        compute: returns the value, from tensors that nothing else uses; or None where it wrote it into the first input.
        backward: is given the gradient of the output and the saved tensors; returns the gradient of each input.
        inputs: the tensors that get a gradient.
        saved: tensors kept for the backward pass; autograd raises if one is overwritten meanwhile.
        in_place: the value is written into the first input, as an in-place call does.
    """
    output: Tensor = _CustomBackward.apply(compute, backward, saved, in_place, *inputs)  # type: ignore[no-untyped-call]
    return output


class _CustomBackward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, compute: Any, backward: Any, saved: tuple[Tensor, ...], in_place: bool, *inputs: Tensor
    ) -> Tensor:
        ctx.custom = backward
        ctx.save_for_backward(*saved)
        value: Tensor | None = compute()
        if not in_place:
            return value  # type: ignore[return-value]
        ctx.mark_dirty(inputs[0])
        return inputs[0] if value is None else inputs[0].copy_(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        return None, None, None, None, *ctx.custom(*gradients, *ctx.saved_tensors)


def unchanged(gradient: Tensor) -> tuple[Tensor]:
    """Propagate a gradient as it is: the backward of the identity."""
    return (gradient,)


def run(func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Call a function on copies of its tensors, so that it may write into them."""
    return func(*map(_copy, args), **{key: _copy(x) for key, x in kwargs.items()})


def _copy(x: Any) -> Any:
    return x.detach().clone() if depends_on_image(x) else x


def depends_on_image(x: Any) -> bool:
    """Tell whether a value was computed from the image, and is not a parameter or a constant."""
    return isinstance(x, Tensor) and x.requires_grad and not isinstance(x, nn.Parameter)


def detached(x: Any) -> Any:
    """Cut a tensor, or a list of them, off the graph; leave anything else as it is."""
    if type(x) in (list, tuple):
        return type(x)(map(detached, x))
    return x.detach() if isinstance(x, Tensor) and x.requires_grad else x


def tensors(x: Any) -> Iterator[Tensor]:
    """Yield the tensors among the arguments of a call, or in its result."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, list | tuple):
        for item in x:
            yield from tensors(item)
    elif isinstance(x, dict):
        yield from tensors(tuple(x.values()))


def named(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name."""
    return dict(zip(names, args, strict=False)) | kwargs


def split_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, tuple[Any, ...], dict[str, Any]]:
    """Split the arguments of a call into its input and the rest."""
    if args:
        return args[0], args[1:], kwargs
    return kwargs["input"], (), {key: value for key, value in kwargs.items() if key != "input"}
