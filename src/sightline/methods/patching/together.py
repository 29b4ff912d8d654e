"""The images and the copies of their prefix tokens, run through the patched layers together, block by block.

In each block the copies need no more of the images than its keys and values. So the tokens of both go through its
linear layers in one product, for which the weights are read once, and no keys and values have to be kept. Attention is
theirs alone: that of the images is the model's own, that of the copies is given.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.methods.patching.blocks import Blocks, PlainBlock
from sightline.methods.patching.prefix import TOKENS, Attention, Copies, divide
from sightline.methods.patching.record import Activations, Patching
from sightline.types import TokenGrid


def images_together(blocks: Blocks, patching: Patching, grid: TokenGrid) -> int:
    """Return how many images can be run with all their copies at once, 0 where it has to be one after the other."""
    copied = grid.cells * grid.prefix
    plain = all(block in blocks.plain for block in range(patching.start, patching.last))
    if not copied or copied > TOKENS or patching.start == patching.last or not plain:
        return 0
    return max(1, TOKENS // copied)


def run_together(
    blocks: Blocks,
    blank: Activations,
    tokens: Tensor,
    near: Tensor,
    patching: Patching,
    attention: Attention,
    end: int,
) -> tuple[Tensor, Tensor]:
    """Run images from the first patched layer to `end`, and the copies of their prefix to the last patched layer.

    `tokens` are the images' at the first of these layers and `near` says which of them are patched for each patch. The
    copies are returned behind the images, (image, patch, prefix, channel). Where `end` is the block before the last
    layer, the images' keys and values are all that is computed of it.
    """
    prefix, first = blocks.model.prefix, patching.start
    source = Activations(tokens.new_empty(len(tokens), 0), {}, {}, {}, {})
    copies = Copies(blocks, blank, source, slice(None), len(near), divide(near, prefix, tokens))
    both = _Both(tokens.shape, len(tokens) * len(near), prefix)
    copied = blank.tokens[first][:, :prefix].expand(both.copies, -1, -1)
    rows = both.join(tokens, copied)
    for index in range(first, patching.last):
        plain = blocks.plain[index]
        if index == first:  # all copies enter it with the blank image's queries, keys and values
            images = plain.queries_keys_values(tokens)
            recorded = (blank.queries[index], blank.keys[index], blank.values[index])
            queries, keys, values = (x[:, :, :prefix].expand(both.copies, -1, -1, -1) for x in recorded)
        else:
            images, (queries, keys, values) = (plain.by_head(joint) for joint in both.divide(plain.joint(rows)))
        source.keys[index], source.values[index] = images[1:]
        attended = attention(copies, index)(queries, keys, values, images[0].shape[-1] ** -0.5)
        del source.keys[index], source.values[index]
        if index == patching.read(blocks.model):  # whether the images run through it or not, the copies run alone
            tokens, copied = both.divide(rows)
            if index < end:
                tokens = plain.after(tokens, F.scaled_dot_product_attention(*images))
            return tokens, plain.after(copied, attended).unflatten(0, (len(tokens), -1))
        rows = _after(plain, rows, both.join_heads(F.scaled_dot_product_attention(*images), attended))
    tokens, copied = both.divide(rows)
    return tokens, copied.unflatten(0, (len(tokens), -1))


@dataclass(frozen=True, slots=True)
class _Both:
    """Rows of which the first are the tokens of images and the others those of copies.

    Attributes:
        shape: of the images' tokens, (image, token, channel).
        copies: how many copies.
        prefix: how many tokens a copy has.
    """

    shape: tuple[int, ...]
    copies: int
    prefix: int

    def join(self, tokens: Tensor, copied: Tensor) -> Tensor:
        """Join (image, token, channel) and (copy, prefix, channel): (row, channel)."""
        return torch.cat([tokens.flatten(0, 1), copied.flatten(0, 1)])

    def join_heads(self, images: Tensor, copied: Tensor) -> Tensor:
        """Join the heads' outputs, (image or copy, head, token, channel): (row, head, channel)."""
        return torch.cat([x.transpose(1, 2).flatten(0, 1) for x in (images, copied)])

    def divide(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Undo `join`."""
        tokens, copied = rows.split([self.shape[0] * self.shape[1], self.copies * self.prefix])
        return tokens.unflatten(0, self.shape[:2]), copied.unflatten(0, (self.copies, self.prefix))


def _after(plain: PlainBlock, rows: Tensor, heads: Tensor) -> Tensor:
    """Return what leaves a block, from rows that entered it and from the heads' outputs, (row, head, channel)."""
    return plain.after(rows[None], heads.transpose(0, 1)[None])[0]
