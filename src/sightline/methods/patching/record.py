"""Activation patching on a transformer: its settings, and recorded activations of ordinary forward passes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sightline.methods.blank import BlankName, of_blank
from sightline.methods.patching.neighbourhood import Shape, by_size
from sightline.models.vit.adapter import VisionTransformer
from sightline.types import TokenGrid

KEYS_ALONE = 0.25  # of a block: keys and values without the output projection and the MLP, by multiplications


@dataclass(frozen=True, eq=False)
class Activations:
    """Activations recorded in a forward pass.

    Attributes:
        logits: of the images, (image, class).
        tokens: by layer, the tokens that enter the block of that index; under `depth` those that leave the last block.
        keys: by block, (image, head, token, channel), prefix tokens included.
        values: as keys.
        queries: as keys; empty unless asked for.
    """

    logits: Tensor
    tokens: dict[int, Tensor]
    keys: dict[int, Tensor]
    values: dict[int, Tensor]
    queries: dict[int, Tensor]


def record(
    model: VisionTransformer, images: Tensor, layers: range, blocks: range, *, queries: bool = False
) -> Activations:
    """Run the model once and record the tokens of some layers and the keys and values of some blocks."""
    depth = model.depth
    tokens = {layer: f"block.{layer}.input" if layer < depth else f"block.{depth - 1}.output" for layer in layers}
    names = ("k", "v", "q") if queries else ("k", "v")
    heads = {name: {block: f"block.{block}.{name}" for block in blocks} for name in names}
    sites = [site for kind in (tokens, *heads.values()) for site in kind.values()]
    if not sites:  # nothing is patched: the map is the blank image's
        return Activations(model(images), {}, {}, {}, {})
    with model.capture(*sites) as seen:
        logits = model(images)
    kept = {name: {block: seen[site] for block, site in kind.items()} for name, kind in heads.items()}
    inputs = {layer: seen[site] for layer, site in tokens.items()}
    return Activations(logits, inputs, kept["k"], kept["v"], kept.get("q", {}))


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

    def blank_run(self, model: VisionTransformer, images: Tensor) -> Activations:
        """Return all activations of the blank image, which are kept with the model."""
        every, blocks = range(model.depth + 1), range(model.depth)
        return of_blank(
            model,
            images,
            self.blank,
            self.seed,
            "tokens",
            lambda image: record(model, image, every, blocks, queries=True),
        )

    def source_run(self, model: VisionTransformer, images: Tensor) -> Activations:
        """Return the images' activations: tokens of the last patched layer, keys and values of the blocks before."""
        free = self.last < model.depth or reads_patches(model)
        layers = range(self.last, self.last + free)
        return record(model, images, layers, range(self.start, self.last) if model.prefix else range(0))

    def share(self, model: VisionTransformer, grid: TokenGrid) -> float:
        """Return the work on one image beyond its own run, in forward passes: tokens times blocks."""
        work: float = grid.cells * (self.last - self.start) * model.prefix
        if self.last < model.depth:
            for cells, members in self.groups(grid):
                work += len(cells) * (model.depth - self.last) * (model.prefix + members.shape[1])
                work -= 0 if reads_patches(model) else (1 - KEYS_ALONE) * members.numel()
        return work / (grid.tokens * model.depth)
