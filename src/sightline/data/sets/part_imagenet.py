"""PartImageNet: images of ImageNet with the outlines of the parts of their object."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sightline.data.annotation_files import first_existing
from sightline.data.sets.coco import read_annotations, region_mask
from sightline.data.sets.imagenet_classes import class_of_synset
from sightline.data.source import DATASETS, Entry, Listing, Sample, Source

__all__ = ["PartImageNet"]


@DATASETS.register(
    "part_imagenet",
    family="segmentation",
    cite="he2022",
    layout="""
        root/annotations/val.json                    in COCO's format; perhaps annotations/val/val.json
        root/images/val/n01440764_10029.JPEG         perhaps root/val/…, perhaps in folders of synsets
    """,
    filters="the Part-Quad set of var is not defined in its text; its most likely meaning is "
    "quads(of=part_imagenet(root='…'), region='object')",
)
@dataclass(frozen=True, slots=True)
class PartImageNet(Source):
    """PartImageNet: 24 000 photographs of 158 ImageNet classes with the outlines of their parts.

    The evidence is the union of the parts, which is the object; the label is the synset in the file's name.

    Attributes:
        root: the folder.
        split: 'train', 'val' or 'test'.
        part: take only parts whose name holds this text, for instance 'Head'; empty takes all.
    """

    root: Path
    split: Literal["train", "val", "test"] = "val"
    part: str = ""

    def listing(self) -> Listing:
        top = self.root / "annotations"
        table = first_existing((top / f"{self.split}.json", top / self.split / f"{self.split}.json"), "the annotations")
        folder = first_existing((self.root / "images" / self.split, self.root / self.split), "the pictures")
        images, names, skipped = read_annotations(table, folder)
        entries, wanted = [], self.part.casefold()
        for image in images:
            parts = [part for part in image.annotations if wanted in names.get(part["category_id"], "").casefold()]
            label, id = class_of_synset(image.path.name.partition("_")[0]), image.path.stem
            if label is None:
                skipped.append((id, "its name holds no synset of ImageNet"))
            elif not parts:
                skipped.append((id, f"it has no part {self.part!r}" if self.part else "it has no annotation"))
            else:
                entries.append(image.entry(id, label, parts))
        return Listing(tuple(sorted(entries, key=lambda entry: entry.id)), tuple(skipped))

    def read(self, entry: Entry) -> Sample:
        return Sample(entry.id, self.stored_image(entry), entry.label, region_mask(entry))
