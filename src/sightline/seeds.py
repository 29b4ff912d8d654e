"""Random numbers that depend on a seed and an image, never on the batch the image came in."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def generators(seed: int, images: Tensor) -> list[torch.Generator]:
    """Return one generator per image, derived from the seed and the image itself.

    An image gets the same random numbers alone, in a batch, in another order and on another worker.
    """
    drawn = []
    for image in images.detach().to("cpu", torch.float32).contiguous():
        digest = hashlib.blake2b(image.numpy().tobytes(), digest_size=8, key=str(seed).encode()).digest()
        drawn.append(torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1))
    return drawn


def normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Draw standard normal numbers in float32 on the CPU, then move them: the same on every device and precision."""
    return torch.randn(like.shape, generator=generator, dtype=torch.float32).to(like)


def uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw numbers between 0 and 1, in float32 whatever torch's default type is."""
    return torch.rand(shape, generator=generator, dtype=torch.float32)
