r"""What a pre-norm block computes, part by part, read while the model runs and checked to add up.

.. math:: \text{middle} = x + s_1 \odot \text{attention}(\text{norm}_1(x)), \qquad
    \text{output} = \text{middle} + s_2 \odot \text{MLP}(\text{norm}_2(\text{middle}))

Methods that decompose a block need it to be made of these parts and nothing else. That is checked by the numbers: the
parts together must give the block's output, so a gate or a norm in an unexpected place is detected whichever library it
comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.errors import UnsupportedModel
from sightline.models.passes import full_precision, shared
from sightline.models.vit.adapter import Block, VisionTransformer

_PLACES = ("probabilities", "v", "norm1", "attention", "norm2", "mlp", "output")


@dataclass(frozen=True, eq=False)
class HeldNorm:
    r"""A layer norm with its standard deviation held at the true value, which leaves an affine map of each token.

    .. math:: \text{norm}(y) = \frac{y - \bar y}{\sigma} \odot w + b

    Attributes:
        deviation: :math:`\sigma`, one number per token, shape (..., token, 1).
        weight: w.
        bias: b.
    """

    deviation: Tensor
    weight: Tensor
    bias: Tensor

    def linear(self, vectors: Tensor) -> Tensor:
        """Apply the map without its bias to (..., token, channel)."""
        return (vectors - vectors.mean(dim=-1, keepdim=True)) / self.deviation * self.weight

    def at(self, image: int) -> HeldNorm:
        """Return the norm of one image of the batch."""
        return HeldNorm(self.deviation[image], self.weight, self.bias)


@dataclass(frozen=True, eq=False)
class Parts:
    """The activations of one block on one batch.

    Attributes:
        block: its modules.
        name: what to call it in messages.
        origin: what a method started at this block starts from, shape (batch, token, channel): the tokens that entered,
            for the first block before any norm that precedes the blocks.
        tokens: what entered the block itself, of the same shape.
        seen: the tensors at its sites, by place.
    """

    block: Block
    name: str
    origin: Tensor
    tokens: Tensor
    seen: Mapping[str, Tensor]

    @property
    def probabilities(self) -> Tensor:
        """Attention probabilities, shape (batch, head, to, from)."""
        return self.seen["probabilities"]

    @property
    def values(self) -> Tensor:
        """The heads' values, shape (batch, head, token, channel of a head)."""
        return self.seen["v"]

    @property
    def attended(self) -> Tensor:
        """What the attention added to the residual stream, shape (batch, token, channel)."""
        return self._scaled(self._get("attention"), self.block.scale1)

    @property
    def middle(self) -> Tensor:
        """The residual stream between attention and MLP."""
        return self.tokens + self.attended

    @property
    def output(self) -> Tensor:
        """What left the block."""
        return self.seen["output"]

    # ---- linear maps -------------------------------------------------------------------------------------------

    @cached_property
    def projection(self) -> tuple[Tensor, Tensor]:
        """Weight (channel, head, channel of a head) and bias of the output projection, layer scale included."""
        module = self.block.projection
        if not isinstance(module, nn.Linear):
            raise self._unsupported("its attention has no linear output projection")
        heads, size = self.values.shape[1], self.values.shape[-1]
        if heads != self.probabilities.shape[1] or heads * size != module.in_features:
            raise self._unsupported(
                f"its {self.probabilities.shape[1]} heads share {heads} sets of values, or the projection mixes more "
                "than heads"
            )
        weight, bias = self._like(module.weight), self._bias(module.bias, module.out_features)
        context = (self.probabilities @ self.values).transpose(1, 2).flatten(2)
        self._agree(F.linear(context, weight, bias), self._get("attention"), "its attention does more than attend")
        if (scale := self.block.scale1) is not None:
            weight, bias = weight * self._like(scale)[:, None], bias * self._like(scale)
        return weight.unflatten(1, (heads, size)), bias

    def written(self, values: Tensor | None = None) -> Tensor:
        """Return what each head writes for each token it attends to fully, shape (batch, head, token, channel)."""
        return torch.einsum("bhnd,ohd->bhno", self.values if values is None else values, self.projection[0])

    @cached_property
    def value_map(self) -> tuple[Tensor, Tensor]:
        """Weight (head · channel of a head, channel) and bias of the map from the first norm to the values."""
        linear, size = self.block.value, self.values.shape[1] * self.values.shape[-1]
        if linear is None or linear[0].shape != (size, self.tokens.shape[-1]):
            raise self._unsupported("the map that makes its values cannot be found")
        weight, bias = self._like(linear[0]), self._bias(linear[1], size)
        values = F.linear(self._get("norm1"), weight, bias).unflatten(-1, self.values.shape[1::2]).transpose(1, 2)
        self._agree(values, self.values, "its values are not a linear map of the first norm")
        return weight, bias

    @cached_property
    def homogeneous_values(self) -> Tensor:
        """The values without what biases put into them: the norm's, and the map's own."""
        shifted = self._get("norm1") - self.norm1.bias
        values: Tensor = F.linear(shifted, self.value_map[0]).unflatten(-1, self.values.shape[1::2])
        return values.transpose(1, 2)

    @cached_property
    def norm1(self) -> HeldNorm:
        return self._norm(self.block.norm1, self.tokens, "norm1")

    @cached_property
    def norm2(self) -> HeldNorm:
        return self._norm(self.block.norm2, self.middle, "norm2")

    @cached_property
    def mlp_layers(self) -> tuple[nn.Linear, nn.Module, nn.Linear]:
        """The three layers of the MLP."""
        first, activation, second = self.block.mlp_layers or (None, None, None)
        if not isinstance(first, nn.Linear) or not isinstance(second, nn.Linear) or activation is None:
            raise self._unsupported("its MLP is not linear, activation, linear")
        if self._get("norm2").shape[-1] != first.in_features or first.out_features != second.in_features:
            raise self._unsupported("its MLP is gated")
        exact = self._get("norm2").to(first.weight.dtype)
        self._agree(
            second(activation(first(exact))), self._get("mlp"), "its MLP does more than linear, activation, linear"
        )
        return first, activation, second

    def check_sum(self) -> None:
        """Refuse a block whose output is not what went in, plus attention, plus MLP."""
        added = self._scaled(self._get("mlp"), self.block.scale2)
        size = self.tokens.abs() + self.attended.abs() + added.abs()
        wrong = (self.middle + added - self.output).abs() > self._tolerance * size
        if wrong.any():
            raise self._unsupported("it gives more than its input plus attention plus MLP")

    # ---- checking ----------------------------------------------------------------------------------------------

    def _get(self, place: str) -> Tensor:
        if place not in self.seen:
            raise self._unsupported(f"it has no {place} of its own")
        return self.seen[place]

    def _norm(self, norm: nn.Module | None, tokens: Tensor, place: str) -> HeldNorm:
        if not isinstance(norm, nn.LayerNorm):
            raise self._unsupported(f"its {place} is a {type(norm).__name__}")
        held = hold(norm, tokens)
        self._agree(held.linear(tokens) + held.bias, self._get(place), f"its {place} does not stand before the rest")
        return held

    def _agree(self, got: Tensor, want: Tensor, otherwise: str) -> None:
        if got.shape != want.shape or (got - want).abs().max() > self._tolerance * want.abs().max():
            raise self._unsupported(otherwise)

    @cached_property
    def _tolerance(self) -> float:
        weight = next(self.block.module.parameters(), self.tokens)
        return float(torch.finfo(weight.dtype).eps ** 0.5)

    def _unsupported(self, why: str) -> UnsupportedModel:
        return UnsupportedModel(
            f"{self.name} is no plain pre-norm block: {why}; use a method that need not decompose blocks, "
            "such as rollout, ixg or decompx"
        )

    def _like(self, parameter: Tensor) -> Tensor:
        return parameter.detach().to(self.tokens)

    def _bias(self, bias: Tensor | None, size: int) -> Tensor:
        return self.tokens.new_zeros(size) if bias is None else self._like(bias)

    def _scaled(self, values: Tensor, scale: Tensor | None) -> Tensor:
        return values if scale is None else values * self._like(scale)


