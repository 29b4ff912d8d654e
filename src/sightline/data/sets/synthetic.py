"""Images made by code: the synthetic shapes, and quads composed of four images of any labelled set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sightline.data.quads import CELLS, cell_regions, compose, groups_of_four, place_masks
from sightline.data.selection import Dataset
from sightline.data.shapes import Shapes, Variant
from sightline.data.shapes_scenes import ShapesScenes
from sightline.data.source import DATASETS, Entry, Listing, Sample, Source
from sightline.errors import InputError

__all__ = ["Quads", "SyntheticScenes", "SyntheticShapes"]


@DATASETS.register("shapes", family="synthetic", layout="none: the images are drawn by code")
@dataclass(frozen=True, slots=True)
class SyntheticShapes(Source):
    """Coloured shapes among distractors, drawn by code, with exact masks of the evidence.

    Attributes:
        count: how many images.
        seed: another seed draws other images.
        size: height and width in pixels.
        variant: 'clean', 'shortcut' (half of one class show a watermark in place of their shape) or 'conflict' (a shape
            of one class beside the watermark of another).
        evidence: what the mask shows: 'label' what makes the label true, 'shortcut' the watermark.
    """

    count: int = 1000
    seed: int = 0
    size: int = 64
    variant: Variant = "clean"
    evidence: Literal["label", "shortcut"] = "label"

    def __post_init__(self) -> None:
        self._shapes()

    def listing(self) -> Listing:
        return Listing(tuple(Entry(f"shape-{index:06d}", details=index) for index in range(self.count)))

    def read(self, entry: Entry) -> Sample:
        drawn = self._shapes()[entry.details]
        mask = drawn.evidence if self.evidence == "label" else drawn.shortcut
        pixels = torch.from_numpy(drawn.image).permute(2, 0, 1).float() / 255
        return Sample(entry.id, Image.fromarray(drawn.image), drawn.label, mask.astype(np.int8), pixels)

    def _shapes(self) -> Shapes:
        return Shapes(seed=self.seed, size=self.size, variant=self.variant)


@DATASETS.register("shapes_scenes", family="synthetic", layout="none: the images are drawn by code")
@dataclass(frozen=True, slots=True)
class SyntheticScenes(Source):
    """Scenes of two or three shapes each, drawn by code, with exact masks: for segmentations and detectors.

    A sample asks for one object of its scene, by its label; every label is in a scene once at most.

    Attributes:
        count: how many scenes.
        seed: another seed draws other scenes; the bundled heads have learned from seed 0.
        size: height and width in pixels.
        task: how labels are counted: 'detection' from 0, 'segmentation' from 1, 0 being the background.
        region: what the mask shows: 'object' the object that is asked for, 'neighbours' the others in its scene.
    """

    count: int = 1000
    seed: int = 1
    size: int = 64
    task: Literal["detection", "segmentation"] = "detection"
    region: Literal["object", "neighbours"] = "object"

    def __post_init__(self) -> None:
        self._scenes()

    def listing(self) -> Listing:
        return Listing(tuple(Entry(f"scene-{index:06d}", details=index) for index in range(self.count)))

    def read(self, entry: Entry) -> Sample:
        scene = self._scenes()[entry.details]
        first = 1 if self.task == "segmentation" else 0
        labels = tuple(first + label for label in scene.labels)
        shown = scene.masks[:1] if self.region == "object" else scene.masks[1:]
        mask = np.any(shown, axis=0) if shown else np.zeros(scene.image.shape[:2], dtype=bool)
        pixels = torch.from_numpy(scene.image).permute(2, 0, 1).float() / 255
        return Sample(entry.id, Image.fromarray(scene.image), labels[0], mask.astype(np.int8), pixels, labels)

    def _scenes(self) -> ShapesScenes:
        return ShapesScenes(seed=self.seed, size=self.size)


@dataclass(frozen=True, slots=True)
class _Tile:
    """An image of the inner set, by its id, with its class."""

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
class Quads(Source):
    """Four images of a labelled set in one, each class in its own cell of the grid.

    Every quad gives four samples, one per cell: the whole quad, the class of the cell, and the cell, or the object in
    it, as the mask; all four know the four classes of the quad. No image is used in two quads.

    Attributes:
        of: the set of the images, such as imagenet(root='…'), or its path.
        side: of the quad in pixels, an even number.
        seed: of the shuffle before images are taken four by four.
        distinct: let no two images of a quad have the same class.
        region: what the mask shows: 'cell' the cell, 'object' the object's mask inside it.
    """

    of: Dataset
    side: int = 224
    seed: int = 42
    distinct: bool = False
    region: Literal["cell", "object"] = "cell"

    def title(self) -> str | None:
        return f"quads of {self.of.name}"

    def listing(self) -> Listing:
        labels = {id: self.of.label(id) for id in self.of.ids}
        tiles = [_Tile(id, label) for id, label in labels.items() if label is not None]
        entries = []
        for number, group in enumerate(groups_of_four(tiles, seed=self.seed, distinct=self.distinct)):
            names = tuple(tile.name for tile in group)
            entries += [
                Entry(
                    f"quad-{number:04d}-{CELLS[cell].replace(' ', '-')}", label=group[cell].label, details=(cell, names)
                )
                for cell in range(len(CELLS))
            ]
        reason = "its class is not known, and a quad needs one"
        unknown = ((id, reason) for id, label in labels.items() if label is None)
        return Listing(tuple(entries), (*self.of.skipped, *unknown))

    def read(self, entry: Entry) -> Sample:
        cell, names = entry.details
        samples = [self.of.read(name) for name in names]
        pixels = compose([s.image if s.tensor is None else s.tensor for s in samples], self.side)
        regions = cell_regions(self.side) if self.region == "cell" else self._objects(samples)
        classes = tuple(sample.label for sample in samples if sample.label is not None)
        return Sample(entry.id, _as_image(pixels), entry.label, regions[cell].numpy(), pixels, classes)

    def _objects(self, samples: list[Sample]) -> Tensor:
        masks = []
        for sample in samples:
            if sample.mask is None:
                raise InputError(f"{sample.id!r} has no mask, so its object is not known; choose region='cell'")
            masks.append(torch.from_numpy(np.ascontiguousarray(sample.mask)))
        return place_masks(masks, self.side)


def _as_image(pixels: Tensor) -> Image.Image:
    return Image.fromarray((pixels.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy())
