"""Run single blocks with an attention of one's own, without what a whole model's call brings along.

A plain block is norm, queries, keys and values, attention, projection, norm and MLP with two skip connections. Its
parts are called one by one, so that queries, keys and values can be had alone. That a block is plain is found out by
the numbers: on the blank image its parts must give what the block gave. Any other block is run by the model itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.models.capture import Attend
from sightline.models.vit.adapter import Block, VisionTransformer


@dataclass(frozen=True, eq=False)
class PlainBlock:
    """The parts of a plain block.

    Attributes:
        block: its modules.
        weight: of the linear map that makes queries, keys and values, (3 · channel, channel).
        bias: of that map.
        heads: how many.
        scales: what the outputs of attention and MLP are multiplied by, None for one.
        gelu: the MLP's activation function if it may be computed in place between two linear layers, else None.
    """

    block: Block
    weight: Tensor
    bias: Tensor | None
    heads: int
    scales: tuple[Tensor | None, Tensor | None]
    gelu: nn.GELU | None

    def queries_keys_values(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values of tokens, (batch, head, token, channel) each."""
        return self.by_head(self.joint(tokens))

    def joint(self, tokens: Tensor) -> Tensor:
        """Return the queries, keys and values of tokens, one behind the other, (..., 3 · channel)."""
        normed = tokens if self.block.norm1 is None else self.block.norm1(tokens)
        return F.linear(normed, self.weight, self.bias)

    def by_head(self, joint: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Divide what `joint` returned for (batch, token, channel), into (batch, head, token, channel) each."""
        q, k, v = joint.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        return q, k, v

    def after(self, tokens: Tensor, context: Tensor) -> Tensor:
        """Return what leaves the block, from what entered it and from the heads' outputs."""
        block, (scale1, scale2) = self.block, self.scales
        assert block.projection is not None
        attended = block.projection(context.transpose(1, 2).flatten(2))
        tokens = tokens + attended if scale1 is None else torch.addcmul(tokens, attended, scale1)
        mlp = self._mlp(tokens if block.norm2 is None else block.norm2(tokens))
        return tokens + mlp if scale2 is None else torch.addcmul(tokens, mlp, scale2)

    def _mlp(self, normed: Tensor) -> Tensor:
        """Run the MLP, its activation function in place: another tensor of that size takes long to fill."""
        block = self.block
        assert block.mlp is not None
        if self.gelu is None:
            return block.mlp(normed)  # type: ignore[no-any-return]
        assert block.mlp_layers is not None
        first, _, second = block.mlp_layers
        return second(torch.ops.aten.gelu_(first(normed), approximate=self.gelu.approximate))  # type: ignore[no-any-return]

    def attend(self, tokens: Tensor, attention: Attend) -> Tensor:
        """Run the block with this attention."""
        q, k, v = self.queries_keys_values(tokens)
        return self.after(tokens, attention(q, k, v, q.shape[-1] ** -0.5))


@dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks of a model, run one at a time.

    Attributes:
        model: the transformer.
        plain: those that are plain, by index.
    """

    model: VisionTransformer
    plain: Mapping[int, PlainBlock]

    def run(self, tokens: Tensor, attentions: Mapping[int, Attend], keep: Tensor) -> Tensor:
        """Run prefix tokens and the patches `keep` through consecutive blocks, each with an attention of its own."""
        others = {index: attention for index, attention in attentions.items() if index not in self.plain}
        with self.model.attend(others) if others else nullcontext():
            for index, attention in attentions.items():
                if index in others:
                    tokens = self.model.step(tokens, index, keep)
                else:
                    tokens = self.plain[index].attend(tokens, attention)
        return tokens

    def run_whole(self, tokens: Tensor, last: int, kept: range) -> tuple[Tensor, dict[int, Tensor], dict[int, Tensor]]:
        """Run whole sequences through the blocks before `last`; return them, and keys and values of the blocks `kept`.

        Keys and values are (batch, head, token, channel).
        """
        if not all(index in self.plain for index in range(last)):
            with self.model.capture(*(f"block.{index}.{name}" for index in kept for name in "kv")) as seen:
                for index in range(last):
                    tokens = self.model.step(tokens, index, None)
            keys, values = ({index: seen[f"block.{index}.{name}"] for index in kept} for name in "kv")
            return tokens, keys, values
        keys, values = {}, {}
        for index in range(last):
            q, k, v = self.plain[index].queries_keys_values(tokens)
            if index in kept:
                keys[index], values[index] = k, v
            tokens = self.plain[index].after(tokens, F.scaled_dot_product_attention(q, k, v))
        return tokens, keys, values

    def keys_and_values(self, tokens: Tensor, index: int, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the keys and values of tokens that enter a block, (batch, head, token, channel) each."""
        if index in self.plain:
            return self.plain[index].queries_keys_values(tokens)[1:]
        return self.model.keys_and_values(tokens, index, keep)


def plain_block(
    block: Block, tokens: Tensor, queries: Tensor, keys: Tensor, values: Tensor, output: Tensor
) -> PlainBlock | None:
    """Return the parts of a block if they turn `tokens` into these tensors, else None."""
    weight, heads, channels = block.queries_keys_values, keys.shape[1], tokens.shape[-1]
    known = weight is not None and weight.shape == (3 * heads * keys.shape[-1], channels)
    if not known or not isinstance(block.projection, nn.Linear) or block.mlp is None:
        return None
    assert weight is not None
    bias, scales = _detached(block.queries_keys_values_bias), (block.scale1, block.scale2)
    plain = PlainBlock(block, weight.detach(), bias, heads, scales, _gelu(block))
    found = plain.queries_keys_values(tokens)
    if not all(_agree(got, want) for got, want in zip(found, (queries, keys, values), strict=True)):
        return None
    context = F.scaled_dot_product_attention(*found)
    return plain if _agree(plain.after(tokens, context), output) else None


def _gelu(block: Block) -> nn.GELU | None:
    """Return the activation function of a plain MLP that nobody watches if it is the GELU, else None."""
    if block.mlp is None or block.mlp_layers is None:
        return None
    first, activation, second = block.mlp_layers
    watched = any(m._forward_hooks or m._forward_pre_hooks for m in block.mlp.modules())
    others = len([*block.mlp.parameters()]) - len([*first.parameters(), *second.parameters()])  # such as a norm's
    linear = type(first) is nn.Linear and type(second) is nn.Linear
    return activation if linear and type(activation) is nn.GELU and not watched and not others else None


def _agree(got: Tensor, want: Tensor) -> bool:
    rounding = torch.finfo(want.dtype).eps ** 0.75
    return got.shape == want.shape and bool((got - want).abs().max() <= rounding * want.abs().max())


def _detached(values: Tensor | None) -> Tensor | None:
    return None if values is None else values.detach()
