"""PASCAL VOC 2012: photographs with the category of each pixel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from sightline.data.annotation_files import first_existing, read_lines
from sightline.data.images import read_indices
from sightline.data.source import DATASETS, Entry, Listing, Mask, Sample, Source, file_problem, path_inside
from sightline.errors import InputError

__all__ = ["Voc"]

CATEGORIES = 20
BORDER = 255


@DATASETS.register(
    "voc",
    family="segmentation",
    cite="everingham2010",
    layout="""
        root/[VOCdevkit/]VOC2012/JPEGImages/2007_000033.jpg
        root/[VOCdevkit/]VOC2012/SegmentationClass/2007_000033.png
        root/[VOCdevkit/]VOC2012/ImageSets/Segmentation/val.txt
    """,
    protocols={"iia": {"border": "object"}},
    filters="iia takes every number above zero as object, the border (255) too",
)
@dataclass(frozen=True, slots=True)
class Voc(Source):
    """PASCAL VOC 2012: 1449 photographs of twenty categories with the category of each pixel.

    Its categories are not ImageNet's, so images have no label unless asked for.

    Attributes:
        root: the folder that holds VOCdevkit, or VOC2012.
        split: the list in ImageSets/Segmentation.
        border: what the strip around objects, number 255, is: 'ignore', 'object' or 'background'.
        label: 'none', or 'largest', the category from 0 to 19 with most pixels, for models of these twenty; then only
            its pixels are evidence.
    """

    root: Path
    split: Literal["train", "val", "trainval"] = "val"
    border: Literal["ignore", "object", "background"] = "ignore"
    label: Literal["none", "largest"] = "none"

    def listing(self) -> Listing:
        folders = (self.root / "VOCdevkit" / "VOC2012", self.root / "VOC2012", self.root)
        top = first_existing((folder / "ImageSets" for folder in folders), "the folder of lists").parent
        table = first_existing([top / "ImageSets" / "Segmentation" / f"{self.split}.txt"], "the list of pictures")
        images, masks = top / "JPEGImages", top / "SegmentationClass"
        entries, skipped = [], []
        for name in (line[0] for line in read_lines(table)):
            reason = file_problem(images, f"{name}.jpg") or file_problem(masks, f"{name}.png")
            if reason:
                skipped.append((name, reason))
            else:
                entries.append(Entry(name, path_inside(images, f"{name}.jpg"), mask=path_inside(masks, f"{name}.png")))
        return Listing(tuple(entries), tuple(skipped))

    def read(self, entry: Entry) -> Sample:
        assert entry.mask is not None
        numbers = read_indices(entry.mask)
        strange = sorted(set(np.unique(numbers).tolist()) - {BORDER, *range(CATEGORIES + 1)})
        if strange:
            raise InputError(f"the mask {entry.mask} holds the number {strange[0]}, which is no category; restore it")
        objects: Mask = ((numbers > 0) & (numbers != BORDER)).astype(np.int8)
        label = None
        if self.label == "largest":
            if not objects.any():
                raise InputError(f"{entry.id!r} shows none of the categories, so it has no label")
            label = int(np.bincount(numbers[objects == 1]).argmax())
            objects = (numbers == label).astype(np.int8)
            label -= 1
        objects[numbers == BORDER] = {"ignore": -1, "object": 1, "background": 0}[self.border]
        return Sample(entry.id, self.stored_image(entry), label, objects)
