"""Remove the segments of an image by dropping their tokens: for methods that run a transformer on many masked images.

A fill puts something in the place of what is removed; a dropped token leaves nothing, and a pass costs only the tokens
that are left. A patch goes with the segment that holds its centre.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from sightline.errors import RecipeError, UnsupportedModel
from sightline.methods.kept_tokens import Scored, score_masks
from sightline.models.adapter import Adapter
from sightline.models.passes import in_batches
from sightline.models.vit.adapter import VisionTransformer
from sightline.perturb.segments import Segments, grid_segments
from sightline.types import Target

DROPPED: Final = "dropped"


def with_tokens(model: Adapter) -> VisionTransformer:
    """Return the model as a transformer whose tokens can be dropped, or say that it is none."""
    if not isinstance(model, VisionTransformer):
        raise UnsupportedModel(
            f"got blank='{DROPPED}' for {model.name}, which has no tokens to drop; give a fill, such as blank='mean'"
        )
    return model


def dropped_scores(model: Adapter, images: Tensor, masks: Sequence[Tensor], targets: Sequence[Target]) -> list[Scored]:
    """Return the targets' values with only some patches: masks, (mask, patch) booleans for each image, say which."""
    model = with_tokens(model)
    with torch.no_grad():
        tokens = torch.cat(in_batches(lambda rows: model.start(images[rows]), len(images), model.batch))
        return score_masks(model, tokens, [mask.to(images.device) for mask in masks], targets)


def centres(model: VisionTransformer, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows and the columns of the pixels at the centres of the patches."""
    grid = model.grid_of(images)
    rows, columns = (
        (torch.arange(count) * side + side // 2).clamp(max=length - 1)
        for count, side, length in zip((grid.height, grid.width), model.patch, images.shape[-2:], strict=True)
    )
    return rows, columns


def patch_labels(model: VisionTransformer, images: Tensor, piece: Segments) -> Tensor:
    """Return the segment of each patch, row by row."""
    rows, columns = (each.to(piece.labels.device) for each in centres(model, images))
    return piece.labels[rows][:, columns].flatten()


def whole_patches(model: Adapter, images: Tensor, pieces: Sequence[Segments]) -> list[Segments]:
    """Round segments to whole patches; segments that hold no centre of a patch are gone."""
    model = with_tokens(model)
    grid = model.grid_of(images)
    size = (images.shape[-2], images.shape[-1])
    patch_of_pixel = grid_segments(size, (grid.height, grid.width), model.patch, images.device).labels
    return [Segments(_renumbered(patch_labels(model, images, piece))[patch_of_pixel]) for piece in pieces]


def _renumbered(labels: Tensor) -> Tensor:
    """Number labels from 0 without a gap."""
    numbered: Tensor = labels.unique(return_inverse=True)[1]
    return numbered


def check_cells(model: VisionTransformer, images: Tensor, cells: tuple[int, int]) -> None:
    """Refuse a grid of which some cells hold no patch."""
    grid = model.grid_of(images)
    if cells[0] > grid.height or cells[1] > grid.width:
        raise RecipeError(
            f"got {cells[0]} × {cells[1]} cells with blank='{DROPPED}'; {model.name} has {grid.height} × {grid.width} "
            "patches to drop, so give no more cells than that"
        )


def dropped_share(model: Adapter, kept: float) -> float:
    """Return what a pass costs that keeps this share of the patches, beside a pass of all tokens."""
    model = with_tokens(model)
    if model.input_size is None:
        return 1.0
    return (model.prefix + kept * model.grid.cells) / model.grid.tokens
