"""Pictures that the set makes itself: the synthetic shapes, and quads composed of four pictures of any labelled set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sightline.data.listed import Listed
from sightline.data.quads import CELLS, cell_regions, compose, fours, place_masks
from sightline.data.shapes import Shapes
from sightline.data.source import DATASETS, Entry, Listing, Sample, Source
from sightline.errors import InputError

__all__ = ["DrawnShapes", "QuadSet"]


@DATASETS.register("shapes", family="synthetic", layout="none: the pictures are drawn by code")
@dataclass(frozen=True, slots=True)
class DrawnShapes(Source):
    """Coloured shapes among distractors, drawn by code, with exact masks of the evidence.

    Attributes:
        count: how many pictures.
        seed: another seed draws other pictures.
        size: height and width in pixels.
        variant: 'clean', 'shortcut' (half of one class show a watermark in place of their shape) or 'conflict' (a shape
            of one class beside the watermark of another).
        evidence: what the mask shows: 'label' what makes the label true, 'shortcut' the watermark.
    """

    count: int = 1000
    seed: int = 0
    size: int = 64
    variant: Literal["clean", "shortcut", "conflict"] = "clean"
    evidence: Literal["label", "shortcut"] = "label"

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(f"got count={self.count}; draw at least 1 picture")
        self._shapes()

    def listing(self) -> Listing:
        return Listing(tuple(Entry(f"shape-{index:06d}", place=index) for index in range(self.count)))

    def read(self, entry: Entry) -> Sample:
        drawn = self._shapes()[entry.place]
        mask = drawn.evidence if self.evidence == "label" else drawn.shortcut
        pixels = torch.from_numpy(drawn.image).permute(2, 0, 1).float() / 255
        return Sample(entry.id, Image.fromarray(drawn.image), drawn.label, mask.astype(np.int8), pixels)

    def _shapes(self) -> Shapes:
        return Shapes(seed=self.seed, size=self.size, variant=self.variant)


@dataclass(frozen=True, slots=True)
class _Tile:
    """What dealing needs to know of a picture."""

    name: str
    label: int


@DATASETS.register(
    "quads",
    family="composed",
    cite="var2025",
    layout="that of the set it is composed of",
    protocols={
        "var": {"side": 224, "seed": 42, "distinct": False, "region": "cell"},
        "grid_pointing": {"side": 448, "distinct": True, "region": "cell"},
    },
    filters="the grid pointing game keeps what every model classifies correctly with a probability of .99: open the "
    "inner set with predictions= and confidence=0.99; here its grid has two by two cells",
)
@dataclass(frozen=True, slots=True)
class QuadSet(Source):
    """Four pictures of a labelled set in one, each class with the cell where it should be found.

    Every quad gives four samples, one per cell: the whole quad, the class of the cell, and the cell, or the object in
    it, as the mask. No picture is used in two quads.

    Attributes:
        of: the set of the pictures, such as imagenet(root='…'), or its path.
        side: of the quad in pixels, an even number.
        seed: of the shuffle that deals pictures out.
        distinct: let no two pictures of a quad have the same class.
        region: what the mask shows: 'cell' the cell, 'object' the object's mask inside it.
    """

    of: Listed
    side: int = 224
    seed: int = 42
    distinct: bool = False
    region: Literal["cell", "object"] = "cell"

    def title(self) -> str | None:
        return f"quads of {self.of.name}"

    def listing(self) -> Listing:
        labels = {one: self.of.label(one) for one in self.of.ids}
        unknown = [one for one, label in labels.items() if label is None]
        tiles = [_Tile(one, label) for one, label in labels.items() if label is not None]
        dealt = fours(tiles, seed=self.seed, distinct=self.distinct)
        entries = [
            Entry(
                f"quad-{number:04d}-{cell.replace(' ', '-')}", label=tile.label, place=(place, *(t.name for t in four))
            )
            for number, four in enumerate(dealt)
            for place, (cell, tile) in enumerate(zip(CELLS, four, strict=True))
        ]
        reason = "its class is not known, and a quad needs one"
        return Listing(tuple(entries), (*self.of.skipped, *((one, reason) for one in unknown)))

    def read(self, entry: Entry) -> Sample:
        place, *names = entry.place
        samples = [self.of.read(name) for name in names]
        pixels = compose([one.image if one.tensor is None else one.tensor for one in samples], self.side)
        regions = cell_regions(self.side) if self.region == "cell" else self._objects(samples)
        return Sample(entry.id, _as_image(pixels), entry.label, regions[place].numpy(), pixels)

    def _objects(self, samples: list[Sample]) -> Tensor:
        masks = []
        for one in samples:
            if one.mask is None:
                raise InputError(f"{one.id!r} has no mask, so its object is not known; choose region='cell'")
            masks.append(torch.from_numpy(np.ascontiguousarray(one.mask)))
        return place_masks(masks, self.side)


def _as_image(pixels: Tensor) -> Image.Image:
    return Image.fromarray((pixels.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy())