def hold(norm: nn.LayerNorm, tokens: Tensor) -> HeldNorm:
    """Hold a layer norm at the deviation of these tokens."""
    size = tokens.shape[-1]
    _, _, inverse = torch.native_layer_norm(tokens, (size,), None, None, norm.eps)  # a tenth of the time of `var`
    weight = tokens.new_ones(size) if norm.weight is None else norm.weight.detach().to(tokens)
    bias = tokens.new_zeros(size) if norm.bias is None else norm.bias.detach().to(tokens)
    return HeldNorm(inverse.reciprocal(), weight, bias)


@shared
def read_parts(model: VisionTransformer, images: Tensor, start: int = 0) -> list[Parts]:
    """Run the model once and return the parts of every block from `start` on; half precision is lifted."""
    wanted = [name for place in ("input", *_PLACES) for name in model.every(place, start) if name in model.sites]
    with model.capture(*wanted) as seen:
        model(images)
    lifted = {name: full_precision(value) for name, value in seen.items()}
    norm = entry_norm(model)
    blocks = []
    for index in range(start, model.depth):
        tokens = origin = lifted[f"block.{index}.input"]
        if index == 0 and norm is not None:
            tokens = norm(origin.to(model.dtype)).to(origin)
        places = {place: lifted[name] for place in _PLACES if (name := f"block.{index}.{place}") in lifted}
        blocks.append(Parts(model.blocks[index], f"block {index} of {model.name}", origin, tokens, places))
    return blocks


def entry_norm(model: VisionTransformer) -> nn.Module | None:
    """Return the norm that precedes the blocks, None where there is none."""
    module = model.entry.module
    return None if module is model.blocks[0].module or isinstance(module, nn.Identity) else module
