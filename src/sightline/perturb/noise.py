"""Noisy copies of images, each image's noise its own."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from sightline.seeds import generators, normal


def noisy_batches(
    images: Tensor, samples: int, noise: float, seed: int, batch: int
) -> Iterator[tuple[Tensor, list[int]]]:
    """Yield noisy copies until every image has had `samples` of them.

    Each batch holds the same number of copies of every image, image by image; `rows` says which image each copy is of.
    The noise is Gaussian with `noise` times the image's range as its deviation.
    """
    random = generators(seed, images)
    spread = noise * (images.flatten(1).amax(dim=1) - images.flatten(1).amin(dim=1))
    at_once = max(1, batch // len(images))
    for done in range(0, samples, at_once):
        count = min(at_once, samples - done)
        rows = [row for row in range(len(images)) for _ in range(count)]
        copies = [normal(images[row], random[row]).mul_(spread[row]).add_(images[row]) for row in rows]
        yield (copies[0][None] if len(copies) == 1 else torch.stack(copies)), rows
