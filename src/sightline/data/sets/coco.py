"""COCO 2017: photographs with the outlines of their objects; and what other sets of the same format share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sightline.data.annotation_files import first_existing, read_csv, read_json
from sightline.data.coco_masks import annotation_mask, box_mask
from sightline.data.sets.imagenet_classes import class_of_synset
from sightline.data.source import DATASETS, Entry, Listing, Mask, Sample, Source, file_problem, path_inside
from sightline.errors import InputError, RecipeError

__all__ = ["Coco", "read_annotations", "region_mask"]

# Categories for which ImageNet has a class of the same thing; the rest have none, or several.
SYNSETS = {
    "backpack": "n02769748",
    "banana": "n07753592",
    "bench": "n03891251",
    "broccoli": "n07714990",
    "cell phone": "n02992529",
    "cup": "n07930864",
    "hair drier": "n03483316",
    "hot dog": "n07697537",
    "keyboard": "n03085013",
    "laptop": "n03642806",
    "microwave": "n03761084",
    "mouse": "n03793489",
    "orange": "n07747607",
    "parking meter": "n03891332",
    "pizza": "n07873807",
    "refrigerator": "n04070727",
    "remote": "n04074963",
    "teddy bear": "n04399382",
    "toaster": "n04442312",
    "traffic light": "n06874185",
    "umbrella": "n04507155",
    "vase": "n04522168",
    "zebra": "n02391049",
}

Annotation = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class AnnotatedImage:
    """One image of an annotation file: its path, its size, and the annotations of its objects."""

    path: Path
    height: int
    width: int
    annotations: tuple[Annotation, ...]

    def entry(self, id: str, label: int | None, annotations: Iterable[Annotation]) -> Entry:
        """Return the entry of a region: the image with some of its annotations."""
        return Entry(id, self.path, label, details=replace(self, annotations=tuple(annotations)))


@DATASETS.register(
    "coco",
    family="segmentation",
    cite="lin2014",
    layout="""
        root/val2017/000000000139.jpg
        root/annotations/instances_val2017.json
    """,
    protocols={"iia": {"regions": "union"}, "var": {"regions": "category", "least": 0.01}},
    filters="iia takes the union of all annotations of each image that has any, 4952 of 5000, and explains the "
    "predicted class. var explains the ImageNet class of each category, by a table of its own that maps many "
    "categories to dubious classes: give it as classes=, here only clear matches are mapped; regions under 1 % of the "
    "image are left out, and, by the run, classes to which the model gives less than 0.0001",
)
@dataclass(frozen=True, slots=True)
class Coco(Source):
    """COCO 2017: photographs of 80 categories with the outlines of their objects.

    Attributes:
        root: the folder.
        split: 'val' or 'train'.
        regions: 'union' gives each image once, all its objects as evidence and no label; 'category' gives it once
            for each category in it that has an ImageNet class, which is the label.
        shape: what an object covers: its outline 'mask', or its 'box'.
        least: the least share of the image that a region must cover.
        classes: a CSV file with the columns category and class that says which ImageNet class a category is; None maps
            23 clear cases.
    """

    root: Path
    split: Literal["val", "train"] = "val"
    regions: Literal["union", "category"] = "union"
    shape: Literal["mask", "box"] = "mask"
    least: float = 0.0
    classes: Path | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.least <= 1:
            raise RecipeError(f"got least={self.least}; a share lies in 0..1")

    def listing(self) -> Listing:
        table = self.root / "annotations" / f"instances_{self.split}2017.json"
        folder = first_existing(
            (self.root / f"{self.split}2017", self.root / "images" / f"{self.split}2017"), "the pictures"
        )
        images, names, skipped = read_annotations(first_existing([table], "the annotations"), folder)
        classes = _classes(self.classes)
        entries: list[Entry] = []
        for image in images:
            if not image.annotations:
                skipped.append((image.path.stem, "it has no annotation"))
            elif self.regions == "union":
                entries.append(image.entry(image.path.stem, None, image.annotations))
            else:
                entries += _by_category(image, names, classes, skipped)
        return Listing(tuple(sorted(entries, key=lambda entry: entry.id)), tuple(skipped))

    def reject_reason(self, entry: Entry) -> str | None:
        if not self.least:
            return None
        share = float(region_mask(entry, self.shape).mean())
        return None if share >= self.least else f"its region covers {share:.1%} of the picture"

    def read(self, entry: Entry) -> Sample:
        return Sample(entry.id, self.stored_image(entry), entry.label, region_mask(entry, self.shape))


def read_annotations(table: Path, folder: Path) -> tuple[list[AnnotatedImage], dict[int, str], list[tuple[str, str]]]:
    """Read a file in COCO's format: images with their annotations, names of categories, and what is missing."""
    content = read_json(table, ("images", "annotations", "categories"))
    try:
        names = {int(category["id"]): str(category["name"]) for category in content["categories"]}
        by_image: dict[int, list[Annotation]] = defaultdict(list)
        for annotation in content["annotations"]:
            by_image[int(annotation["image_id"])].append(annotation)
        images, skipped = [], []
        for image in content["images"]:
            name = str(image["file_name"])
            if reason := file_problem(folder, name):
                skipped.append((Path(name).stem, reason))
                continue
            path, height, width = path_inside(folder, name), int(image["height"]), int(image["width"])
            images.append(AnnotatedImage(path, height, width, tuple(by_image[int(image["id"])])))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{table} lacks {error}, or holds something else there; restore it") from None
    return images, names, skipped


def region_mask(entry: Entry, shape: str = "mask") -> Mask:
    """Return the mask of an entry: the union of its annotations."""
    image: AnnotatedImage = entry.details
    mask = np.zeros((image.height, image.width), dtype=np.bool_)
    for annotation in image.annotations:
        try:
            if shape == "box":
                mask |= box_mask(annotation["bbox"], image.height, image.width)
            else:
                mask |= annotation_mask(annotation["segmentation"], image.height, image.width)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"an annotation of {entry.id!r} cannot be drawn: {error}") from error
    return mask.astype(np.int8)


def _by_category(
    image: AnnotatedImage, names: Mapping[int, str], classes: Mapping[str, int], skipped: list[tuple[str, str]]
) -> list[Entry]:
    """Return an entry for each category in the image that has an ImageNet class."""
    groups: dict[str, list[Annotation]] = defaultdict(list)
    for annotation in image.annotations:
        groups[names.get(int(annotation["category_id"]), "?")].append(annotation)
    entries = []
    for name, group in groups.items():
        id = f"{image.path.stem}-{name.replace(' ', '-')}"
        if name in classes:
            entries.append(image.entry(id, classes[name], group))
        else:
            skipped.append((id, f"no ImageNet class is known for {name!r}"))
    return entries


def _classes(table: Path | None) -> dict[str, int]:
    if table is None:
        known = {name: class_of_synset(synset) for name, synset in SYNSETS.items()}
        return {name: index for name, index in known.items() if index is not None}
    advice = "give a CSV file with the columns category and class"
    try:
        return {row["category"]: int(row["class"]) for row in read_csv(table, advice)}
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{table} cannot be read ({error}); {advice}") from None
