r"""Layer-wise relevance propagation to the pixels of a plain vision transformer.

Relevance is propagated through the blocks by the rules of `vit_rules`, from a relevance of one at the target. The
tokens that enter the first block are patch embeddings plus position embeddings, a sum; what positions and prefix tokens
get stays there. The patch embedding is a convolution of pixels with bounds :math:`l` and :math:`h`, the box rule:

.. math:: R_i = \sum_k \frac{x_i w_{ik} - l\,w_{ik}^+ - h\,w_{ik}^-}
    {\sum_{i'} \bigl(x_{i'} w_{i'k} - l\,w_{i'k}^+ - h\,w_{i'k}^-\bigr)}\, R_k
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.errors import SiteError, UnsupportedModel
from sightline.methods.relevance.attention import run_for_relevance
from sightline.methods.relevance.vit_rules import Rules
from sightline.models.capture import Site, capture
from sightline.models.passes import full_precision
from sightline.models.vit.adapter import VisionTransformer
from sightline.types import Attribution, Passes, Target, pixel_grid


@dataclass(frozen=True, slots=True, eq=False)
class Embedding:
    """The patch embedding of a batch of images.

    Attributes:
        pixels: the convolution's input, (batch, 3, height, width).
        weight: of the convolution.
        patches: its output, (batch, patch, channel).
        positions: the position embeddings that are added to it.
    """

    pixels: Tensor
    weight: Tensor
    patches: Tensor
    positions: Tensor

    def propagate(self, rules: Rules, relevance: Tensor) -> tuple[Tensor, Tensor]:
        """Propagate the relevance of the patch tokens to the pixels, (batch, 3, height, width), and the positions."""
        patches, positions = rules.add(self.patches, self.positions, relevance)
        rows = self.pixels.shape[-2] // self.weight.shape[-2]
        return self._box_rule(patches.transpose(1, 2).unflatten(2, (rows, -1))), positions

    def _box_rule(self, relevance: Tensor) -> Tensor:
        low, high = self.pixels.amin(dim=(1, 2, 3), keepdim=True), self.pixels.amax(dim=(1, 2, 3), keepdim=True)
        up, down = self.weight.clamp(min=0), self.weight.clamp(max=0)
        parts = ((self.pixels, self.weight), (-low.expand_as(self.pixels), up), (-high.expand_as(self.pixels), down))
        step = self.weight.shape[-2:]
        total = torch.stack([F.conv2d(x, weight, stride=step) for x, weight in parts]).sum(dim=0)
        share = relevance / (total + 1e-9)  # no contribution is negative, and so neither is their sum
        return torch.stack([x * F.conv_transpose2d(share, w, stride=step) for x, w in parts]).sum(dim=0)


def embed(model: VisionTransformer, images: Tensor) -> Embedding:
    """Return the patch embedding of these images; refuse a model whose tokens are made in a way that has no rule."""
    convolution = next((m for m in model.modules if _makes_patches(m, model.patch)), None)
    if not isinstance(convolution, nn.Conv2d):
        raise _unsupported(model)
    sites = {"pixels": Site(convolution, "input"), "patches": Site(convolution)}
    embeddings = []
    with torch.inference_mode(False), torch.no_grad():
        for batch in (images, torch.zeros_like(images[:1])):
            with capture(sites) as seen:
                tokens = model.start(batch)[:, model.prefix :]
            patches = seen["patches"].flatten(2).transpose(1, 2)
            if seen["pixels"].shape != batch.shape or patches.shape != tokens.shape:
                raise _unsupported(model)
            parts = (
                seen["pixels"],
                convolution.weight.detach(),
                patches,
                full_precision(tokens) - full_precision(patches),
            )
            embeddings.append(Embedding(*(full_precision(part) for part in parts)))
    own, blank = embeddings
    rounding = max(1e-3, 4 * torch.finfo(model.dtype).eps)
    if (own.positions - blank.positions).abs().max() > rounding * own.patches.abs().max():
        raise _unsupported(model)
    return own


def _makes_patches(module: nn.Module, patch: tuple[int, int]) -> bool:
    return isinstance(module, nn.Conv2d) and module.groups == 1 and module.kernel_size == module.stride == patch


def _unsupported(model: VisionTransformer) -> UnsupportedModel:
    others = "ixg or gae" if "language" in model.offers else "t_attr or partial_lrp, which end at the attention, or ixg"
    return UnsupportedModel(
        f"the tokens of {model.name} are more than one convolution of the pixels plus positions, and relevance has no "
        f"rule for what they are; use {others}"
    )


def _tokens(
    model: VisionTransformer, images: Tensor, targets: Sequence[Target], rules: Rules, block: int
) -> Iterator[Tensor]:
    """Yield each target's relevance of the tokens that enter a block, (batch, token, channel); one forward pass."""
    run = run_for_relevance(model, images, targets, block, gradient=False)
    for index in range(len(targets)):
        *_, relevance = rules.stream_relevance(run.traces, run.head_relevance(index, rules), model.depth)
        yield relevance


def transformer_relevance(
    model: VisionTransformer, images: Tensor, targets: Sequence[Target], rules: Rules, layer: str | int | None
) -> list[Attribution]:
    """Return each target's relevance of the pixels, or of the patch tokens that enter a block."""
    if layer is not None:
        grid, tokens = model.grid_of(images), _tokens(model, images, targets, rules, _block(model, layer))
        return [Attribution(grid.to_map(relevance.sum(dim=-1))[None], grid) for relevance in tokens]
    embedding, patches = embed(model, images), slice(model.prefix, None)
    tokens = _tokens(model, images, targets, rules, 0)
    pixels = [embedding.propagate(rules, relevance[:, patches])[0] for relevance in tokens]
    return [Attribution(values.sum(dim=1)[None], pixel_grid(images)) for values in pixels]


def transformer_cost(model: VisionTransformer, count: int, layer: str | int | None) -> Passes:
    """Return what `count` targets cost, per image."""
    block = 0 if layer is None else _block(model, layer)
    return Passes(1, 2 * count * (1 - block / model.depth))


def _block(model: VisionTransformer, layer: str | int) -> int:
    """Return the block whose input a layer means."""
    inputs = model.every("input")
    if isinstance(layer, int) and -model.depth <= layer < model.depth:
        return range(model.depth)[layer]
    if layer in inputs:
        return inputs.index(str(layer))
    raise SiteError(
        f"got layer={layer!r}; the relevance of a transformer is read where tokens enter a block: "
        f"write 0 to {model.depth - 1}, or block.0.input to {inputs[-1]}"
    )
