"""Segments: an image cut into pieces that come and go as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sightline.errors import ShapeError
from sightline.extras import require

Box = tuple[slice, slice]


@dataclass(frozen=True, eq=False)
class Segments:
    """A partition of the pixels.

    Attributes:
        labels: the segment of each pixel, shape (height, width); segments are numbered from 0 without a gap.
    """

    labels: Tensor

    def __post_init__(self) -> None:
        if self.labels.ndim != 2 or not _counts_up(self.labels):
            raise ShapeError(
                f"got labels of shape {tuple(self.labels.shape)}; segments need (height, width) whole numbers "
                "that run from 0 without a gap"
            )

    @property
    def count(self) -> int:
        return len(self.pixels)

    @cached_property
    def pixels(self) -> Tensor:
        """How many pixels each segment has."""
        return self.labels.flatten().bincount()

    @cached_property
    def _pieces(self) -> list[tuple[Box, Tensor | None]]:
        """The bounding box of each segment and its mask inside it; no mask where it fills the box."""
        ends = torch.stack([*self._ends(0), *self._ends(1), self.pixels], dim=1).tolist()  # read once, for all segments
        pieces: list[tuple[Box, Tensor | None]] = []
        for segment, (top, bottom, left, right, pixels) in enumerate(ends):
            box = slice(top, bottom + 1), slice(left, right + 1)
            filled = pixels == (bottom + 1 - top) * (right + 1 - left)
            pieces.append((box, None if filled else self.labels[box] == segment))
        return pieces

    def _ends(self, axis: int) -> tuple[Tensor, Tensor]:
        """Return the first and the last row (axis 0) or column (axis 1) of each segment."""
        along = torch.arange(self.labels.shape[axis], device=self.labels.device).unsqueeze(1 - axis)
        labels, places = self.labels.flatten().long(), along.expand_as(self.labels).flatten()
        nothing = torch.zeros_like(self.pixels)
        first, last = (nothing.scatter_reduce(0, labels, places, end, include_self=False) for end in ("amin", "amax"))
        return first, last

    def paste(self, canvas: Tensor, source: Tensor, segment: int) -> None:
        """Copy a segment of `source` into `canvas`, both of shape (channel, height, width)."""
        box, mask = self._pieces[segment]
        here = (slice(None), *box)
        canvas[here] = source[here] if mask is None else torch.where(mask, source[here], canvas[here])

    def sums(self, pixels: Tensor) -> Tensor:
        """Add up a map, shape (height, width), inside each segment."""
        total = pixels.new_zeros(self.count)
        return total.index_add_(0, self.labels.flatten(), pixels.flatten())

    def means(self, pixels: Tensor) -> Tensor:
        """Average a map, shape (height, width), inside each segment."""
        return self.sums(pixels) / self.pixels.to(pixels.dtype)

    def paint(self, values: Tensor) -> Tensor:
        """Give every pixel the value of its segment."""
        return values[self.labels]


def _counts_up(labels: Tensor) -> bool:
    """Tell whether whole numbers run from 0 without a gap."""
    if labels.dtype != torch.int64 or not labels.numel():
        return torch.equal(labels.unique(), torch.arange(len(labels.unique()), device=labels.device))
    low, high = labels.aminmax()
    return bool(low == 0) and bool(high < labels.numel()) and bool(labels.flatten().bincount().all())


def grid_segments(
    size: tuple[int, int],
    cells: tuple[int, int],
    patch: tuple[int, int] | None = None,
    device: torch.device | None = None,
) -> Segments:
    """Cut an image of this size into a grid, numbered row by row.

    Args:
        size: height and width of the image.
        cells: how many cells from top to bottom and from left to right.
        patch: height and width of a cell where they are given; what is left of the image goes to the last cells.
        device: where the labels are.

    >>> grid_segments((2, 4), (1, 2)).labels
    tensor([[0, 0, 1, 1],
            [0, 0, 1, 1]])
    """
    rows, columns = (
        torch.arange(length, device=device) * count // length
        if patch is None
        else torch.arange(length, device=device).div(patch[axis], rounding_mode="floor").clamp(max=count - 1)
        for axis, (length, count) in enumerate(zip(size, cells, strict=True))
    )
    return Segments(rows[:, None] * cells[1] + columns)


def slic_segments(raw: Tensor, count: int) -> Segments:
    """Cut an image, pixel values in 0..1 of shape (3, height, width), into about `count` SLIC superpixels.

    At this compactness they are a grid whose lines are drawn a pixel or so beside those of the patches.
    """
    slic: Any = require("skimage.segmentation").slic
    rgb = raw.movedim(0, -1).detach().cpu().double().numpy()
    labels = slic(rgb, n_segments=count, compactness=10_000, start_label=0)
    return Segments(torch.from_numpy(labels).long().to(raw.device))
