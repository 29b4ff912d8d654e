r"""Rules of layer-wise relevance propagation for the blocks of a plain vision transformer.

A layer distributes the relevance of its output over its inputs. With :math:`a \oslash b` for a division that gives
zero where :math:`b = 0`, and biases left out everywhere:

- linear: :math:`R_x = x^+ (S W^+) + x^- (S W^-)` with :math:`S = R \oslash (x^+ W^+ + x^- W^-)`;
- product of matrices :math:`Z = A B`: :math:`R_A = \frac12 A \odot (S B^\top)` and
  :math:`R_B = \frac12 B \odot (A^\top S)` with :math:`S = R \oslash Z`;
- sum :math:`z = a + b`: :math:`R_a = a\,(R \oslash z)`, then scaled so that both parts together keep the relevance of
  the sum, in proportion to the size of each part's total;
- a tensor used twice: :math:`R = x\,(R_1 \oslash x + R_2 \oslash x)`;
- norms, activation functions, the softmax and layer scales: identity.

The older rules, used by partial LRP, normalise the positive and the negative part of a linear layer separately and
leave sums unscaled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.models.passes import spend


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A linear layer.

    Attributes:
        weight: (output, input).
        output: what it gave in the forward pass, (batch, token, output), None where that is not known.
        bias: which is part of that output, None for none.
    """

    weight: Tensor
    output: Tensor | None = None
    bias: Tensor | None = None

    def first(self, count: int) -> Layer:
        """Return the layer for the first tokens alone."""
        return self if self.output is None else replace(self, output=self.output[:, :count])


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """The tensors of one block in the forward pass: (batch, token, channel) or (batch, head, token, ·).

    Attributes:
        layers: of queries, keys and values (joined), the projection, and the MLP's two.
        stream: the block's input.
        normed1: the attention's input, after the first norm.
        q: queries, as they are multiplied with the keys.
        k: keys.
        v: values.
        attention: probabilities.
        context: attention times values, per head.
        attended: the attention's output, as it is added to the residual stream.
        normed2: the MLP's input, after the second norm.
        hidden: the input of the MLP's second layer.
        mlp: the MLP's output, as it is added to the residual stream.
    """

    layers: tuple[Layer, Layer, Layer, Layer]
    stream: Tensor
    normed1: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    attention: Tensor
    context: Tensor
    attended: Tensor
    normed2: Tensor
    hidden: Tensor
    mlp: Tensor

    def first(self, count: int) -> Trace:
        """Return the block behind its keys and values for its first tokens alone."""
        by_token = ("stream", "attended", "normed2", "hidden", "mlp")
        by_head = ("q", "attention", "context")
        joint, projection, first, second = self.layers
        return replace(
            self,
            layers=(joint, projection.first(count), first.first(count), second.first(count)),
            **{name: getattr(self, name)[:, :count] for name in by_token},
            **{name: getattr(self, name)[:, :, :count] for name in by_head},
        )


def divide(a: Tensor, b: Tensor) -> Tensor:
    """Divide by b + 1e-9, or by 1e-9 where that is zero; zero where b is.

    By signs, which are numbers: comparing and choosing takes several times as long on a processor.
    """
    shifted = b + 1e-9
    shifted.sub_(_is_not_zero(shifted).sub_(1), alpha=1e-9)
    return (a * _is_not_zero(b)).div_(shifted)


