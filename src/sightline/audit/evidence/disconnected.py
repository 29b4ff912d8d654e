"""Methods judged on disconnected mosaics, where what is irrelevant is known exactly, on any stock model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline import api
from sightline.errors import InputError
from sightline.models.adapter import Adapter
from sightline.models.disconnected import Connection, cell_mask, disconnect, mosaic

__all__ = ["MosaicScores", "aggregate_maps", "score_on_mosaics"]


@dataclass(frozen=True, eq=False)
class MosaicScores:
    """How much of each map lies in the cell that alone can matter.

    Attributes:
        scores: by recipe, the share of positive attribution in the cell, one number per mosaic and cell; 1 is perfect.
        maps: by recipe, the maps at mosaic size, (mosaic · cell, height, width).
        chance: the score of an even map.
    """

    scores: dict[str, Tensor]
    maps: dict[str, Tensor]
    chance: float


def score_on_mosaics(
    model: Adapter,
    images: Tensor,
    labels: Sequence[int] | Tensor,
    recipes: Sequence[str],
    *,
    grid: tuple[int, int] = (2, 2),
    connection: Connection = "full",
) -> MosaicScores:
    """Compose images into mosaics, explain the class of every cell, and measure how much lies in that cell.

    The model is disconnected: the score of a cell's class depends on that cell alone :cite:p:`rao2022`, so that
    attribution elsewhere is wrong whatever the model has learned.

    Args:
        model: the stock model.
        images: normalised for it, (count, 3, height, width); what does not fill a mosaic is left over.
        labels: the class of each image.
        recipes: the methods; they need gradients at the pixels at most.
        grid: rows and columns of a mosaic.
        connection: "full" or "part"; see `disconnect`.
    """
    cells = grid[0] * grid[1]
    count = len(images) // cells
    if not count or len(labels) != len(images):
        raise InputError(
            f"got {len(images)} images and {len(labels)} labels; give {cells} images or more, and a label for each"
        )
    mosaics = mosaic(images[: count * cells], grid).repeat_interleave(cells, dim=0)
    split = disconnect(model, grid, connection)
    classes = split.predict(mosaics[:1]).shape[1] // cells
    chosen = [int(label) for label in labels[: count * cells]]
    targets = [place * classes + label for place, label in zip(list(range(cells)) * count, chosen, strict=True)]
    size = (mosaics.shape[-2], mosaics.shape[-1])
    masks = torch.stack([cell_mask(size, grid, place) for place in range(cells)]).repeat(count, 1, 1)
    scores, maps = {}, {}
    for recipe in recipes:
        attribution = api.explain(split, mosaics, recipe, targets)
        found = api.evaluate(split, mosaics, attribution, "energy_pointing_game", targets, masks=masks)
        scores[recipe], maps[recipe] = found["energy_pointing_game"], attribution.pixels()
    return MosaicScores(scores, maps, 1 / cells)


def aggregate_maps(maps: Tensor, scores: Tensor, bins: int = 5) -> Tensor:
    """Return the mean map of images binned by their score, the best first: AggAtt, (bins, height, width).

    Each map is divided by its largest magnitude first. A few shown examples can mislead; the bins show what good, usual
    and bad maps of a method look like :cite:p:`rao2022`.
    """
    if not 1 <= bins <= len(maps):
        raise InputError(f"got bins={bins} for {len(maps)} maps; give one bin at least and no more than there are maps")
    most = maps.abs().amax(dim=(1, 2), keepdim=True)
    ordered = (maps / most.where(most > 0, 1))[scores.nan_to_num(-1.0).argsort(descending=True, stable=True)]
    return torch.stack([part.mean(dim=0) for part in ordered.tensor_split(bins)])
