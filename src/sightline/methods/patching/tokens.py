"""Activation patching on a transformer, all patches at once.

Up to the last patched layer only copies of the prefix tokens are computed (prefix.py), one set per patch. After it each
copy's patched tokens are computed as well: short sequences of prefix and neighbourhood, which still attend to the blank
image's tokens everywhere else. Copies with equally many patched tokens run together, so nothing is padded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from sightline.methods.patching.blocks import Blocks, PlainBlock
from sightline.methods.patching.neighbourhood import neighbourhoods
from sightline.methods.patching.prefix import TOKENS, Attention, run_prefix, to_both
from sightline.methods.patching.record import Activations, Patching, reads_patches
from sightline.methods.patching.together import images_together, run_together
from sightline.models.capture import Attend
from sightline.models.memory import held
from sightline.models.passes import in_batches, spend
from sightline.models.vit.adapter import VisionTransformer
from sightline.types import TokenGrid

RECORDED = 0.6  # of a graph: tokens, queries, keys and values of the blank image, keys and values of the other
RUNNING = 0.7  # of a forward pass: a block without the image
SCORES = 3  # times the attention of a block, of all copies to all tokens
QUERIES = 360  # that attend together: their scores stay in the processor's cache


@dataclass(frozen=True, eq=False, slots=True)
class PatchedLogits:
    """The logits that activation patching needs.

    Attributes:
        cells: with each patch patched into the blank image, (batch, cell, class).
        blank: of the blank image, (1, class).
        clean: of the images, (batch, class); (batch, 0) unless asked for.
    """

    cells: Tensor
    blank: Tensor
    clean: Tensor


def patched_logits(
    model: VisionTransformer,
    images: Tensor,
    patching: Patching,
    attention: Attention = to_both,
    *,
    clean: bool = False,
) -> PatchedLogits:
    """Patch each image patch into the blank image; `attention` is that of the prefix copies in the patched layers.

    With `clean` the images themselves are run to their logits.
    """
    blank, blocks = patching.blank_run(model, images)
    grid = model.grid_of(images)
    together = images_together(blocks, patching, grid)

    def work(rows: slice) -> tuple[Tensor, Tensor]:
        run = _run_together if together else _run_apart
        source, prefix = run(blocks, images[rows], patching, blank, attention, clean)
        spend(forward=len(prefix) * patching.share(model, grid))
        if patching.last == model.depth and not reads_patches(model):
            return model.finish(prefix.flatten(0, 1)).view(len(prefix), grid.cells, -1), source.logits
        copies_of = partial(PatchedCopies, blocks, blank, source, patching.last)
        return _every_cell(model, grid, patching, copies_of, prefix), source.logits

    done = in_batches(work, len(images), min(model.batch, together or model.batch))
    cells, logits = (torch.cat(parts) for parts in zip(*done, strict=True))
    return PatchedLogits(cells, blank.logits, logits)


def memory_of_patching(model: VisionTransformer, patching: Patching) -> int:
    """Return the bytes held for one image: both runs' activations, and as many tokens of copies as run together."""
    grid = model.seen_grid
    patched = 0 if patching.last == model.depth else max(members.shape[1] for _, members in patching.groups(grid))
    copies = min(TOKENS, grid.cells * (grid.prefix + patched)) / grid.tokens
    return held(model, forwards=RUNNING * copies, graphs=RECORDED, attention=SCORES / model.depth)


def _run_together(
    blocks: Blocks, images: Tensor, patching: Patching, blank: Activations, attention: Attention, clean: bool
) -> tuple[Activations, Tensor]:
    """Return the images' activations and the copies at the last patched layer, (image, patch, prefix, channel)."""
    model = blocks.model
    tokens, _, _ = blocks.run_whole(model.start(images), patching.start, range(0))
    near, end = _near(model, model.grid_of(images), patching), patching.end(model, logits=clean)
    tokens, prefix = run_together(blocks, blank, tokens, near, patching, attention, end)
    return patching.activations(blocks, tokens, {}, {}, logits=clean), prefix


def _run_apart(
    blocks: Blocks, images: Tensor, patching: Patching, blank: Activations, attention: Attention, clean: bool
) -> tuple[Activations, Tensor]:
    """Return the same, the images first and the copies after them."""
    model, grid = blocks.model, blocks.model.grid_of(images)
    source = patching.source_run(blocks, images, logits=clean)
    if not model.prefix or patching.start == patching.last:
        return source, blank.tokens[patching.start][:, None, : model.prefix].expand(len(images), grid.cells, -1, -1)
    return source, run_prefix(blocks, blank, source, _near(model, grid, patching), patching, attention)


def _near(model: VisionTransformer, grid: TokenGrid, patching: Patching) -> Tensor:
    """Return which tokens of the sequence are patched for each patch, (patch, token) booleans."""
    near = neighbourhoods(grid.height, grid.width, patching.radius, patching.shape)
    return torch.cat([near.new_zeros(grid.cells, model.prefix), near], dim=1).to(model.device)


