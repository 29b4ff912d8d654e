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
QUERIES = 66  # of one image that attend together


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
    def inside(self) -> Tensor:
        """Which tokens of the range are patched for each row, (row, token of the range) booleans."""
        return self.near[:, self.tokens].contiguous()

    @cached_property
    def kept(self) -> Tensor:
        """The same as numbers, one or zero: weights are multiplied with them faster than with booleans."""
        return self.inside.to(self.like)

    @cached_property
    def of_source(self) -> Tensor:
        """What is added to the scores of the source image's tokens in the range: minus infinity if not patched."""
        return torch.where(self.inside, self.like.new_zeros(()), -torch.inf)


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
        images = len(self.keys(first))
        tokens = self.blank.tokens[first][:, : self.prefix].expand(images * self.count, -1, -1)
        nowhere = torch.empty(0, dtype=torch.long, device=tokens.device)
        attentions = {block: attention(self, block) for block in range(first, last)}
        if first in self.blocks.plain:
            tokens = self._first_block(tokens, first, attentions.pop(first))
        tokens = self.blocks.run(tokens, attentions, nowhere)
        return tokens.view(images, self.count, *tokens.shape[1:])

    def _first_block(self, tokens: Tensor, block: int, attend: Attend) -> Tensor:
        """Run the first block, which all copies enter with the blank image's queries, keys and values."""
        recorded = (self.blank.queries, self.blank.keys, self.blank.values)
        q, k, v = (x[block][:, :, : self.prefix].expand(len(tokens), -1, -1, -1) for x in recorded)
        return self.blocks.plain[block].after(tokens, attend(q, k, v, q.shape[-1] ** -0.5))


Attention = Callable[[Copies, int], Attend]


def to_both(copies: Copies, block: int) -> Attend:
    """Attend to the copy's own prefix, to the source image where patched, and to the blank image elsewhere.

    In the scores of a whole blank sequence those of the copy's own prefix and of patched tokens replace the blank
    image's. Its values are averaged with all weights; for the own and patched tokens their difference to it is added.
    """
    prefix, blank_keys = copies.prefix, copies.blank.keys[block][0].mT
    keys, values = (x.transpose(0, 1) for x in (copies.keys(block), copies.values(block)))  # (head, image, ...)
    blank_values = copies.blank.values[block][0]
    difference = values - blank_values[:, None]

    def attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        alike = q.stride(0) == 0  # all copies enter the first layer with the blank image's queries and keys
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))  # (head, copy, prefix, channel)
        scores = scores_of_one(q[:, :1] * scale) if alike else scores_of_each(q, k, scale)
        weights = scores.softmax(dim=-1)
        mixed, by_image = weights @ blank_values, weights.unflatten(1, (keys.shape[1], -1))
        for part in copies.parts:
            patched = by_image[:, :, part.rows, part.tokens] * part.kept
            mixed.unflatten(1, (keys.shape[1], -1))[:, :, part.rows].add_(patched @ difference[:, :, part.tokens])
        own = weights.view(*q.shape[:3], -1)[..., :prefix]
        return add_own(mixed.view_as(q), own, v - blank_values[:, None, :prefix]).transpose(0, 1)

    def scores_of_one(q: Tensor) -> Tensor:
        of_source, of_blank = q @ keys.mT, q @ blank_keys[:, None]  # (head, image, prefix, token)
        near = torch.cat([part.near for part in copies.parts]).view(copies.count, prefix, -1)
        return torch.where(near, of_source[:, :, None], of_blank[:, :, None]).flatten(1, 3)

    def scores_of_each(q: Tensor, k: Tensor, scale: float) -> Tensor:
        q = q.clone(memory_format=torch.contiguous_format).mul_(scale)
        scores = q.flatten(1, 2) @ blank_keys
        scores.view(*q.shape[:3], -1)[..., :prefix] = own_scores(q, k)
        queries, by_image = (x.unflatten(1, (keys.shape[1], -1)) for x in (q.flatten(1, 2), scores))
        for part in copies.parts:
            reached = by_image[:, :, part.rows, part.tokens]
            of_source = queries[:, :, part.rows] @ keys[:, :, part.tokens].mT
            torch.where(part.inside, of_source, reached, out=reached)
        return scores

    return attend


def own_scores(queries: Tensor, keys: Tensor) -> Tensor:
    """Return the scores of each copy's prefix tokens, (..., token, channel), for each other, (..., query, key).

    The same as a matrix product, which is slow where each copy has one token or a few.
    """
    return torch.stack([(queries * key.unsqueeze(-2)).sum(dim=-1) for key in keys.unbind(dim=-2)], dim=-1)


def add_own(outputs: Tensor, weights: Tensor, values: Tensor) -> Tensor:
    """Add each copy's own values, weighted, to the heads' outputs in place, as `own_scores` without a product."""
    for weight, value in zip(weights.split(1, dim=-1), values.split(1, dim=-2), strict=True):
        outputs.addcmul_(weight, value)
    return outputs


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
