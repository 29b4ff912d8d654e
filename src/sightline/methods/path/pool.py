"""Several baselines for each image: from a pool of images, from noise around a blank image, or the blank image."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError, ShapeError
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.perturb.fill import make_fill
from sightline.seeds import generators, normal

Blank = Literal["zero", "black", "white", "mean", "blur"]
Pool = Any  # the option `pool`: None, or images as the model is fed, (image, 3, height, width)


@dataclass(frozen=True, eq=False, repr=False)
class BaselinePool:
    """Images that serve as baselines, as the option of a method; a recipe cannot hold them."""

    images: Tensor

    def __repr__(self) -> str:
        return f"<{len(self.images)} images of {self.images.shape[-2]}×{self.images.shape[-1]}>"


def as_pool(given: Pool) -> BaselinePool | None:
    """Return images as a pool, or refuse what cannot be one."""
    if given is None or isinstance(given, BaselinePool):
        return given
    if not isinstance(given, Tensor) or given.ndim != 4 or not len(given):
        shown = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise RecipeError(f"got pool={shown}; give normalised images, shape (image, channel, height, width)")
    return BaselinePool(given.detach())


@dataclass(frozen=True, slots=True)
class Baselines:
    """Where the baselines of an image come from.

    Attributes:
        samples: how many for each image.
        blank: the fill around which noise is drawn.
        noise: standard deviation of that noise, as a fraction of the image's range.
        seed: of whatever is drawn.
        pool: images to draw from instead.
    """

    samples: int
    blank: Blank
    noise: float
    seed: int
    pool: BaselinePool | None

    def check(self) -> None:
        """Refuse settings that mean nothing."""
        make_fill(self.blank)
        if self.samples < 1:
            raise RecipeError(f"got samples={self.samples}; at least one baseline is needed")
        if not 0 <= self.noise < math.inf:
            raise RecipeError(f"got noise={self.noise}; give a share of the image's range, 0 or more")

    def batches(self, model: Adapter, images: Tensor, batch: int) -> Iterator[tuple[Tensor, list[int]]]:
        """Yield baselines until every image has had all of its own; `rows` says which image each belongs to.

        Each batch holds the same number of baselines of every image, image by image: `batch` in all, or one of each.
        """
        random = generators(self.seed, images)
        blank = make_fill(self.blank)(model, images)
        spread = self.noise * (images.flatten(1).amax(dim=1) - images.flatten(1).amin(dim=1))
        at_once = max(1, batch // len(images))
        chosen = [self._chosen(images, generator) for generator in random]
        for done in range(0, self.samples, at_once):
            some = range(done, min(done + at_once, self.samples))
            rows = [row for row in range(len(images)) for _ in some]
            if self.pool is not None:
                index = torch.cat([own[done : some.stop] for own in chosen])
                yield self.pool.images[index].to(images), rows
            else:
                yield torch.stack([blank[row] + spread[row] * normal(blank[row], random[row]) for row in rows]), rows

    def _chosen(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return which images of the pool are an image's baselines: each as often as any other, or once more."""
        if self.pool is None:
            return torch.zeros(0, dtype=torch.long)
        if self.pool.images.shape[1:] != images.shape[1:]:
            raise ShapeError(
                f"got a pool of images of shape {tuple(self.pool.images.shape[1:])} for images of "
                f"{tuple(images.shape[1:])}; bring both to one size"
            )
        size = len(self.pool.images)
        whole, rest = divmod(self.samples, size)
        return torch.cat([torch.arange(size).repeat(whole), torch.randperm(size, generator=generator)[:rest]])


@dataclass(frozen=True, slots=True)
class WithBaselines(MultiTarget, ABC):
    """A method that is averaged over several baselines of each image.

    Attributes:
        samples: baselines of each image.
        blank: the image around which noise is drawn: zero (the mean colour), black, white, mean or blur.
        noise: standard deviation of the noise, as a fraction of the image's range; 0 leaves the blank image alone.
        seed: of whatever is drawn.
        pool: normalised images to draw baselines from instead, (image, 3, height, width), each used equally often; from
            Python only.
    """

    samples: int = 10
    blank: Blank = "zero"
    noise: float = 0.15
    seed: int = 0
    pool: Pool = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "pool", as_pool(self.pool))
        self.baselines.check()

    @property
    def baselines(self) -> Baselines:
        """Where the baselines come from."""
        return Baselines(self.samples, self.blank, self.noise, self.seed, self.pool)
