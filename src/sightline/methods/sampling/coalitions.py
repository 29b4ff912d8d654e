"""Coalitions: the scores of an image in which some segments are kept and the others replaced by a fill.

Shared by LIME, Shapley values and the ablation of superpixels: an image partitioned into segments, a fill for removed
segments, and many masked images, which go through the model in batches.
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
from sightline.methods.sampling.dropped import (
    DROPPED,
    check_cells,
    dropped_scores,
    patch_labels,
    whole_patches,
    with_tokens,
)
from sightline.models.adapter import Adapter
from sightline.models.passes import full_precision, in_batches
from sightline.perturb.curve import read_scores
from sightline.perturb.fill import make_fill
from sightline.perturb.mirror import box_blur
from sightline.perturb.segments import Segments
from sightline.perturb.superpixels import CustomSegments, Given, Option, Size, cells_of_cut, segments_of
from sightline.types import Attribution, Target, TokenGrid, pixel_grid

FillName = Literal["mean", "black", "white", "blur", "segment"]
FillOption = FillName | float  # a number is a value after normalisation
FillOrDropped = FillOption | Literal["dropped"]
Masks = Callable[[int, slice], Tensor]  # some of the masks of one image
BLUR = 4 / 7  # of the shorter side: 128 of 224 pixels, as the examples of shap


class SegmentMethod(MultiTarget):
    """A method that attributes to the segments of an image, one value each."""

    __slots__ = ()
    segments: Option | None
    blank: FillOrDropped

    @abstractmethod
    def values(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], pieces: Sequence[Segments]
    ) -> list[Tensor]:
        """Return the values of each image's segments, shape (target, segment)."""

    def on(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], segments: Given | CustomSegments
    ) -> list[Attribution]:
        """Explain with given segments; see `segments_of` for what is accepted.

        A grid given by name yields a map of its cells, anything else a map of pixels with their segment's value.
        """
        cells = cells_of_cut(segments, (images.shape[-2], images.shape[-1]))
        with torch.no_grad():
            pieces = segments_of(model, images, segments)
            if self.blank == DROPPED:
                check_cells(with_tokens(model), images, cells or (1, 1))
                pieces = whole_patches(model, images, pieces)
            values = self.values(model, images, targets, pieces)
        return segment_attributions(images, pieces, values, cells)

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        return self.on(model, images, targets, self.segments or "grid")


def segment_attributions(
    images: Tensor, pieces: Sequence[Segments], values: Sequence[Tensor], cells: Size | None = None
) -> list[Attribution]:
    """Return each target's map of the segments' values, (target, segment) per image, on cells or on pixels.

    A segment has one value, so cells are enlarged as they are.
    """
    grid = pixel_grid(images) if cells is None else TokenGrid(*cells, image=pixel_grid(images).image)
    maps = [
        own[:, piece.labels] if cells is None else own.unflatten(1, cells)
        for own, piece in zip(values, pieces, strict=True)
    ]
    return [Attribution(of_target[None], grid, enlarge="nearest") for of_target in torch.stack(maps, dim=1)]


def coalition_scores(
    model: Adapter,
    images: Tensor,
    fill: Tensor | None,
    pieces: Sequence[Segments],
    coalitions: Sequence[Tensor],
    targets: Sequence[Target],
) -> list[Tensor]:
    """Return the targets' values for each image's coalitions, shape (target, coalition).

    Args:
        model: the model.
        images: shape (batch, 3, height, width).
        fill: the pixels of removed segments, of the same shape; None where their tokens are dropped.
        pieces: the segments of each image.
        coalitions: for each image which segments are kept, shape (coalition, segment), bool.
        targets: functions of the logits.
    """
    if fill is None:
        labels = [patch_labels(with_tokens(model), images, piece).cpu() for piece in pieces]
        kept = [own.cpu()[:, label] for own, label in zip(coalitions, labels, strict=True)]
        return [each.scores for each in dropped_scores(model, images, kept, targets)]

    sent = [each.to(images.device) for each in coalitions]

    def masks(row: int, part: slice) -> Tensor:
        return sent[row][part][:, pieces[row].labels]

    return masked_scores(model, images, fill, [len(own) for own in coalitions], masks, targets)


