"""The details of an MDA attribution: patch order, curves and magnitudes, from which maps of any density are made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import RecipeError
from sightline.perturb.search.greedy import SegmentOrder
from sightline.perturb.search.magnitudes import dense_values
from sightline.perturb.segments import Segments, grid_segments
from sightline.types import Attribution, TokenGrid

Array = np.ndarray[Any, np.dtype[np.float64]]
Output = Literal["smooth", "sharp"]


@dataclass(frozen=True, slots=True, eq=False)
class RefinedImage:
    """The order, curves and magnitudes of one image.

    Attributes:
        segments: the image's segments.
        seed: the seed's score of each segment; zeros without a seed.
        search: the order of the segments, how many of them insertion placed, and the scores measured on the way.
        blur: side of the blur kernel in pixels.
        scores: of the image, of the blurred and of the blank image.
        curves: the response left after each segment, measured by the search and then by the metrics; n + 1 values each.
        fits: the closest convex curves.
        sparse: the value of each segment's pixels, in the segments' own numbering.
        kept_seed: whether the order is the seed's, which scored higher than the one that the search found.
    """

    segments: Segments
    seed: Tensor
    search: SegmentOrder
    blur: int
    scores: tuple[float, float, float]
    curves: tuple[Array, Array]
    fits: tuple[Array, Array]
    sparse: Array
    kept_seed: bool = False

    def values(self, gamma: float, kappa: float) -> Array:
        """Return the value of each segment's pixels at density gamma."""
        order = np.array(self.search.order)
        in_order = self.sparse[order]
        dense = np.empty_like(in_order)
        dense[order] = dense_values(in_order, kappa)
        mixed: Array = (1 - gamma) * self.sparse + gamma * dense
        return mixed


@dataclass(frozen=True, slots=True, eq=False)
class Refinement:
    """The details of an MDA attribution.

    Attributes:
        images: one entry per image.
        cells: rows and columns of segments where they form a grid, else None.
        size: height and width of the images.
        like: an empty tensor with the precision and device of the maps.
        output: smooth or sharp.
        kappa: the least value that counts as important when a map is made dense.
    """

    images: tuple[RefinedImage, ...]
    cells: tuple[int, int] | None
    size: tuple[int, int]
    like: Tensor
    output: Output
    kappa: float

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Concatenate the details of consecutive batches."""
        return replace(parts[0], images=tuple(image for part in parts for image in part.images))

    def take(self, rows: Sequence[int]) -> Self:
        """Return the details of these images of the batch."""
        return replace(self, images=tuple(self.images[row] for row in rows))

    def with_density(self, gamma: float, output: Output | None = None, kappa: float | None = None) -> Attribution:
        """Return the map at another density, from 0 (sparse) to 1 (dense), without a model pass.

        Args:
            gamma: the density.
            output: smooth or sharp; by default as in the recipe.
            kappa: the least value that counts as important; by default as in the recipe.
        """
        if not 0 <= gamma <= 1:
            raise RecipeError(f"got gamma={gamma}; a density lies between 0 (sparse) and 1 (dense)")
        output = output or self.output
        kappa = self.kappa if kappa is None else kappa
        values = [torch.from_numpy(image.values(gamma, kappa)).to(self.like) for image in self.images]
        if output == "sharp" and self.cells and self._on_cells:
            maps, grid = torch.stack(values).unflatten(1, self.cells), TokenGrid(*self.cells, image=self.size)
        else:
            painted = [image.segments.paint(value) for image, value in zip(self.images, values, strict=True)]
            maps = torch.stack(
                painted if output == "sharp" else [self._smooth(*p) for p in zip(painted, values, strict=True)]
            )
            grid = TokenGrid(*self.size, image=self.size)
        return Attribution(maps[None], grid, details=self, enlarge="nearest" if output == "sharp" else "bilinear")

    @property
    def _on_cells(self) -> bool:
        """Whether cells enlarged to the image are the segments; not where patches leave a rest at the border."""
        labels = self.images[0].segments.labels
        return self.cells is not None and torch.equal(
            labels, grid_segments(self.size, self.cells, None, labels.device).labels
        )

    def _smooth(self, sharp: Tensor, values: Tensor) -> Tensor:
        """Resize a map to about a pixel per segment, and back to the size of the image."""
        side = math.ceil(math.sqrt(len(values)))
        small = F.interpolate(sharp[None, None], size=self.cells or (side, side), mode="bilinear", antialias=True)
        return F.interpolate(small, size=self.size, mode="bilinear")[0, 0]
