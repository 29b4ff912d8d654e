"""RISE: randomised input sampling for explanation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from sightline.catalogue.ranges import Range
from sightline.errors import RecipeError
from sightline.methods.multi_target import MultiTarget
from sightline.methods.sampling.coalitions import (
    FillOrDropped,
    check_fill,
    check_numpy_seed,
    fill_images,
    split_by_image,
)
from sightline.methods.sampling.dropped import DROPPED, centres, dropped_scores, dropped_share, with_tokens
from sightline.methods.scored import Score, scored
from sightline.models.adapter import Adapter
from sightline.models.passes import full_dtype, in_batches
from sightline.models.vit.adapter import VisionTransformer
from sightline.perturb.curve import read_scores
from sightline.perturb.designs import Design, check_design, orthogonal_masks
from sightline.perturb.mirror import stretch
from sightline.registry import METHODS
from sightline.seeds import generators, uniform
from sightline.types import Attribution, Passes, Target, pixel_grid

Variant = Literal["image", "authors"]


@METHODS.register(
    "rise",
    family="sampling",
    cite="petsiuk2018",
    cost="1 forward per sample; about the share `ratio` of one with blank='dropped'",
    parity="authors' code on a CNN and on a photograph with its seed, float64, 1e-7",
)
@dataclass(frozen=True, slots=True)
class Rise(MultiTarget):
    r"""RISE, randomised input sampling: random masks averaged with the class score of the masked image as weight.

    .. math:: A = \frac{1}{N p} \sum_{i=1}^{N} s(x \odot M_i) \, M_i

    Each mask is a coarse grid of cells that are on with probability p, upsampled bilinearly to the image and shifted by
    a random part of a cell, so its expectation is p everywhere. A black-box method for any model; all classes share the
    passes. The standard error of a pixel is about :math:`\sqrt{s^2 / (N p)}`: with too few samples the map shows the
    masks rather than the image.

    Attributes:
        samples: how many masks; 4000 in the paper for VGG, 8000 for ResNet.
        cells: of the coarse grid, from top to bottom and from left to right; never more than pixels.
        ratio: the probability p that a cell is on; 0.1 in the authors' notebooks, with cells=8.
        seed: of the masks.
        blank: the fill where the mask is 0: mean, the mean colour of the training set, as the authors, black, white,
            blur, or a number, that value after normalisation; or dropped: on a transformer the tokens of patches are
            left out instead, those whose centre lies in a cell that is off.
        score: the score of the class: probability, as the authors, logit or log_probability; None for the target
            itself.
        variant: of the random numbers: image, those of the seed and the image, or authors, NumPy's of the seed alone,
            as the authors' program draws them.
        antithetic: whether every second mask is the one before it from 1 - u in place of the random numbers u, at the
            same shift: with ratio 0.5 its complement. It came close to halving the samples (docs/guide/speed.md).
        design: of the cells: independent, or orthogonal, in random orthogonal arrays, where every two and three cells
            are on and off together equally often, with ratio 0.5 alone. Half of the samples then gave the standard
            error of independent ones where measured (docs/guide/speed.md).
    """

    samples: int = 4000
    cells: Annotated[int, Range(1, 1_000_000)] = 7
    ratio: float = 0.5
    seed: int = 0
    blank: FillOrDropped = "mean"
    score: Score | None = "probability"
    variant: Variant = "image"
    antithetic: bool = False
    design: Design = "independent"

    def __post_init__(self) -> None:
        check_fill(self.blank, segments=False, dropped=True)
        if self.variant == "authors":
            check_numpy_seed(self.seed, self.variant)
        check_design(self.design, antithetic=self.antithetic, variant=self.variant)
        if self.design == "orthogonal" and self.ratio != 0.5:
            raise RecipeError(f"got ratio={self.ratio} with design='orthogonal', which keeps half; give ratio=0.5")
        if not 0 < self.ratio <= 1:
            raise RecipeError(f"got ratio={self.ratio}; a probability above 0 and up to 1 is needed")

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        size = (images.shape[-2], images.shape[-1])
        drawn = [self._draw(size, generator) for generator in generators(self.seed, images)]
        score_targets = [scored(target, self.score, model) for target in targets]
        if self.blank == DROPPED:
            return self._on_tokens(with_tokens(model), images, drawn, score_targets)
        fill = fill_images(model, images, self.blank)
        sums = weighted_masks(model, images, fill, drawn, score_targets)
        return [Attribution(total[None] / (self.samples * self.ratio), pixel_grid(images)) for total in sums]

    def _on_tokens(
        self,
        model: VisionTransformer,
        images: Tensor,
        drawn: Sequence[tuple[Tensor, Tensor]],
        targets: Sequence[Target],
    ) -> list[Attribution]:
        """Score masks of whole patches by leaving out the tokens of the others."""
        grid = model.grid_of(images)
        masks = [hard_masks(*own, centres(model, images), images[0]).flatten(1) for own in drawn]
        found = dropped_scores(model, images, masks, targets)
        sums = torch.stack([each.scores @ each.masks.to(each.scores) for each in found], dim=1)
        maps = sums.unflatten(2, (grid.height, grid.width)) / (self.samples * self.ratio)
        return [Attribution(of_target[None], grid) for of_target in maps]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(self.samples * (dropped_share(model, self.ratio) if self.blank == DROPPED else 1))

    def _draw(self, size: tuple[int, int], generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw the grids and shifts of one image's masks."""
        cells = [min(self.cells, side) for side in size]
        if self.variant == "authors":
            random = np.random.RandomState(self.seed)
            drawn = random.rand(self.samples, *cells) < self.ratio
            sides = [-(-side // count) for side, count in zip(size, cells, strict=True)]
            offsets = [[random.randint(side) for side in sides] for _ in range(self.samples)]
            return torch.from_numpy(drawn), torch.tensor(offsets)
        paired = self.antithetic or self.design == "orthogonal"
        different = -(-self.samples // 2) if paired else self.samples
        if self.design == "orthogonal":
            grids = orthogonal_masks(self.samples, cells[0] * cells[1], generator).unflatten(1, cells)
        else:
            grids = self._grids(uniform((different, *cells), generator))
        shifts = torch.stack(
            [
                torch.randint(-(-side // count), (different,), generator=generator)
                for side, count in zip(size, cells, strict=True)
            ],
            dim=1,
        )
        return grids, shifts.repeat_interleave(2, dim=0)[: self.samples] if paired else shifts

    def _grids(self, numbers: Tensor) -> Tensor:
        """Turn random numbers into cells that are on or off; antithetic ones are followed by their mirror images."""
        if self.antithetic:
            numbers = torch.stack([numbers, 1 - numbers], dim=1).flatten(0, 1)[: self.samples]
        return numbers < self.ratio


def weighted_masks(
    model: Adapter,
    images: Tensor,
    fill: Tensor,
    drawn: Sequence[tuple[Tensor, Tensor]],
    targets: Sequence[Target],
) -> Tensor:
    """Return the sum of each image's masks, each times the score under it, shape (target, batch, height, width).

    Args:
        model: the model.
        images: shape (batch, 3, height, width).
        fill: the pixels where a mask is 0, of the same shape.
        drawn: for each image its grids, (mask, cell, cell), bool, and shifts in pixels, (mask, 2).
        targets: functions of the logits.
    """
    exact = full_dtype(images.dtype)
    sums = images.new_zeros((len(targets), len(images), *images.shape[-2:]), dtype=exact)
    counts = [len(grids) for grids, _ in drawn]

    def work(part: slice) -> None:
        parts = list(split_by_image(part, counts))
        chosen = [(drawn[row][0][some], drawn[row][1][some]) for row, some in parts]
        masks = [soft_masks(grids, shifts, images[0]).to(exact) for grids, shifts in chosen]
        pairs = list(zip(parts, masks, strict=True))
        mixed = [fill[row].lerp(images[row], mask[:, None].to(images.dtype)) for (row, _), mask in pairs]
        rows = [row for (row, _), mask in pairs for _ in mask]
        logits = model(torch.cat(mixed))
        scores = torch.stack([read_scores(model, target.take(rows), logits) for target in targets]).to(exact)
        added = [
            torch.einsum("tm,mhw->thw", weights, mask)
            for weights, mask in zip(scores.split([len(mask) for mask in masks], dim=1), masks, strict=True)
        ]
        for (row, _), more in zip(parts, added, strict=True):  # at the end: a batch that fails is run again
            sums[:, row] += more

    with torch.no_grad():
        in_batches(work, sum(counts), model.batch)
    return sums


def hard_masks(grids: Tensor, shifts: Tensor, at: tuple[Tensor, Tensor], like: Tensor) -> Tensor:
    """Return the cell of each shifted grid, (mask, cell, cell), at some rows and columns of pixels: on or off.

    The grids lie as in `soft_masks`, without the blend between neighbouring cells: (mask, row, column), bool.
    """
    lines = []
    for axis, (side, where) in enumerate(zip(like.shape[-2:], at, strict=True)):
        cells = grids.shape[1 + axis]
        long = (cells + 1) * -(-side // cells)
        lines.append((shifts[:, axis, None] + where) * cells // long)
    rows, columns = lines
    return grids[torch.arange(len(grids))[:, None, None], rows[:, :, None], columns[:, None, :]]


def soft_masks(grids: Tensor, shifts: Tensor, like: Tensor) -> Tensor:
    """Upsample coarse grids, (mask, cell, cell), to the image's size plus a cell, and crop them at the shifts.

    Returns (mask, height, width), in double precision, on the device of `like`.
    """
    lines = []
    for axis, side in enumerate(like.shape[-2:]):
        cells = grids.shape[1 + axis]
        weights = stretch(cells, (cells + 1) * -(-side // cells))
        lines.append(weights[shifts[:, axis, None] + torch.arange(side)].to(like.device))
    rows, columns = lines
    return torch.einsum("myi,mij,mxj->myx", rows, grids.to(rows), columns)
