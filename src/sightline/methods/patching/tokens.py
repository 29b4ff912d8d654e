"""Activation patching on a transformer, all patches at once.

Up to the last patched layer only copies of the prefix tokens are computed (prefix.py), one set per patch. After it each
copy's patched tokens are computed as well: short sequences of prefix and neighbourhood, which still attend to the blank
image's tokens everywhere else. Copies with equally many patched tokens run together, so nothing is padded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from sightline.methods.patching.neighbourhood import neighbourhoods
from sightline.methods.patching.prefix import TOKENS, Attention, run_prefix, to_both
from sightline.methods.patching.record import Activations, Patching, reads_patches
from sightline.models.capture import Attend
from sightline.models.passes import in_batches, spend
from sightline.models.vit.adapter import VisionTransformer
from sightline.types import TokenGrid


@dataclass(frozen=True, eq=False, slots=True)
class PatchedLogits:
    """The logits that activation patching needs.

    Attributes:
        cells: with each patch patched into the blank image, (batch, cell, class).
        blank: of the blank image, (1, class).
        clean: of the images, (batch, class).
    """

    cells: Tensor
    blank: Tensor
    clean: Tensor


def patched_logits(
    model: VisionTransformer, images: Tensor, patching: Patching, attention: Attention = to_both
) -> PatchedLogits:
    """Patch each image patch into the blank image; `attention` is that of the prefix copies in the patched layers."""
    blank = patching.blank_run(model, images)

    def work(rows: slice) -> tuple[Tensor, Tensor]:
        source = patching.source_run(model, images[rows])
        return _of_images(model, images[rows], patching, blank, source, attention), source.logits

    cells, clean = (torch.cat(parts) for parts in zip(*in_batches(work, len(images), model.batch), strict=True))
    return PatchedLogits(cells, model.finish(blank.tokens[model.depth]), clean)


def _of_images(
    model: VisionTransformer,
    images: Tensor,
    patching: Patching,
    blank: Activations,
    source: Activations,
    attention: Attention,
) -> Tensor:
    grid, count = model.grid_of(images), len(images)
    spend(forward=count * patching.share(model, grid))
    prefix = blank.tokens[patching.start][:, None, : model.prefix].expand(count, grid.cells, -1, -1)
    if model.prefix and patching.start < patching.last:
        near = neighbourhoods(grid.height, grid.width, patching.radius, patching.shape)
        near = torch.cat([near.new_zeros(grid.cells, model.prefix), near], dim=1).to(model.device)
        prefix = run_prefix(model, blank, source, near, patching, attention)
    if patching.last == model.depth and not reads_patches(model):
        return model.finish(prefix.flatten(0, 1)).view(count, grid.cells, -1)
    return _every_cell(model, grid, patching, partial(PatchedCopies, model, blank, source, patching.last), prefix)


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
        model: the transformer.
        blank: the blank image's activations.
        source: the images' activations.
        last: the last patched layer.
        image: which image each copy belongs to, (copy,).
        members: its patched patches, (copy, member).
    """

    model: VisionTransformer
    blank: Activations
    source: Activations
    last: int
    image: Tensor
    members: Tensor

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
        blocks = range(self.last, end)
        with self.model.attend({block: self._attention(block) for block in blocks}):
            for block in blocks:
                tokens = self.model.step(tokens, block, self.members)
        return tokens

    def _last_block(self, tokens: Tensor) -> Tensor:
        """Run the last block for the prefix tokens alone, which attend to the patched ones."""
        model, block = self.model, self.model.depth - 1
        keys, values = (x[:, :, model.prefix :] for x in model.keys_and_values(tokens, block, self.members))
        with model.attend({block: self._attention(block, keys, values)}):
            return model.step(tokens[:, : model.prefix], block, self.members[:, :0])

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
        blank_keys, blank_values = self.blank.keys[block][0], self.blank.values[block][0]

        def attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
            if patched:
                k, v = (torch.cat(pair, dim=2) for pair in zip((k, v), patched, strict=True))
            copies, heads, count, width = q.shape
            q = q.transpose(0, 1) * scale
            own = q @ k.permute(1, 0, 3, 2)
            scores = (q.reshape(heads, -1, width) @ blank_keys.mT).view(heads, copies, count, -1)
            at = self.columns[None, :, None].expand(heads, copies, count, -1)
            weights = scores.scatter_(-1, at, own).softmax(dim=-1)
            own = weights.gather(-1, at)
            mixed = weights.scatter_(-1, at, 0.0).flatten(1, 2) @ blank_values
            return (own @ v.transpose(0, 1)).add_(mixed.view(heads, copies, count, width)).transpose(0, 1)

        return attend
