"""DecompX: the logit decomposed into one contribution per token, propagated through the whole network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor, nn

from sightline.errors import RecipeError
from sightline.methods.attention.attention import last_blocks, transformer
from sightline.methods.decomposition.propagation import CHUNK, Decomposition
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.backward.libra import balanced
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target

WIDE_STATES = 4  # as wide as the MLP, held at once in the forward form


@dataclass(frozen=True, slots=True, eq=False)
class TokenContributions:
    """The details of a DecompX attribution in its forward form; tokens and biases sum to the logit.

    Attributes:
        tokens: the contribution of every token, prefix tokens included, shape (layer, batch, token).
        bias: the contribution of all biases together, shape (layer, batch).
    """

    tokens: Tensor
    bias: Tensor

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Concatenate the details of consecutive batches."""
        return cls(torch.cat([part.tokens for part in parts], dim=1), torch.cat([part.bias for part in parts], dim=1))

    def take(self, rows: Sequence[int]) -> Self:
        """Return the details of these images of the batch."""
        return replace(self, tokens=self.tokens[:, list(rows)], bias=self.bias[:, list(rows)])


@METHODS.register(
    "decompx",
    family="decomposition",
    cite="modarressi2023",
    cost="1 forward, 1 backward",
    needs=("attention", "gradient"),
    parity="backward against forward form on every family of plain blocks, every start layer, 1e-10 in float64; shares "
    "and bias sum to the logit, 1e-9",
)
@dataclass(frozen=True, slots=True)
class DecompX(MultiTarget):
    r"""DecompX: each token's contribution to the logit, by propagating decomposed vectors through all layers.

    .. math:: A_{\ell,j} = s(D_j), \qquad D_j \text{ at block } \ell:\; D_j[i] = [i = j]\, x_{\ell,j}, \qquad
        \sum_j D_j + D_{\text{bias}} = X \text{ behind every layer}

    The vectors :math:`D_j` pass norms with the standard deviation of the true tokens, attention with the true
    probabilities, and GELU with its true slope :math:`\text{GELU}(u)/u = \Phi(u)`; biases are collected separately and
    left out of the map. That makes the network linear, and the contributions in a linear network are input × gradient:
    one backward pass under the rules of ``libra`` yields the same numbers, for every start layer at once.

    The target should be a logit. For another target its gradient at the logits is multiplied with the contributions.

    Attributes:
        start: the first block of the decomposition.
        form: "backward" as just described, or "forward": every token propagated through plain pre-norm blocks by
            itself, which costs about one forward pass per token, yields one start layer, and has the contributions of
            prefix tokens and biases in `details`.
        bias: "discard", or "abs_dot": every bias is distributed where it is added, in proportion to the magnitude of
            its dot product with each token's vector; the biases after the last block are summed first. Forward only.
        gelu: the slope of the activation: "zero_order" as above, or "taylor": its derivative, the remainder being
            treated as a bias. Forward form only.
    """

    start: int = 0
    form: Literal["backward", "forward"] = "backward"
    bias: Literal["discard", "abs_dot"] = "discard"
    gelu: Literal["zero_order", "taylor"] = "zero_order"

    def __post_init__(self) -> None:
        if self.form == "backward" and (self.bias, self.gelu) != ("discard", "zero_order"):
            raise RecipeError(
                f"got bias={self.bias!r} and gelu={self.gelu!r} in the backward form, which knows neither; "
                "write form='forward'"
            )

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = transformer(model, self.start)
        if self.form == "backward":
            return self._backward(model, images, targets)
        return self._forward(model, images, targets, self._starts(model, every_layer))

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        model = transformer(model, self.start)
        if self.form == "backward":
            return Passes(1, count * (1 - self.start / model.depth))
        sources = model.grid.tokens + (self.bias == "discard")
        return Passes(1 + sources * sum(1 - start / model.depth for start in self._starts(model, every_layer)), 0)

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image: a graph, or in the forward form the states of some tokens at once."""
        if self.form == "backward":
            return model.peak(Passes(1, 1))
        vit = transformer(model)
        tokens, wide = vit.seen_grid.tokens, vit.blocks[0].mlp_layers
        hidden = wide[0].out_features if wide and isinstance(wide[0], nn.Linear) else 0
        states = WIDE_STATES * min(CHUNK, tokens**2 * hidden) * model.dtype.itemsize
        return model.peak(Passes(1), frozenset({"attention"})) + states

    def _starts(self, model: VisionTransformer, every_layer: bool) -> range:
        return range(self.start, model.depth if every_layer else self.start + 1)

    def _backward(self, model: VisionTransformer, images: Tensor, targets: Sequence[Target]) -> list[Attribution]:
        with balanced(), model.capture(*model.every("input", self.start), gradient=True) as seen:
            logits = model(images)
            scores = [target(logits) for target in targets]
        grid = model.grid_of(images)
        contributions = [
            torch.stack([(seen[name].detach() * gradient).sum(dim=-1) for name, gradient in gradients.items()])
            for gradients in model.gradients_each(scores, seen)
        ]
        blocks = last_blocks(model, len(seen))
        return [Attribution(grid.to_map(layers), grid, layers=blocks) for layers in contributions]

    def _forward(
        self, model: VisionTransformer, images: Tensor, targets: Sequence[Target], starts: range
    ) -> list[Attribution]:
        decomposition = Decomposition(model, images, self.gelu, self.start)
        parts = [
            [decomposition.of_logits(image, start, abs_dot=self.bias == "abs_dot") for image in range(len(images))]
            for start in starts
        ]
        tokens = torch.stack([torch.stack([part.tokens for part in layer]) for layer in parts])
        bias = torch.stack([torch.stack([part.bias for part in layer]) for layer in parts])
        grid = model.grid_of(images)
        attributions = []
        for target in targets:
            slope = _gradient(target, decomposition.logits)
            contributions = TokenContributions(
                torch.einsum("lbtc,bc->lbt", tokens, slope), torch.einsum("lbc,bc->lb", bias, slope)
            )
            values = grid.to_map(contributions.tokens)
            attributions.append(Attribution(values, grid, details=contributions, layers=tuple(starts)))
        return attributions


def _gradient(target: Target, logits: Tensor) -> Tensor:
    """Return the target's gradient at the logits, (batch, class): for a logit, one at its class."""
    with torch.inference_mode(False), torch.enable_grad():
        leaf = logits.detach().clone().requires_grad_()
        return torch.autograd.grad(target(leaf).sum(), leaf)[0]