def _every_cell(
    model: VisionTransformer,
    grid: TokenGrid,
    patching: Patching,
    copies_of: Callable[..., PatchedCopies],
    prefix: Tensor,
) -> Tensor:
    """Finish the copies, (image, cell, prefix, channel), those with equally many patched tokens together."""
    parts, order = [], []
    for cells, members in patching.groups(grid):
        pairs = torch.cartesian_prod(torch.arange(len(prefix)), torch.arange(len(cells)))

        def work(part: slice, pairs: Tensor = pairs, cells: Tensor = cells, members: Tensor = members) -> Tensor:
            image, cell = pairs[part].T
            copies = copies_of(image.to(model.device), members[cell].to(model.device))
            return copies.logits(prefix[image, cells[cell]])

        parts += in_batches(work, len(pairs), max(1, TOKENS // (grid.prefix + members.shape[1])))
        order.append(pairs[:, 0] * grid.cells + cells[pairs[:, 1]])
    logits = torch.cat(parts)
    in_order = torch.empty_like(logits)
    in_order[torch.cat(order).to(logits.device)] = logits
    return in_order.view(len(prefix), grid.cells, -1)


@dataclass(frozen=True, eq=False)
class PatchedCopies:
    """Copies of the prefix tokens with their patched tokens, equally many each, after the last patched layer.

    Attributes:
        blocks: the transformer's.
        blank: the blank image's activations.
        source: the images' activations.
        last: the last patched layer.
        image: which image each copy belongs to, (copy,).
        members: its patched patches, (copy, member).
    """

    blocks: Blocks
    blank: Activations
    source: Activations
    last: int
    image: Tensor
    members: Tensor

    @property
    def model(self) -> VisionTransformer:
        return self.blocks.model

    def logits(self, prefix: Tensor) -> Tensor:
        """Return the logits of every copy, (copy, class), from its prefix tokens at the last patched layer."""
        model = self.model
        patched = self.source.tokens[self.last][self.image[:, None], model.prefix + self.members]
        tokens = torch.cat([prefix, patched], dim=1)
        if not reads_patches(model):
            return model.finish(self._last_block(self._run(tokens, model.depth - 1)))
        return self._pooled(self._run(tokens, model.depth))

    def _pooled(self, tokens: Tensor) -> Tensor:
        """Finish whole sequences: the blank image's tokens, with each copy's own in their positions."""
        blank, at = self.blank.tokens[self.model.depth], self.columns[..., None].expand_as(tokens)

        def work(part: slice) -> Tensor:
            return self.model.finish(blank.repeat(len(at[part]), 1, 1).scatter_(1, at[part], tokens[part]))

        return torch.cat(in_batches(work, len(tokens), max(1, TOKENS // blank.shape[1])))

    def _run(self, tokens: Tensor, end: int) -> Tensor:
        attentions = {block: self._attention(block) for block in range(self.last, end)}
        if attentions and self.last in self.source.queries:
            plain, attention = self.blocks.plain[self.last], attentions.pop(self.last)
            q, k, v = self._entering(plain, tokens)
            tokens = plain.after(tokens, attention(q, k, v, q.shape[-1] ** -0.5))
        return self.blocks.run(tokens, attentions, self.members)

    def _entering(self, plain: PlainBlock, tokens: Tensor) -> list[Tensor]:
        """Return queries, keys and values at the last patched layer: those of patched tokens are the images' own."""
        of_prefix = plain.queries_keys_values(tokens[:, : self.model.prefix])
        recorded = (self.source.queries, self.source.keys, self.source.values)
        return [torch.cat(pair, dim=2) for pair in zip(of_prefix, map(self._of_members, recorded), strict=True)]

    def _of_members(self, recorded: Mapping[int, Tensor]) -> Tensor:
        """Return what was recorded for the patched tokens at the last patched layer, (copy, head, member, channel)."""
        by_token = recorded[self.last].transpose(1, 2)
        return by_token[self.image[:, None], self.model.prefix + self.members].transpose(1, 2)

    def _last_block(self, tokens: Tensor) -> Tensor:
        """Run the last block for the prefix tokens alone, which attend to the patched ones."""
        prefix, block = self.model.prefix, self.model.depth - 1
        if block == self.last and block in self.source.queries:
            keys, values = self._of_members(self.source.keys), self._of_members(self.source.values)
        else:
            keys, values = (x[:, :, prefix:] for x in self.blocks.keys_and_values(tokens, block, self.members))
        attention = self._attention(block, keys, values)
        return self.blocks.run(tokens[:, :prefix], {block: attention}, self.members[:, :0])

    @cached_property
    def columns(self) -> Tensor:
        """The positions of each copy's tokens in a whole sequence, (copy, prefix + member)."""
        prefix = torch.arange(self.model.prefix, device=self.members.device)
        return torch.cat([prefix.expand(len(self.members), -1), self.members + self.model.prefix], dim=1)

    def _attention(self, block: int, *patched: Tensor) -> Attend:
        """Attend to the copy's own tokens, to keys and values of `patched` ones, and to the blank image's elsewhere.

        The scores of a copy's tokens replace the blank image's in the scores of a whole blank sequence; their weights
        are set to zero before the blank image's values are averaged.
        """
        blank_keys, blank_values = self.blank.keys[block][0].mT, self.blank.values[block][0]

        def attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
            if patched:
                k, v = (torch.cat(pair, dim=2) for pair in zip((k, v), patched, strict=True))
            parts = -(-len(q) * q.shape[2] // QUERIES)
            divided = (x.tensor_split(parts) for x in (q, k, v, self.columns))
            return torch.cat([some(scale, *part) for part in zip(*divided, strict=True) if len(part[0])])

        def some(scale: float, q: Tensor, k: Tensor, v: Tensor, columns: Tensor) -> Tensor:
            copies, heads, count, width = q.shape
            q, k, v = (x.transpose(0, 1).contiguous() for x in (q, k, v))  # (head, copy, token, channel)
            own = (q @ k.mT).mul_(scale)
            scores = (q.view(heads, -1, width) @ blank_keys).mul_(scale).view(heads, copies, count, -1)
            at = columns[None, :, None].expand(heads, copies, count, -1)
            weights = scores.scatter_(-1, at, own).softmax(dim=-1)
            own = weights.gather(-1, at)
            mixed = weights.scatter_(-1, at, 0.0).flatten(1, 2) @ blank_values
            return (own @ v).add_(mixed.view(heads, copies, count, width)).transpose(0, 1)

        return attend
