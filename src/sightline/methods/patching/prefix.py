"""Copies of the prefix tokens, one set per patch, run through the patched layers.

A copy attends to the source image's tokens in its patch's neighbourhood and to the blank image's everywhere else. Their
keys and values come from two ordinary forward passes; only the copies themselves go through the blocks, all in one
batch. Class, distillation and register tokens are all copied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.methods.patching.record import Activations, Patching
from sightline.models.capture import Attend
from sightline.models.passes import in_batches
from sightline.models.vit.adapter import VisionTransformer

TOKENS = 2048  # per batch: more are not faster on a CPU, whose caches they exceed


@dataclass(frozen=True, eq=False)
class Copies:
    """The copies for some patches of some images.

    Attributes:
        model: the transformer.
        blank: the blank image's activations.
        source: the images' activations.
        rows: which of those images.
        near: the tokens that are patched for each patch, (patch, token) booleans.
    """

    model: VisionTransformer
    blank: Activations
    source: Activations
    rows: slice
    near: Tensor

    def keys(self, block: int) -> Tensor:
        """Return the source images' keys, (image, head, token, channel)."""
        return self.source.keys[block][self.rows]

    def values(self, block: int) -> Tensor:
        """Return the source images' values, (image, head, token, channel)."""
        return self.source.values[block][self.rows]

    def by_image(self, x: Tensor) -> Tensor:
        """Group the copies by image: (copy, head, prefix, channel) -> (image, head, row, channel)."""
        return x.view(-1, len(self.near), *x.shape[1:]).transpose(1, 2).flatten(2, 3)

    def by_copy(self, x: Tensor) -> Tensor:
        """Undo `by_image`."""
        return x.view(*x.shape[:2], len(self.near), -1, x.shape[-1]).transpose(1, 2).flatten(0, 1)

    def patched(self) -> Tensor:
        """Return which tokens each row attends to in the source image, (row, token) booleans."""
        return self.near.repeat_interleave(self.model.prefix, dim=0)

    def run(self, first: int, last: int, attention: Attention) -> Tensor:
        """Run the copies from layer `first` to `last`: (image, patch, prefix, channel)."""
        tokens = self.blank.tokens[first][:, : self.model.prefix]
        count = len(range(*self.rows.indices(len(self.source.keys[first]))))
        tokens = tokens.expand(count * len(self.near), -1, -1)
        nowhere = torch.empty(0, dtype=torch.long, device=tokens.device)
        with self.model.attend({block: attention(self, block) for block in range(first, last)}):
            for block in range(first, last):
                tokens = self.model.step(tokens, block, nowhere)
        return tokens.view(count, len(self.near), *tokens.shape[1:])


Attention = Callable[[Copies, int], Attend]


def to_both(copies: Copies, block: int) -> Attend:
    """Attend to the copy's own prefix, to the source image where patched, and to the blank image elsewhere."""
    prefix, patched = copies.model.prefix, copies.patched()
    blank_keys, blank_values = copies.blank.keys[block], copies.blank.values[block]
    keys, values, taken = copies.keys(block), copies.values(block), patched.to(blank_keys)

    def attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        q = q * scale
        queries = copies.by_image(q)
        scores = torch.where(patched, queries @ keys.mT, queries @ blank_keys.mT)
        scores[..., :prefix] = copies.by_image(q @ k.mT)
        weights = scores.softmax(dim=-1)
        own = copies.by_copy(weights[..., :prefix].clone())
        of_source = weights * taken
        weights.sub_(of_source)[..., :prefix] = 0
        return copies.by_copy(of_source @ values + weights @ blank_values) + own @ v

    return attend


def run_prefix(
    model: VisionTransformer,
    blank: Activations,
    source: Activations,
    near: Tensor,
    patching: Patching,
    attention: Attention,
) -> Tensor:
    """Return the copies at the last patched layer, (image, patch, prefix, channel), in batches of moderate size."""
    first, last = patching.start, patching.last
    count = len(next(iter(source.keys.values())))

    def some_images(rows: slice) -> Tensor:
        def some_patches(cells: slice) -> Tensor:
            return Copies(model, blank, source, rows, near[cells]).run(first, last, attention)

        return torch.cat(in_batches(some_patches, len(near), max(1, TOKENS // model.prefix)), dim=1)

    return torch.cat(in_batches(some_images, count, max(1, TOKENS // (model.prefix * len(near)))))
