"""Activation patching on a transformer: its settings, and recorded activations of ordinary forward passes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sightline.methods.blank import BlankName, of_blank
from sightline.methods.patching.blocks import Blocks, PlainBlock, plain_block
from sightline.methods.patching.neighbourhood import Shape, by_size
from sightline.models.passes import spend
from sightline.models.vit.adapter import VisionTransformer
from sightline.types import TokenGrid

KEYS_ALONE = 0.25  # of a block: keys and values without the output projection and the MLP, by multiplications


@dataclass(frozen=True, eq=False)
class Activations:
    """Activations recorded in a forward pass.

    Attributes:
        logits: of the images, (image, class); empty where the run stopped before.
        tokens: by layer, the tokens that enter the block of that index; under `depth` those that leave the last block.
        keys: by block, (image, head, token, channel), prefix tokens included.
        values: as keys.
        queries: as keys; of the blank image every block's, of the images that of the first block after the patched
            layers.
    """

    logits: Tensor
    tokens: dict[int, Tensor]
    keys: dict[int, Tensor]
    values: dict[int, Tensor]
    queries: dict[int, Tensor]

    def plain(self, model: VisionTransformer) -> dict[int, PlainBlock]:
        """Return the plain blocks, found by the activations of every block."""
        found = {}
        for index, block in enumerate(model.blocks):
            heads = (self.queries[index], self.keys[index], self.values[index])
            plain = plain_block(block, self.tokens[index], *heads, self.tokens[index + 1])
            if plain is not None:
                found[index] = plain
        return found


def record(model: VisionTransformer, images: Tensor) -> Activations:
    """Run the model once and record its tokens, queries, keys and values."""
    inputs, (output,) = model.every("input"), model.every("output", model.depth - 1)
    heads = {name: model.every(name) for name in "qkv"}
    with model.capture(*inputs, output, *heads["q"], *heads["k"], *heads["v"]) as seen:
        logits = model(images)
    q, k, v = ({block: seen[site] for block, site in enumerate(sites)} for sites in heads.values())
    return Activations(logits, {layer: seen[site] for layer, site in enumerate([*inputs, output])}, k, v, q)


def reads_patches(model: VisionTransformer) -> bool:
    """Tell whether the classifier reads patches, not prefix tokens alone."""
    return model.pool in ("mean", "cls+mean", "map")


@dataclass(frozen=True, slots=True)
class Patching:
    """Which activations are patched, and into which blank image.

    Attributes:
        blank: the blank image.
        seed: of its noise.
        radius: of the neighbourhood.
        shape: of the neighbourhood.
        start: the first patched layer; the class token leaves the blank image's run there.
        last: the last patched layer; after it the patched tokens are free.
    """

    blank: BlankName
    seed: int
    radius: int
    shape: Shape
    start: int
    last: int

    def groups(self, grid: TokenGrid) -> tuple[tuple[Tensor, Tensor], ...]:
        """Return the cells grouped by the number of their neighbours, as `by_size` does."""
        return by_size(grid.height, grid.width, self.radius, self.shape)

    def blank_run(self, model: VisionTransformer, images: Tensor) -> tuple[Activations, Blocks]:
        """Return all activations of the blank image and the model's blocks, which are kept with the model."""

        def work(image: Tensor) -> tuple[Activations, dict[int, PlainBlock]]:
            activations = record(model, image)
            return activations, activations.plain(model)

        activations, plain = of_blank(model, images, self.blank, self.seed, "tokens", work)
        return activations, Blocks(model, plain)

    def source_run(self, blocks: Blocks, images: Tensor, *, logits: bool) -> Activations:
        """Return the images' activations: tokens of the last patched layer, keys and values of the blocks before.

        Nothing later is computed unless the images' `logits` are asked for.
        """
        end = self.end(blocks.model, logits=logits)
        kept = range(self.start, end) if blocks.model.prefix else range(0)
        tokens, keys, values = blocks.run_whole(blocks.model.start(images), end, kept)
        if end < self.last:  # of the last block nothing but its keys and values is needed
            keys[end], values[end] = blocks.keys_and_values(tokens, end)
        return self.activations(blocks, tokens, keys, values, logits=logits)

    def activations(
        self, blocks: Blocks, tokens: Tensor, keys: dict[int, Tensor], values: dict[int, Tensor], *, logits: bool
    ) -> Activations:
        """Return the images' activations, from tokens that were run as far as `end` says; count what they took."""
        model, end = blocks.model, self.end(blocks.model, logits=logits)
        spend(forward=(end + KEYS_ALONE * (end < self.last)) * len(tokens) / model.depth)
        queries = {}
        if end == self.last and end in blocks.plain:  # patched tokens are not free yet when they enter this block
            queries[end], keys[end], values[end] = blocks.plain[end].queries_keys_values(tokens)
        classes = model.finish(model.run(tokens, end)) if logits else tokens.new_empty(len(tokens), 0)
        return Activations(classes, {end: tokens}, keys, values, queries)

    def end(self, model: VisionTransformer, *, logits: bool) -> int:
        """Return the layer up to which the images are run; of the block after it keys and values may be needed."""
        return self.last if logits else self.read(model)

    def read(self, model: VisionTransformer) -> int:
        """Return the layer up to which the images themselves are run."""
        return min(self.last, model.depth - 1) if model.prefix and not reads_patches(model) else self.last

    def cost(self, model: VisionTransformer, grid: TokenGrid) -> float:
        """Return the work on one image, in forward passes."""
        return 1 - self.rest(model) + self.share(model, grid)

    def rest(self, model: VisionTransformer) -> float:
        """Return the part of an image's own run that only its logits need, in forward passes."""
        end = self.read(model)
        return 1 - (end + KEYS_ALONE * (end < self.last)) / model.depth

    def share(self, model: VisionTransformer, grid: TokenGrid) -> float:
        """Return the work on one image beyond its own run, in forward passes: tokens times blocks."""
        work: float = grid.cells * (self.last - self.start) * model.prefix
        if self.last < model.depth:
            for cells, members in self.groups(grid):
                work += len(cells) * (model.depth - self.last) * (model.prefix + members.shape[1])
                work -= 0 if reads_patches(model) else (1 - KEYS_ALONE) * members.numel()
        return work / (grid.tokens * model.depth)