def masked_scores(
    model: Adapter, images: Tensor, fill: Tensor, counts: Sequence[int], masks: Masks, targets: Sequence[Target]
) -> list[Tensor]:
    """Return the targets' values for each image's masked copies, shape (target, mask).

    Args:
        model: the model.
        images: shape (batch, 3, height, width).
        fill: the pixels where a mask is False, of the same shape.
        counts: how many masks each image has.
        masks: returns some of the masks of an image, shape (mask, height, width), bool; called when they are needed.
        targets: functions of the logits.
    """

    def work(part: slice) -> Tensor:
        masked, rows = [], []
        for row, some in split_by_image(part, counts):
            masked.append(torch.where(masks(row, some)[:, None], images[row], fill[row]))
            rows += [row] * len(masked[-1])
        logits = model(masked[0] if len(masked) == 1 else torch.cat(masked))
        return torch.stack([read_scores(model, target.take(rows), logits) for target in targets])

    with torch.no_grad():
        scores = in_batches(work, sum(counts), model.batch)
    return list(torch.cat(scores, dim=1).split(list(counts), dim=1))


def split_by_image(part: slice, counts: Sequence[int]) -> Iterator[tuple[int, slice]]:
    """Split a range over the masks of all images by image: the image, and which of its own masks.

    >>> list(split_by_image(slice(1, 5), [2, 0, 4]))
    [(0, slice(1, 2, None)), (2, slice(0, 3, None))]
    """
    start = 0
    for row, count in enumerate(counts):
        first, last = max(part.start - start, 0), min(part.stop - start, count)
        if first < last:
            yield row, slice(first, last)
        start += count


def fill_images(
    model: Adapter, images: Tensor, name: FillOption, pieces: Sequence[Segments] = (), window: int | None = None
) -> Tensor:
    """Return the pixels that replace removed parts of the images, in the shape of the images.

    ``mean`` is the mean colour of the training set, zero after normalisation; ``segment`` each segment's own mean
    colour; ``blur`` the image under a box blur; a number that value after normalisation.
    """
    if isinstance(name, int | float):
        return torch.full_like(images, name)
    if name == "mean":
        return torch.zeros_like(images)
    if name == "blur":
        exact = full_precision(images)
        return box_blur(exact, window or max(1, round(BLUR * min(images.shape[-2:])))).to(images.dtype)
    if name == "segment":
        return torch.stack([_segment_means(*pair) for pair in zip(images, pieces, strict=True)])
    return make_fill(name)(model, images)


def _segment_means(image: Tensor, piece: Segments) -> Tensor:
    exact = full_precision(image)
    return torch.stack([piece.paint(piece.means(channel)) for channel in exact]).to(image.dtype)


def coalition_fill(
    model: Adapter, images: Tensor, name: FillOrDropped, pieces: Sequence[Segments] = ()
) -> Tensor | None:
    """Return the fill for `coalition_scores`: None where tokens are dropped instead."""
    return None if name == DROPPED else fill_images(model, images, name, pieces)


def check_fill(name: str | float, *, segments: bool = True, dropped: bool = False) -> None:
    """Refuse what is not a fill; `segment` is one only where there are segments, `dropped` where tokens may be."""
    allowed = [fill for fill in get_args(FillName) if segments or fill != "segment"] + [DROPPED] * dropped
    if name not in allowed and (isinstance(name, str | bool) or not math.isfinite(name)):
        raise RecipeError(f"got blank={name!r}; choose from {', '.join(allowed)}, or give a finite number")


def check_numpy_seed(seed: int, variant: str) -> None:
    """Refuse a seed that NumPy's legacy generator, which released code draws from, does not take."""
    if not 0 <= seed < 2**32:
        raise RecipeError(f"got seed={seed} with variant={variant!r}; NumPy's seeds are 0 to {2**32 - 1}")
