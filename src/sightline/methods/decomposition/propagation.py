"""Propagate a decomposition of the tokens through plain pre-norm blocks up to the logits.

The state holds, for each source token, its contribution to every token, (source, token, channel); contributions sum to
the tokens. Every non-linear step is frozen at the values of the image's own forward pass, which makes it linear: norms
keep their standard deviation, attention its probabilities, the activation its slope. Then all sources are propagated as
a batch is. Biases, which belong to no token, are collected in a source of their own or distributed over the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from sightline.errors import UnsupportedModel
from sightline.models.passes import spend
from sightline.models.vit.adapter import VisionTransformer
from sightline.models.vit.parts import HeldNorm, Parts, entry_norm, hold, read_parts

Slope = Literal["zero_order", "taylor"]
AddBias = Callable[[Tensor, Tensor], Tensor]  # state (source, token, channel), bias (channel,) or (token, channel)
CHUNK = 2**24  # numbers of the widest state in memory at once


def to_no_source(state: Tensor, bias: Tensor) -> Tensor:
    """Leave the bias out: the sources are tokens, and biases are collected elsewhere."""
    return state


def to_every_source(state: Tensor, bias: Tensor) -> Tensor:
    """Add the bias: the only source is the one that collects them."""
    return state + bias


def by_abs_dot(state: Tensor, bias: Tensor) -> Tensor:
    """Distribute the bias over the sources in proportion to the magnitude of their dot product with it."""
    weights = (state * bias).sum(dim=-1, keepdim=True).abs()
    total = weights.sum(dim=0, keepdim=True)
    shares = torch.where(total > 0, weights / total.where(total > 0, 1.0), 1 / len(state))
    return state + shares * bias


@dataclass(frozen=True, eq=False)
class LinearBlock:
    """A block, linearised at the activations of one image.

    Attributes:
        norm1: the first norm.
        attention: probabilities, (head, to, from).
        value: weight of the map that makes values, (head, channel of a head, channel).
        projection: weight of the output projection, (channel, head, channel of a head), layer scale included.
        attention_bias: the bias that attention adds, from values and projection.
        norm2: the second norm.
        first: weight and bias of the MLP's first layer.
        slope: of the activation, (token, hidden).
        rest: the activation minus slope times argument, (token, hidden).
        second: weight and bias of the MLP's second layer, layer scale included.
    """

    norm1: HeldNorm
    attention: Tensor
    value: Tensor
    projection: Tensor
    attention_bias: Tensor
    norm2: HeldNorm
    first: tuple[Tensor, Tensor]
    slope: Tensor
    rest: Tensor
    second: tuple[Tensor, Tensor]

    def propagate(self, state: Tensor, add: AddBias) -> Tensor:
        """Return the state after the block."""
        values = torch.einsum("sjc,hdc->shjd", add(self.norm1.linear(state), self.norm1.bias), self.value)
        written = torch.einsum("shid,ohd->sio", self.attention @ values, self.projection)
        state = add(state + written, self.attention_bias)
        hidden = add(self.norm2.linear(state), self.norm2.bias) @ self.first[0].T
        active = add(add(hidden, self.first[1]) * self.slope, self.rest)
        return state + add(active @ self.second[0].T, self.second[1])


def linear_blocks(parts: Parts, slope: Slope) -> list[LinearBlock]:
    """Linearise a block at the activations of each image of the batch."""
    parts.check_sum()
    heads = parts.values.shape[1]
    (value, value_bias), (projection, bias) = parts.value_map, parts.projection
    bias = bias + torch.einsum("ohd,hd->o", projection, value_bias.unflatten(0, (heads, -1)))
    first, activation, second = parts.mlp_layers
    like = parts.tokens
    hidden = F.linear(parts.seen["norm2"], first.weight.to(like), None if first.bias is None else first.bias.to(like))
    slopes, rests = _linear_activation(parts, activation, hidden, slope)
    gain = like.new_ones(()) if parts.block.scale2 is None else parts.block.scale2.detach().to(like)
    return [
        LinearBlock(
            parts.norm1.at(image),
            parts.probabilities[image],
            value.unflatten(0, (heads, -1)),
            projection,
            bias,
            parts.norm2.at(image),
            _weight_and_bias(first, like),
            slopes[image],
            rests[image],
            _weight_and_bias(second, like, gain),
        )
        for image in range(len(like))
    ]


def _weight_and_bias(layer: nn.Linear, like: Tensor, gain: Tensor | None = None) -> tuple[Tensor, Tensor]:
    weight = layer.weight.detach().to(like)
    bias = like.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach().to(like)
    return (weight, bias) if gain is None else (weight * gain.expand(len(weight))[:, None], bias * gain)


def _linear_activation(parts: Parts, activation: nn.Module, hidden: Tensor, slope: Slope) -> tuple[Tensor, Tensor]:
    """Write an activation as slope times its argument plus a remainder."""
    with torch.inference_mode(False), torch.enable_grad():
        argument = hidden.detach().clone().requires_grad_()
        value = activation(argument)
        derivative = torch.autograd.grad(value.sum(), argument)[0]
    value = value.detach()
    if slope == "taylor":
        return derivative, value - derivative * hidden
    if activation(hidden.new_zeros(1)).abs().item() > 0:
        raise UnsupportedModel(
            f"the activation {type(activation).__name__} of {parts.name} is not zero at zero, so it is no slope times "
            "its argument; write gelu='taylor'"
        )
    return torch.where(hidden == 0, derivative, value / hidden.where(hidden != 0, 1.0)), torch.zeros_like(hidden)


# ---- before and after the blocks -------------------------------------------------------------------------------------


def linear_entry_norm(model: VisionTransformer, tokens: Tensor) -> HeldNorm | None:
    """Linearise the norm that precedes the blocks at the tokens of one image; None where there is none."""
    norm = entry_norm(model)
    if norm is None:
        return None
    if not isinstance(norm, nn.LayerNorm):
        raise UnsupportedModel(
            f"{model.name} has a {type(norm).__name__} before its blocks, not a layer norm; write form='backward'"
        )
    return hold(norm, tokens)


class _FrozenNorms(TorchFunctionMode):
    """Record the standard deviations of layer norms in the order they run, or replay those recorded."""

    def __init__(self, recorded: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self.recording = recorded is None
        self.deviations = [] if recorded is None else list(recorded)

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in (F.layer_norm, torch.layer_norm):
            return self._norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _norm(
        self,
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
        cudnn_enable: bool = True,
    ) -> Tensor:
        axes = tuple(range(-len(normalized_shape), 0))
        if self.recording:
            self.deviations.append((input.var(dim=axes, unbiased=False, keepdim=True) + eps).sqrt())
            deviation = self.deviations[-1]
        else:
            deviation = self.deviations.pop(0)
        normed = (input - input.mean(dim=axes, keepdim=True)) / deviation
        normed = normed if weight is None else normed * weight
        return normed if bias is None else normed + bias


@dataclass(frozen=True, eq=False)
class LinearHead:
    """The layers after the blocks, made affine by the norms' standard deviations of one image.

    Attributes:
        model: the model.
        deviations: the standard deviations of its norms.
        logits: of the image, shape (1, class).
    """

    model: VisionTransformer
    deviations: tuple[Tensor, ...]
    logits: Tensor

    def __call__(self, state: Tensor) -> Tensor:
        """Return the logits of (batch, token, channel)."""
        with _FrozenNorms(self.deviations):
            return self.model.finish(state.to(self.model.dtype)).to(state)

    def propagate(self, state: Tensor, add: AddBias) -> Tensor:
        """Return each source's contribution to the logits, (source, class)."""
        bias = self(torch.zeros_like(state[:1]))
        return add((self(state) - bias)[:, None], bias)[:, 0]