def _is_not_zero(values: Tensor) -> Tensor:
    """Return one where values are not zero, else zero."""
    return values.sign().abs_()


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules, newer or older.

    Attributes:
        joint: one denominator for the positive and the negative part of a linear layer, and sums rescaled; False for
            the older rules.
    """

    joint: bool = True

    def head(self, tokens: Tensor, gradient: Tensor) -> Tensor:
        """Distribute a relevance of one over the tokens that a linear head reads, (batch, token, channel).

        The gradient of the score is the head's weight, pooling included.
        """
        positive = tokens.clamp(min=0) * gradient.clamp(min=0)
        negative = tokens.clamp(max=0) * gradient.clamp(max=0)
        sums = [part.sum(dim=(1, 2), keepdim=True) for part in (positive, negative)]
        first, second = [sums[0] + sums[1]] * 2 if self.joint else sums
        return tokens * divide(divide(positive, first) + divide(negative, second), tokens)

    def linear(self, x: Tensor, layer: Layer, relevance: Tensor) -> Tensor:
        if self.joint and layer.output is not None:
            return self._linear_by_sizes(x, layer, relevance)
        parts, weights = _signed(x), _signed(layer.weight)
        if not self.joint:
            return self._separate_linear(parts, weights, relevance)
        # a sum is never negative, and where it is zero there is nothing to distribute to
        share = relevance / F.linear(parts, weights).add_(1e-9)
        positive, negative = (share @ weights).mul_(parts).chunk(2, dim=-1)
        return positive + negative

    def _linear_by_sizes(self, x: Tensor, layer: Layer, relevance: Tensor) -> Tensor:
        r"""Distribute with three products of the layer's size, where four are needed without its output.

        .. math:: 2 (x^+ W^+ + x^- W^-) = x W + |x| |W|

        and the first summand is the output that the forward pass computed.
        """
        assert layer.output is not None
        size = x.abs()
        weights = torch.cat([layer.weight, layer.weight.abs()], dim=-1)
        of_sizes = weights.chunk(2, dim=-1)[1]
        twice = F.linear(size, of_sizes, None if layer.bias is None else -layer.bias).add_(layer.output)
        share = relevance / twice.add_(2e-9)
        by_value, by_size = (share @ weights).chunk(2, dim=-1)
        return (by_value * x).addcmul_(by_size, size)

    def _separate_linear(self, parts: Tensor, weights: Tensor, relevance: Tensor) -> Tensor:
        """Distribute to the positive and to the negative part, each with a denominator of its own."""
        each = list(zip(parts.chunk(2, dim=-1), weights.chunk(2, dim=-1), strict=True))
        first, second = (x * (divide(relevance, F.linear(x, weight)) @ weight) for x, weight in each)
        return first + second

    def add(self, a: Tensor, b: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
        share = divide(relevance, a + b)
        first, second = a * share, b * share
        if not self.joint:
            return first, second
        sums = torch.stack([part.sum(dim=(1, 2), keepdim=True) for part in (first, second)])
        total, sizes = relevance.sum(dim=(1, 2), keepdim=True), sums.abs()
        scales = divide(divide(sizes, sizes.sum(dim=0).expand_as(sizes)) * total, sums)
        return first.mul_(scales[0]), second.mul_(scales[1])

    def product(self, a: Tensor, b: Tensor, product: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
        """Distribute the relevance of ``a @ b`` over both."""
        share = divide(relevance, product).mul_(0.5)
        return (share @ b.mT).mul_(a), (a.mT @ share).mul_(b)

    def clone(self, x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return divide(first + second, x).mul_(x)

    def attention_relevance(self, traces: Sequence[Trace], relevance: Tensor, depth: int) -> Iterator[Tensor]:
        """Yield the relevance of each block's probabilities, (batch, head, to, from), from the last block down.

        `relevance` is that of the tokens which leave the last block, or of its first ones if the others have none.
        """
        for trace in reversed(traces):
            inside = self._within(trace, relevance, depth)
            yield _all_tokens(inside.attention, trace)
            if trace is not traces[0]:
                relevance = self._entering(trace, inside)

    def stream_relevance(self, traces: Sequence[Trace], relevance: Tensor, depth: int) -> Iterator[Tensor]:
        """Yield the relevance of what enters each block, (batch, token, channel), from the last block down."""
        for trace in reversed(traces):
            relevance = self._entering(trace, self._within(trace, relevance, depth))
            yield relevance

    def _within(self, trace: Trace, relevance: Tensor, depth: int) -> _Within:
        """Propagate from a block's output to its attention."""
        # four products with every weight at most, where a backward pass has two
        spend(backward=2 * len(relevance) / depth)
        trace = trace.first(relevance.shape[1])
        _, projection, first, second = trace.layers
        middle = trace.stream + trace.attended
        skip, mlp = self.add(middle, trace.mlp, relevance)
        mlp = self.linear(trace.normed2, first, self.linear(trace.hidden, second, mlp))
        skip, attended = self.add(trace.stream, trace.attended, self.clone(middle, skip, mlp))
        context = _split(self.linear(_merge(trace.context), projection, attended), trace.v)
        return _Within(skip, *self.product(trace.attention, trace.v, trace.context, context))

    def _entering(self, trace: Trace, inside: _Within) -> Tensor:
        """Propagate from a block's attention to its input."""
        q, keys = trace.q[:, :, : inside.skip.shape[1]], trace.k.mT
        of_queries, of_keys = self.product(q, keys, q @ keys, inside.attention)
        heads = (_all_tokens(of_queries, trace), of_keys.mT, inside.values)
        joint = torch.cat([_merge(each) for each in heads], dim=-1)
        skip = _all_tokens(inside.skip, trace)
        return self.clone(trace.stream, skip, self.linear(trace.normed1, trace.layers[0], joint))


@dataclass(frozen=True, slots=True, eq=False)
class _Within:
    """The relevance inside a block.

    Attributes:
        skip: of the skip connection past the attention.
        attention: of the probabilities.
        values: of the values.
    """

    skip: Tensor
    attention: Tensor
    values: Tensor


def _all_tokens(relevance: Tensor, trace: Trace) -> Tensor:
    """Add the tokens that have no relevance to (..., token, ·)."""
    missing = trace.stream.shape[1] - relevance.shape[-2]
    return F.pad(relevance, (0, 0, 0, missing)) if missing else relevance


def _signed(values: Tensor) -> Tensor:
    """Return the positive part of (..., channel) and the negative part behind it, (..., 2 · channel).

    One product with both takes less time than two with either.
    """
    parts = values.new_empty(*values.shape[:-1], 2 * values.shape[-1])
    positive, negative = parts.chunk(2, dim=-1)
    torch.clamp(values, min=0, out=positive)
    torch.clamp(values, max=0, out=negative)
    return parts


def _merge(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).flatten(2)


def _split(tokens: Tensor, like: Tensor) -> Tensor:
    heads: Tensor = tokens.unflatten(2, (like.shape[1], -1))
    return heads.transpose(1, 2)
