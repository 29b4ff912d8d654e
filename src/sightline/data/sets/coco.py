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
from sightline.data.images import MAX_PIXELS
from sightline.data.sets.coco_classes import imagenet_classes
from sightline.data.source import DATASETS, Entry, Listing, Mask, Sample, Source, file_problem, path_inside
from sightline.errors import InputError

__all__ = ["Coco", "read_annotations", "region_mask"]

Annotation = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class AnnotatedImage:
    """One image of an annotation file: its path, its size, the annotations of its objects, and all its classes."""

    path: Path
    height: int
    width: int
    annotations: tuple[Annotation, ...]
    classes: tuple[int, ...] | None = None

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
    protocols={
        "iia": {"regions": "union"},
        "var": {"regions": "category", "least": 0.01, "least_of": "object", "categories": "all"},
    },
    filters="iia takes the union of all annotations of each image that has any, 4952 of 5000, and explains the "
    "predicted class. var explains the ImageNet class of each category, by a table of its own that maps many "
    "categories to dubious classes: give it as classes=, or take ours (`sightline.data.sets.coco_classes`); "
    "objects under 1 % of the image are left out, and, by the plan's confidence, classes to which the model gives less "
    "than 0.0001",
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
        least: the least share of the image that a region must cover, or an object, as `least_of` says.
        classes: a CSV file with the columns category and class that says which ImageNet class a category is; None takes
            our own table.
        least_of: 'region', all objects of a category together, which None means; or 'object', each by itself: smaller
            ones are no part of the region.
        categories: those that our table maps: 'clear', the 23 for which ImageNet has the same thing, which None means;
            or 'all' 61 that have a class of their kind.
    """

    root: Path
    split: Literal["val", "train"] = "val"
    regions: Literal["union", "category"] = "union"
    shape: Literal["mask", "box"] = "mask"
    least: float = 0.0
    classes: Path | None = None
    least_of: Literal["region", "object"] | None = None
    categories: Literal["clear", "all"] | None = None

    def listing(self) -> Listing:
        table = self.root / "annotations" / f"instances_{self.split}2017.json"
        folder = first_existing(
            (self.root / f"{self.split}2017", self.root / "images" / f"{self.split}2017"), "the pictures"
        )
        images, names, skipped = read_annotations(first_existing([table], "the annotations"), folder)
        classes = self._classes()
        entries: list[Entry] = []
        for image in images:
            if not image.annotations:
                skipped.append((image.path.stem, "it has no annotation"))
            elif self.regions == "union":
                entries.append(image.entry(image.path.stem, None, image.annotations))
            else:
                entries += self._by_category(image, names, classes, skipped)
        return Listing(tuple(sorted(entries, key=lambda entry: entry.id)), tuple(skipped))

    def reject_reason(self, entry: Entry) -> str | None:
        if not self.least or self.least_of == "object":
            return None
        share = float(region_mask(entry, self.shape).mean())
        return None if share >= self.least else f"its region covers {share:.1%} of the picture"

    def read(self, entry: Entry) -> Sample:
        mask = region_mask(entry, self.shape)
        return Sample(entry.id, self.stored_image(entry), entry.label, mask, classes=entry.details.classes)

    def _by_category(
        self,
        image: AnnotatedImage,
        names: Mapping[int, str],
        classes: Mapping[str, int],
        skipped: list[tuple[str, str]],
    ) -> list[Entry]:
        """Return an entry for each category in the image that has an ImageNet class; all of them know all classes."""
        groups: dict[str, list[Annotation]] = defaultdict(list)
        for annotation in image.annotations:
            groups[names.get(int(annotation["category_id"]), "?")].append(annotation)
        kept: dict[str, list[Annotation]] = {}
        for name, group in groups.items():
            large = [each for each in group if self._is_large(each, image)]
            if name in classes and large:
                kept[name] = large
            else:
                reason = f"each of its objects covers less than {self.least:.1%} of the picture"
                unknown = f"no ImageNet class is known for {name!r}"
                skipped.append((_id(image, name), reason if name in classes else unknown))
        shown = replace(image, classes=tuple(dict.fromkeys(classes[name] for name in kept)))
        return [shown.entry(_id(image, name), classes[name], group) for name, group in kept.items()]

    def _is_large(self, annotation: Annotation, image: AnnotatedImage) -> bool:
        """Tell whether an object covers as much as it must; asked only where each object counts by itself."""
        if self.least_of != "object" or not self.least:
            return True
        if self.shape == "mask" and "area" in annotation:
            return float(annotation["area"]) >= self.least * image.height * image.width
        drawn = region_mask(image.entry(image.path.stem, None, [annotation]), self.shape)
        return float(drawn.mean()) >= self.least

    def _classes(self) -> dict[str, int]:
        """Return the ImageNet class of each category that has one."""
        if self.classes is None:
            return imagenet_classes(kinds=self.categories == "all")
        return _read_classes(self.classes)


def read_annotations(table: Path, folder: Path) -> tuple[list[AnnotatedImage], dict[int, str], list[tuple[str, str]]]:
    """Read a file in COCO's format: images with their annotations, names of categories, and what is missing."""
    content = read_json(table, ("images", "annotations", "categories"))
    try:
        names = {int(category["id"]): str(category["name"]) for category in content["categories"]}
        by_image: dict[int, list[Annotation]] = defaultdict(list)
        for annotation in content["annotations"]:
            known = {**annotation, "category_id": int(annotation["category_id"])}
            by_image[int(annotation["image_id"])].append(known)
        images, skipped = [], []
        for image in content["images"]:
            name = str(image["file_name"])
            if reason := file_problem(folder, name):
                skipped.append((Path(name).stem, reason))
                continue
            path, height, width = path_inside(folder, name), int(image["height"]), int(image["width"])
            if not (height > 0 < width and height * width <= MAX_PIXELS):
                skipped.append((path.stem, f"it is {height}×{width} by {table.name}, which no picture is"))
                continue
            images.append(AnnotatedImage(path, height, width, tuple(by_image[int(image["id"])])))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
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
        except (KeyError, TypeError, ValueError, OverflowError, IndexError) as error:
            raise InputError(f"an annotation of {entry.id!r} cannot be drawn: {error}") from error
    return mask.astype(np.int8)


def _id(image: AnnotatedImage, category: str) -> str:
    return f"{image.path.stem}-{category.replace(' ', '-')}"


def _read_classes(table: Path) -> dict[str, int]:
    advice = "give a CSV file with the columns category and class"
    try:
        return {row["category"]: int(row["class"]) for row in read_csv(table, advice)}
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{table} cannot be read ({error}); {advice}") from None
