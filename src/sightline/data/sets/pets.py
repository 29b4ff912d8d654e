"""Oxford-IIIT Pet: cats and dogs of 37 breeds, with trimaps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from sightline.data.annotation_files import first_existing, read_lines
from sightline.data.images import read_indices
from sightline.data.source import DATASETS, Entry, Listing, Sample, Source, file_problem, path_inside
from sightline.errors import InputError

__all__ = ["Pets"]

PET, BACKGROUND, BORDER = 1, 2, 3
BREEDS = 37


@DATASETS.register(
    "pets",
    family="classification",
    cite="parkhi2012",
    layout="""
        root/[oxford-iiit-pet/]images/Abyssinian_201.jpg
        root/[oxford-iiit-pet/]annotations/test.txt                      name, breed from 1, species, number
        root/[oxford-iiit-pet/]annotations/trimaps/Abyssinian_201.png    1 pet, 2 background, 3 border
    """,
    protocols={"caap": {"seed": 0, "limit": 500}},
    filters="caap takes 500 random images and names no seed; 0 is taken",
)
@dataclass(frozen=True, slots=True)
class Pets(Source):
    """Oxford-IIIT Pet: photographs of 37 breeds of cats and dogs with trimaps of the pet.

    Labels count the breeds from 0, in the order of models fine-tuned on this set, which is not ImageNet's.

    Attributes:
        root: the folder, as torchvision leaves it.
        split: 'test' or 'trainval'.
        masks: read the trimaps; an image without one is then left out.
    """

    root: Path
    split: Literal["test", "trainval"] = "test"
    masks: bool = True

    def listing(self) -> Listing:
        top = self.root / "oxford-iiit-pet" if (self.root / "oxford-iiit-pet").is_dir() else self.root
        table = first_existing([top / "annotations" / f"{self.split}.txt"], "the list of pictures")
        maps = top / "annotations" / "trimaps"
        entries, skipped = [], []
        for name, *numbers in read_lines(table):
            reason = file_problem(top / "images", f"{name}.jpg")
            reason = reason or (file_problem(maps, f"{name}.png") if self.masks else None)
            if reason is None and not (numbers and numbers[0] in map(str, range(1, BREEDS + 1))):
                reason = f"{table.name} tells no breed from 1 to {BREEDS} for it"
            if reason:
                skipped.append((name, reason))
                continue
            mask = path_inside(maps, f"{name}.png") if self.masks else None
            entries.append(Entry(name, path_inside(top / "images", f"{name}.jpg"), int(numbers[0]) - 1, mask))
        return Listing(tuple(entries), tuple(skipped))

    def read(self, entry: Entry) -> Sample:
        if entry.mask is None:
            return Sample(entry.id, self.stored_image(entry), entry.label)
        trimap = read_indices(entry.mask)
        if strange := sorted(set(np.unique(trimap).tolist()) - {PET, BACKGROUND, BORDER}):
            raise InputError(f"the trimap {entry.mask} holds {strange[0]}; it has 1, 2 and 3 only; restore it")
        mask = np.select([trimap == PET, trimap == BORDER], [1, -1], 0).astype(np.int8)
        return Sample(entry.id, self.stored_image(entry), entry.label, mask)
