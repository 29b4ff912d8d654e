"""Coalitions: the score of an image in which some segments are there and the others are not.

What LIME, Shapley values and the ablation of superpixels have in common: an image cut into segments, something that
stands where a segment is absent, and many images mixed of the two, which go through the model in batches.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.batch import in_batches
from sightline.models.precision import full_precision
from sightline.perturb.curve import read_scores
from sightline.perturb.fill import make_fill
from sightline.perturb.mirror import box_blur
from sightline.perturb.segments import Segments
from sightline.perturb.superpixels import Given, Option, Own, Size, cells_of_cut, pieces_of
from sightline.types import Attribution, Target, TokenGrid, pixel_grid

AbsentName = Literal["mean", "black", "white", "blur", "segment"]
Absent = AbsentName | float  # a number is a value after normalisation
Masks = Callable[[int, slice], Tensor]  # some of the masks of one image
BLUR = 4 / 7  # of the shorter side: 128 of 224 pixels, as the examples of shap


class OnSegments(MultiTarget):
    """A method that gives every segment of an image one value."""

    __slots__ = ()
    segments: Option | None

    @abstractmethod
    def values(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], pieces: Sequence[Segments]
    ) -> list[Tensor]:
        """Return of each image what its segments are worth, shape (target, segment)."""

    def on(self, model: Adapter, images: Tensor, targets: Sequence[Target], segments: Given | Own) -> list[Attribution]:
        """Explain with segments of one's own; see `pieces_of` for what may be given.

        A grid given by name has a map of its cells, anything else a map of pixels that have their segment's value.
        """
        with torch.no_grad():
            pieces = pieces_of(model, images, segments)
            values = self.values(model, images, targets, pieces)
        return lay_out(images, pieces, values, cells_of_cut(segments, (images.shape[-2], images.shape[-1])))

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        return self.on(model, images, targets, self.segments or "grid")


def lay_out(
    images: Tensor, pieces: Sequence[Segments], values: Sequence[Tensor], cells: Size | None = None
) -> list[Attribution]:
    """Lay the segments' values, (target, segment) for each image, on a grid of cells or on the pixels."""
    grid = pixel_grid(images) if cells is None else TokenGrid(*cells, image=pixel_grid(images).image)
    maps = [
        each[:, piece.labels] if cells is None else each.unflatten(1, cells)
        for each, piece in zip(values, pieces, strict=True)
    ]
    return [Attribution(one[None], grid) for one in torch.stack(maps, dim=1)]


def coalition_scores(
    model: Adapter,
    images: Tensor,
    absent: Tensor,
    pieces: Sequence[Segments],
    coalitions: Sequence[Tensor],
    targets: Sequence[Target],
) -> list[Tensor]:
    """Return of each image the targets' values for its coalitions, shape (target, coalition).

    Args:
        model: the model.
        images: shape (batch, 3, height, width).
        absent: what stands where a segment is absent, of the same shape.
        pieces: the segments of each image.
        coalitions: of each image which segments are there, shape (coalition, segment), bool.
        targets: what is read of the logits.
    """

    def masks(row: int, part: slice) -> Tensor:
        return coalitions[row][part].to(images.device)[:, pieces[row].labels]

    return mixed_scores(model, images, absent, [len(each) for each in coalitions], masks, targets)


def mixed_scores(
    model: Adapter, images: Tensor, absent: Tensor, counts: Sequence[int], masks: Masks, targets: Sequence[Target]
) -> list[Tensor]:
    """Return of each image the targets' values where it is mixed with its absent one, shape (target, mask).

    Args:
        model: the model.
        images: shape (batch, 3, height, width).
        absent: what stands where a mask is False, of the same shape.
        counts: how many masks each image has.
        masks: gives some of the masks of an image, shape (mask, height, width), bool; made when they are needed.
        targets: what is read of the logits.
    """

    def work(part: slice) -> Tensor:
        mixed, rows = [], []
        for row, some in runs(part, counts):
            mixed.append(torch.where(masks(row, some)[:, None], images[row], absent[row]))
            rows += [row] * len(mixed[-1])
        logits = model(torch.cat(mixed))
        return torch.stack([read_scores(model, target.take(rows), logits) for target in targets])

    with torch.no_grad():
        found = in_batches(work, sum(counts), model.batch)
    return list(torch.cat(found, dim=1).split(list(counts), dim=1))


def runs(part: slice, counts: Sequence[int]) -> Iterator[tuple[int, slice]]:
    """Split consecutive numbers by the image that they belong to: the image, and which of its own they are.

    >>> list(runs(slice(1, 5), [2, 0, 4]))
    [(0, slice(1, 2, None)), (2, slice(0, 3, None))]
    """
    start = 0
    for row, count in enumerate(counts):
        first, last = max(part.start - start, 0), min(part.stop - start, count)
        if first < last:
            yield row, slice(first, last)
        start += count


def absent_images(
    model: Adapter, images: Tensor, name: Absent, pieces: Sequence[Segments] = (), window: int | None = None
) -> Tensor:
    """Return what stands where parts of the images are absent, in the shape of the images.

    ``mean`` is the mean colour of the training set, zero after normalisation; ``segment`` each segment's own mean
    colour; ``blur`` the image under a square window; a number that value after normalisation.
    """
    if isinstance(name, int | float):
        return torch.full_like(images, name)
    if name == "mean":
        return torch.zeros_like(images)
    if name == "blur":
        exact = full_precision(images)
        return box_blur(exact, window or max(1, round(BLUR * min(images.shape[-2:])))).to(images.dtype)
    if name == "segment":
        return torch.stack([_own_colours(*pair) for pair in zip(images, pieces, strict=True)])
    return make_fill(name)(model, images)


def _own_colours(image: Tensor, piece: Segments) -> Tensor:
    exact = full_precision(image)
    return torch.stack([piece.paint(piece.means(channel)) for channel in exact]).to(image.dtype)


def check_absent(name: str | float, *, segments: bool = True) -> None:
    """Refuse what cannot stand for what is absent."""
    allowed = [each for each in get_args(AbsentName) if segments or each != "segment"]
    if name not in allowed and (isinstance(name, str | bool) or not math.isfinite(name)):
        raise RecipeError(f"got blank={name!r}; choose from {', '.join(allowed)}, or give a finite number")


def usual_size(model: Adapter) -> Size:
    """Return the image size by which costs are declared."""
    return model.default_size
