r"""Record every bias that is added while a model runs, so that a gradient can be taken there.

A bias is recorded where it acts: at the output of the call that adds it, whichever module or function makes the call,
so a module used twice has two terms. The bias of a batch norm is what it adds in all:
:math:`\beta - \gamma\mu / \sqrt{\sigma^2 + \epsilon}`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from sightline.models.vit.multi_head import fused, multi_head

_ARGUMENTS: dict[Callable[..., Any], tuple[str, ...]] = {
    F.conv1d: ("input", "weight", "bias"),
    F.conv2d: ("input", "weight", "bias"),
    F.conv_transpose2d: ("input", "weight", "bias"),
    F.linear: ("input", "weight", "bias"),
    F.layer_norm: ("input", "normalized_shape", "weight", "bias"),
    F.group_norm: ("input", "num_groups", "weight", "bias"),
    F.batch_norm: ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"),
}
_CHANNELS_LAST = (F.linear, F.layer_norm)


@dataclass(frozen=True, eq=False, slots=True)
class BiasTerm:
    """One bias as it was added in a forward pass.

    Attributes:
        output: what the call returned, bias included; part of the graph.
        bias: shaped so that it can be multiplied with the output.
        function: the call that added it.
        owner: the weight that was used, or the running mean of a batch norm; None if there was neither.
        time: what `clock` returned when it was added, for instance the index of the block.
        batch_first: whether tokens come as (batch, token, channel), or as (token, batch, channel).
    """

    output: Tensor
    bias: Tensor
    function: Callable[..., Any]
    owner: Tensor | None
    time: int
    batch_first: bool = True

    @property
    def channels_last(self) -> bool:
        """Whether the last axis holds the channels."""
        return self.function in _CHANNELS_LAST

    def token_scores(self, gradient: Tensor) -> Tensor:
        """Return the bias times the gradient at it, summed over channels: (batch, token), or (batch,) if pooled."""
        terms = (gradient * self.bias).sum(dim=-1)
        return terms if self.batch_first else terms.mT


@contextmanager
def watch_biases(clock: Callable[[], int] = lambda: 0) -> Iterator[list[BiasTerm]]:
    """Record the biases of everything that runs inside; `clock` says how far the model has come."""
    terms: list[BiasTerm] = []
    with _Recorder(terms, clock):
        yield terms


class _Recorder(TorchFunctionMode):
    def __init__(self, terms: list[BiasTerm], clock: Callable[[], int]) -> None:
        super().__init__()
        self.terms = terms
        self.clock = clock
        self.batch_first = True

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            return self._inside(args, kwargs)
        output = func(*args, **kwargs)
        if func not in _ARGUMENTS or not torch.is_grad_enabled():
            return output
        given = dict(zip(_ARGUMENTS[func], args, strict=False)) | kwargs
        bias = _bias(func, given)
        if bias is None:
            return output
        if not output.requires_grad:
            output = output.detach().requires_grad_()
        shaped = bias if func in _CHANNELS_LAST else bias.reshape(-1, *[1] * (output.ndim - 2))
        owner = given.get("running_mean") if func is F.batch_norm else given.get("weight")
        self.terms.append(BiasTerm(output, shaped, func, owner, self.clock(), self.batch_first))
        return output.clone()  # the next call may write in place

    def _inside(self, args: tuple[Any, ...], kwargs: Any) -> Any:
        self.batch_first = False  # nn.MultiheadAttention puts its tokens first before it calls this
        try:
            with self:
                return multi_head(fused, args, kwargs)
        finally:
            self.batch_first = True


def _bias(func: Callable[..., Any], given: dict[str, Any]) -> Tensor | None:
    """Return what a call adds to its linear part, None for nothing."""
    bias: Tensor | None = given.get("bias")
    mean: Tensor | None = given.get("running_mean")
    if func is F.batch_norm and mean is not None:
        scale = (given["running_var"] + given.get("eps", 1e-5)).rsqrt()
        scale = scale if given.get("weight") is None else scale * given["weight"]
        bias = -mean * scale if bias is None else bias - mean * scale
    return None if bias is None else bias.detach()
