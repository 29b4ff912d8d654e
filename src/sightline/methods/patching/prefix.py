"""Copies of the prefix tokens, one set per patch, run through the patched layers.

A copy attends to the source image's tokens in its patch's neighbourhood and to the blank image's everywhere else. Their
keys and values come from two ordinary forward passes; only the copies themselves go through the blocks, all in one
batch. Class, distillation and register tokens are all copied.

Attention takes a few dozen copies at a time. Their neighbourhoods lie in a short range of the source image's tokens, so
that few of its keys are needed, and the scores stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sightline.methods.patching.blocks import Blocks
from sightline.methods.patching.record import Activations, Patching
from sightline.models.capture import Attend
from sightline.models.passes import in_batches

TOKENS = 2048  # per batch: more are not faster on a CPU, whose caches they exceed
QUERIES = 72  # of one image that attend together


@dataclass(frozen=True, eq=False)
class Part:
    """Some patches whose copies attend together.

    Attributes:
        rows: which rows of the queries they are, all prefix tokens of a copy being next to each other.
        tokens: the range of tokens in which their neighbourhoods lie.
        near: which tokens of the sequence are patched for each row, (row, token) booleans.
        like: a tensor of the kind that scores are.
    """

    rows: slice
    tokens: slice
    near: Tensor
    like: Tensor

    @cached_property
    def of_source(self) -> Tensor:
        """What is added to the scores of the source image's tokens in the range: minus infinity if not patched."""
        return torch.where(self.near[:, self.tokens], self.like.new_zeros(()), -torch.inf)

    @cached_property
    def of_both(self) -> Tensor:
        """What is added to the blank image's scores, minus infinity if patched; `of_source` next to it."""
        return torch.cat([torch.where(self.near, -torch.inf, self.like.new_zeros(())), self.of_source], dim=1)


def divide(near: Tensor, prefix: int, like: Tensor) -> list[Part]:
    """Divide patches, (patch, token) booleans, into parts of about equally many copies."""
    parts, done = [], 0
    for some in near.tensor_split(-(-len(near) * prefix // QUERIES)):
        if len(some):
            reached = some.any(dim=0).nonzero()[:, 0].tolist()
            rows = slice(done, done := done + len(some) * prefix)
            tokens = slice(reached[0], reached[-1] + 1)
            parts.append(Part(rows, tokens, some.repeat_interleave(prefix, dim=0), like))
    return parts


@dataclass(frozen=True, eq=False)
class Copies:
    """The copies for some patches of some images.

    Attributes:
        blocks: the transformer's.
        blank: the blank image's activations.
        source: the images' activations.
        images: which of those images.
        count: how many patches.
        parts: those patches, divided.
    """

    blocks: Blocks
    blank: Activations
    source: Activations
    images: slice
    count: int
    parts: Sequence[Part]

    @property
    def prefix(self) -> int:
        """How many tokens each copy has."""
        return self.blocks.model.prefix

    def keys(self, block: int) -> Tensor:
        """Return the source images' keys, (image, head, token, channel)."""
        return self.source.keys[block][self.images]

    def values(self, block: int) -> Tensor:
        """Return the source images' values, (image, head, token, channel)."""
        return self.source.values[block][self.images]

    def by_image(self, x: Tensor) -> Tensor:
        """Group the copies by image: (copy, head, prefix, channel) -> (image, head, row, channel)."""
        grouped: Tensor = x.unflatten(0, (-1, self.count))
        return grouped.transpose(1, 2).flatten(2, 3)

    def by_copy(self, x: Tensor) -> Tensor:
        """Undo `by_image`."""
        apart: Tensor = x.unflatten(2, (self.count, -1))
        return apart.transpose(1, 2).flatten(0, 1)

    def run(self, first: int, last: int, attention: Attention) -> Tensor:
        """Run the copies from layer `first` to `last`: (image, patch, prefix, channel)."""
        tokens = self.blank.tokens[first][:, : self.prefix]
        images = len(self.keys(first))
        tokens = tokens.expand(images * self.count, -1, -1)
        nowhere = torch.empty(0, dtype=torch.long, device=tokens.device)
        attentions = {block: attention(self, block) for block in range(first, last)}
        tokens = self.blocks.run(tokens, attentions, nowhere)
        return tokens.view(images, self.count, *tokens.shape[1:])


Attention = Callable[[Copies, int], Attend]


def to_both(copies: Copies, block: int) -> Attend:
    """Attend to the copy's own prefix, to the source image where patched, and to the blank image elsewhere.

    The scores of the copy's own prefix take the place of those of the blank image's, whose values are set to zero.
    """
    keys, values, prefix = copies.keys(block), copies.values(block), copies.prefix
    blank_keys = copies.blank.keys[block].expand_as(keys)
    blank_values = copies.blank.values[block].expand_as(values)[:, :, prefix:]
    nothing = values.new_zeros(()).expand_as(values[:, :, :prefix])

    def attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        queries, scores_of_own = copies.by_image(q), copies.by_image(q @ k.mT * scale)
        own, mixed = [], []
        for part in copies.parts:
            reached = torch.cat([blank_keys, keys[:, :, part.tokens]], dim=2)
            scores = added_scores(part.of_both, queries[:, :, part.rows], reached, scale)
            scores[..., :prefix] = scores_of_own[:, :, part.rows]
            weights = scores.softmax(dim=-1)
            own.append(weights[..., :prefix])
            mixed.append(weights @ torch.cat([nothing, blank_values, values[:, :, part.tokens]], dim=2))
        return copies.by_copy(torch.cat(mixed, dim=2)) + copies.by_copy(torch.cat(own, dim=2)) @ v

    return attend


def added_scores(mask: Tensor, queries: Tensor, keys: Tensor, scale: float) -> Tensor:
    """Return scaled scores with a (query, key) mask added, (image, head, query, key)."""
    scores = torch.baddbmm(mask, queries.flatten(0, 1), keys.flatten(0, 1).mT, alpha=scale)
    return scores.view(*queries.shape[:3], -1)


def run_prefix(
    blocks: Blocks,
    blank: Activations,
    source: Activations,
    near: Tensor,
    patching: Patching,
    attention: Attention,
) -> Tensor:
    """Return the copies at the last patched layer, (image, patch, prefix, channel), in batches of moderate size."""
    first, last, prefix = patching.start, patching.last, blocks.model.prefix

    def some_images(images: slice) -> Tensor:
        def some_patches(cells: slice) -> Tensor:
            parts = divide(near[cells], prefix, blank.tokens[first])
            return Copies(blocks, blank, source, images, len(near[cells]), parts).run(first, last, attention)

        return torch.cat(in_batches(some_patches, len(near), max(1, TOKENS // prefix)), dim=1)

    return torch.cat(in_batches(some_images, len(source.keys[first]), max(1, TOKENS // (prefix * len(near)))))
