"""Quads: four labelled images in one, each class in its own cell of the grid.

The grid pointing game asks that the map of each of the four classes lie in its own cell. Every image is resized to a
quarter of the quad, whatever its shape, in the order top left, top right, bottom left, bottom right; the images are
sorted by name, shuffled by a seed and taken four by four :cite:p:`var2025`. Where images have masks, a quad also says
where in its cell each object is.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from sightline.data.images import read_image
from sightline.data.labels_csv import LabelledImage
from sightline.data.masks import nearest_pixels, read_mask
from sightline.errors import InputError

__all__ = ["CELLS", "Quad", "Tile", "cell_regions", "compose", "groups_of_four", "place_masks", "quads", "tiles"]

CELLS = ("top left", "top right", "bottom left", "bottom right")
Picture = Image.Image | str | Path | Tensor


class Named(Protocol):
    """Anything with a name and a class, which is all that grouping needs."""

    @property
    def name(self) -> str: ...
    @property
    def label(self) -> int: ...


T = TypeVar("T", bound=Named)


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """A labelled image that may become a cell of a quad.

    Attributes:
        picture: a PIL image, a path, or a (3, height, width) tensor.
        label: its class.
        name: what it is sorted by, different for each.
        mask: (height, width) of the image's own size, 1 object, 0 background, -1 ignore; or its path; or None.
        confidence: the probability a model gave the label, None where unknown.
    """

    picture: Picture
    label: int
    name: str
    mask: Tensor | str | Path | None = None
    confidence: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Quad:
    """Four images in one; whatever comes in fours is in the order of CELLS.

    Attributes:
        image: (3, side, side), in 0..1, or as `prepare` made it.
        classes: the four classes.
        regions: (4, side, side) int8, 1 in the cell and 0 elsewhere.
        objects: (4, side, side) int8, 1 on the object in the cell, -1 on what its mask ignores, 0 elsewhere; None
            where an image has no mask.
        names: of the four images.
    """

    image: Tensor
    classes: tuple[int, int, int, int]
    regions: Tensor
    objects: Tensor | None
    names: tuple[str, str, str, str]


def quads(
    given: Iterable[Tile],
    *,
    side: int = 224,
    seed: int = 42,
    distinct: bool = False,
    confidence: float = 0.0,
    limit: int | None = None,
    prepare: Callable[[Tensor], Tensor] | None = None,
) -> Iterator[Quad]:
    """Compose quads one after the other; no image is used twice, and up to three are left over.

    Args:
        given: the images, in any order.
        side: of the image, an even number of pixels.
        seed: of the shuffle.
        distinct: let no two images of a quad have the same class.
        confidence: leave out images whose label was less probable than this.
        limit: how many quads at most.
        prepare: what to do with each composed image, for instance a model's `normalise`.
    """
    _check_side(side)
    sure = [tile for tile in given if confidence <= 0 or _confidence(tile) >= confidence]
    groups = groups_of_four(sure, seed=seed, distinct=distinct)
    if not groups:
        raise InputError(f"got {len(sure)} pictures that fit, and a quad needs four; give more, or ask less of them")
    return (_quad(group, side, prepare) for group in groups[:limit])


def tiles(labelled: Iterable[LabelledImage]) -> list[Tile]:
    """Return the images of a labelled folder as tiles."""
    return [Tile(image.path, image.label, image.name, image.mask, image.confidence) for image in labelled]


def groups_of_four(given: Sequence[T], *, seed: int = 42, distinct: bool = False) -> list[tuple[T, T, T, T]]:
    """Sort tiles by name, shuffle them by a seed, and group them four by four.

    With `distinct` a tile whose class is already in an unfinished group goes to the next group that lacks it.
    """
    names = [tile.name for tile in given]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"two tiles are called {twice!r}, so their order is not settled; give each its own name")
    ordered = sorted(given, key=lambda tile: tile.name)
    random.Random(seed).shuffle(ordered)
    unfinished: list[list[T]] = []
    groups: list[tuple[T, T, T, T]] = []
    for tile in ordered:
        fitting = (group for group in unfinished if not (distinct and tile.label in {t.label for t in group}))
        group = next(fitting, None)
        if group is None:
            unfinished.append(group := [])
        group.append(tile)
        if len(group) == len(CELLS):
            unfinished.remove(group)
            first, second, third, fourth = group
            groups.append((first, second, third, fourth))
    return groups


def compose(pictures: Sequence[Picture], side: int = 224) -> Tensor:
    """Lay four images in the cells of one image, (3, side, side); files and PIL images come out in 0..1."""
    _check_side(side)
    if len(pictures) != len(CELLS):
        raise InputError(f"got {len(pictures)} pictures for a quad; give four")
    cells = [_resized(picture, side // 2) for picture in pictures]
    top, bottom = (torch.cat(pair, dim=2) for pair in (cells[:2], cells[2:]))
    return torch.cat([top, bottom], dim=1)


def cell_regions(side: int = 224) -> Tensor:
    """Return one mask per cell, (4, side, side) int8: 1 in the cell, 0 elsewhere."""
    _check_side(side)
    return place_masks([torch.ones(1, 1, dtype=torch.int8)] * len(CELLS), side)


def place_masks(masks: Sequence[Tensor], side: int = 224) -> Tensor:
    """Lay four masks, each of its image's size, in their cells: (4, side, side) int8, 0 outside the own cell."""
    half = side // 2
    placed = torch.zeros(len(CELLS), side, side, dtype=torch.int8)
    for cell, mask in enumerate(masks):
        top, left = divmod(cell, 2)
        rows, columns = (nearest_pixels(length, half) for length in mask.shape)
        placed[cell, top * half :, left * half :][:half, :half] = mask[rows][:, columns]
    return placed


def _quad(group: Sequence[Tile], side: int, prepare: Callable[[Tensor], Tensor] | None) -> Quad:
    image = compose([tile.picture for tile in group], side)
    masks = [_mask(tile) for tile in group]
    known = [mask for mask in masks if mask is not None]
    first, second, third, fourth = group
    return Quad(
        image=image if prepare is None else prepare(image),
        classes=(first.label, second.label, third.label, fourth.label),
        regions=cell_regions(side),
        objects=place_masks(known, side) if len(known) == len(masks) else None,
        names=(first.name, second.name, third.name, fourth.name),
    )


def _resized(picture: Picture, half: int) -> Tensor:
    """Resize an image of any shape to a square, as a (3, half, half) tensor."""
    if isinstance(picture, Tensor):
        if picture.ndim != 3 or not picture.is_floating_point():
            raise InputError(
                f"got a {picture.dtype} tensor of shape {tuple(picture.shape)}; floats (3, height, width) are needed"
            )
        scaled = F.interpolate(picture[None], size=(half, half), mode="bilinear", antialias=True, align_corners=False)
        return scaled[0]
    image = read_image(picture) if isinstance(picture, str | Path) else picture.convert("RGB")
    pixels = np.asarray(image.resize((half, half), Image.Resampling.BILINEAR), dtype=np.float32) / 255
    return torch.from_numpy(pixels).permute(2, 0, 1)


def _mask(tile: Tile) -> Tensor | None:
    return read_mask(tile.mask) if isinstance(tile.mask, str | Path) else tile.mask


def _confidence(tile: Tile) -> float:
    if tile.confidence is None:
        raise InputError(f"nobody says how probable the label of {tile.name!r} is; leave confidence at 0")
    return tile.confidence


def _check_side(side: int) -> None:
    if side < 2 or side % 2:
        raise InputError(f"got side={side}; a quad has two cells of the same size side by side, so give an even number")
