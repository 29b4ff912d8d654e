"""ImageNet-S: images of ImageNet's validation set with the class of each pixel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.data.annotation_files import first_existing, read_lines
from sightline.data.images import read_image
from sightline.data.masks import fit_mask
from sightline.data.sets.imagenet import validation_files
from sightline.data.sets.imagenet_classes import class_of_synset
from sightline.data.source import DATASETS, Entry, Listing, Sample, Source
from sightline.errors import InputError, RecipeError

__all__ = ["ImageNetS"]

OTHER, IGNORED = 0, 1000
Ids = NDArray[np.int64]


@DATASETS.register(
    "imagenet_s",
    family="segmentation",
    cite="gao2022",
    layout="""
        root/validation-segmentation/n01440764/ILSVRC2012_val_00000293.png     id = red + 256 green
        root/ImageNetS_categories_im919.txt                                    line i names the synset of id i
        images/…                                                               ImageNet validation, any layout
    """,
    protocols={"skipplus": {"seed": 42, "limit": 5000, "area": 0.05}, "caap": {"seed": 0, "limit": 128}},
    filters="skipplus: files sorted, permuted by default_rng(42), the largest class after the model's resize and crop "
    "is the target, kept where it covers 5 % or more. caap tells neither the choice nor its size; 128 is inferred from "
    "its figures",
)
@dataclass(frozen=True, slots=True)
class ImageNetS(Source):
    """ImageNet-S validation: 12 419 photographs of 919 classes with the class of each pixel.

    The label is the class that covers most of what the model sees, and its pixels are the evidence.

    Attributes:
        root: the folder of ImageNet-S, for instance ImageNetS919.
        images: the folder of ImageNet's validation set, in any layout; None looks in root/validation.
        area: the least share of what the model sees that the class must cover.
        resize: to what the model resizes the short side.
        crop: side of the central square that the model sees.
    """

    root: Path
    images: Path | None = None
    area: float = 0.05
    resize: int = 256
    crop: int = 224

    def __post_init__(self) -> None:
        if self.crop > self.resize:
            raise RecipeError(f"got crop={self.crop}, resize={self.resize}; choose a crop no larger than that")

    def listing(self) -> Listing:
        folder = first_existing([self.root / "validation-segmentation"], "the folder of masks")
        masks = sorted(path for path in folder.rglob("*.png") if not path.name.startswith("."))
        if not masks:
            raise InputError(f"{folder} holds no mask; give the folder of ImageNet-S")
        self._categories()
        files = validation_files(self.images or self.root / "validation")
        entries = [Entry(path.stem, files[path.stem], mask=path) for path in masks if path.stem in files]
        missing = [(path.stem, "its photograph is missing") for path in masks if path.stem not in files]
        return Listing(tuple(entries), tuple(missing))

    def reject_reason(self, entry: Entry) -> str | None:
        category, share = self._largest(self._ids(entry))
        if category is None:
            return "what the model sees holds no class"
        return None if share >= self.area else f"its class covers {share:.1%} of what the model sees"

    def read(self, entry: Entry) -> Sample:
        ids = self._ids(entry)
        category, _ = self._largest(ids)
        if category is None:
            raise InputError(f"what the model sees of {entry.id!r} holds no class")
        mask = (ids == category).astype(np.int8)
        mask[ids == IGNORED] = -1
        return Sample(entry.id, self.stored_image(entry), class_of_synset(self._categories()[category - 1]), mask)

    def _ids(self, entry: Entry) -> Ids:
        """Return the category of each pixel."""
        assert entry.mask is not None
        pixels = np.asarray(read_image(entry.mask, upright=False)).astype(np.int64)
        ids = pixels[..., 0] + 256 * pixels[..., 1]
        strange = sorted(set(np.unique(ids).tolist()) - {IGNORED, *range(len(self._categories()) + 1)})
        if strange:
            raise InputError(f"the mask {entry.mask} holds the id {strange[0]}, which is no category; restore it")
        return ids

    def _largest(self, ids: Ids) -> tuple[int | None, float]:
        """Return the category that covers most of what the model sees, and its share."""
        height, width = ids.shape
        seen = fit_mask(torch.from_numpy(ids), image_size=(height, width), resize=self.resize, crop=self.crop).numpy()
        categories, counts = np.unique(seen, return_counts=True)
        pixels = {int(category): int(count) for category, count in zip(categories, counts, strict=True)}
        largest = max(
            pixels.keys() - {OTHER, IGNORED}, key=lambda category: (pixels[category], -category), default=None
        )
        return largest, pixels[largest] / seen.size if largest is not None else 0.0

    def _categories(self) -> tuple[str, ...]:
        lists = sorted(self.root.glob("ImageNetS_categories_im*.txt"))
        if not lists:
            raise InputError(f"{self.root} has no ImageNetS_categories_im919.txt, which names the categories; add it")
        return _read_categories(lists[-1])


@lru_cache(maxsize=8)
def _read_categories(path: Path) -> tuple[str, ...]:
    names = tuple(line[0] for line in read_lines(path))
    strange = next((name for name in names if class_of_synset(name) is None), None)
    if strange is not None or not names:
        raise InputError(f"{path} names {strange!r}, which is no synset of ImageNet; restore it")
    return names
