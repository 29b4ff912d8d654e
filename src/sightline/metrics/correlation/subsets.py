"""Random subsets of the pixels, or of the cells of a grid, of each image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from sightline.metrics.case import Case
from sightline.perturb.segments import grid_segments
from sightline.seeds import generators


def random_pixels(case: Case, sizes: Sequence[int], seed: int) -> Iterator[Tensor]:
    """Yield, image by image, one random subset of each size: bool of shape (size, height, width).

    They depend on the seed and the image, not on its batch.
    """
    height, width = case.maps.shape[-2:]
    for generator in generators(seed, case.images):
        yield _subsets(height * width, sizes, generator).reshape(-1, height, width).to(case.maps.device)


def random_cells(case: Case, grid: tuple[int, int], size: int, samples: int, seed: int) -> Iterator[Tensor]:
    """Yield, image by image, random subsets of as many cells of a grid: bool of shape (samples, height, width)."""
    pixels = (case.maps.shape[-2], case.maps.shape[-1])
    labels = grid_segments(pixels, (min(grid[0], pixels[0]), min(grid[1], pixels[1]))).labels
    count = int(labels.max()) + 1
    for generator in generators(seed, case.images):
        chosen = _subsets(count, [min(size, count)] * samples, generator)
        yield chosen[:, labels].to(case.maps.device)


def _subsets(count: int, sizes: Sequence[int], generator: torch.Generator) -> Tensor:
    """Return which of `count` items are in a random subset of each size, (subset, item)."""
    chosen = torch.zeros(len(sizes), count, dtype=torch.bool)
    for row, size in zip(chosen, sizes, strict=True):
        row[torch.randperm(count, generator=generator)[:size]] = True
    return chosen