def linear_head(model: VisionTransformer, tokens: Tensor) -> LinearHead:
    """Linearise the layers after the blocks at the last block's output for one image, (1, token, channel)."""
    with _FrozenNorms() as mode:
        logits = model.finish(tokens.to(model.dtype)).to(tokens)
    head = LinearHead(model, tuple(mode.deviations), logits)
    error = 2 * head(tokens / 2) - head(torch.zeros_like(tokens)) - logits
    if error.abs().max() > torch.finfo(model.dtype).eps ** 0.5 * logits.abs().max():
        raise UnsupportedModel(
            f"what {model.name} does after its blocks is not linear, norms apart, so its logits cannot be taken apart; "
            "write form='backward'"
        )
    return head


# ---- the whole network -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LogitContributions:
    """The contributions of each token, and of the biases together, to the logits of one image.

    Attributes:
        tokens: shape (token, class).
        bias: shape (class,); zeros where biases were distributed over the tokens.
    """

    tokens: Tensor
    bias: Tensor


class Decomposition:
    """The forward pass of a batch, linearised, to be decomposed from any block on."""

    def __init__(self, model: VisionTransformer, images: Tensor, slope: Slope, start: int = 0) -> None:
        parts = read_parts(model, images, start)
        self.model = model
        self.origins = {start + index: part.origin for index, part in enumerate(parts)}
        self.blocks = {start + index: linear_blocks(part, slope) for index, part in enumerate(parts)}
        self.heads = [linear_head(model, tokens[None]) for tokens in parts[-1].output]
        self.logits = torch.cat([head.logits for head in self.heads])

    def of_logits(self, image: int, start: int, *, abs_dot: bool = False) -> LogitContributions:
        """Decompose the logits of one image into the tokens that enter block `start`."""
        tokens = self.origins[start][image]
        if abs_dot:  # every bias is distributed over all sources, so they are propagated together
            contributions = self._propagate(_separated(tokens, 0, len(tokens)), by_abs_dot, image, start)
            return LogitContributions(contributions, torch.zeros_like(contributions[0]))
        step = max(1, CHUNK // self.blocks[start][image].slope.numel())
        chunks = [_separated(tokens, first, step) for first in range(0, len(tokens), step)]
        contributions = torch.cat([self._propagate(chunk, to_no_source, image, start) for chunk in chunks])
        bias = self._propagate(torch.zeros_like(tokens)[None], to_every_source, image, start)
        return LogitContributions(contributions, bias[0])

    def _propagate(self, state: Tensor, add: AddBias, image: int, start: int) -> Tensor:
        spend(forward=len(state) * (1 - start / self.model.depth))
        if start == 0 and (norm := linear_entry_norm(self.model, self.origins[0][image])) is not None:
            state = add(norm.linear(state), norm.bias)
        for index in range(start, self.model.depth):
            state = self.blocks[index][image].propagate(state, add)
        return self.heads[image].propagate(state, add)


def _separated(tokens: Tensor, first: int, count: int) -> Tensor:
    """Return one state for each of some tokens, (token, channel), zero except for that token."""
    rows = torch.arange(first, min(first + count, len(tokens)), device=tokens.device)
    state = tokens.new_zeros(len(rows), *tokens.shape)
    state[rows - first, rows] = tokens[rows]
    return state
