"""COCO 2017: photographs with the outlines of their objects; and what other sets of the same format share."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sightline.data.annotations import annotation_mask, box_mask
from sightline.data.lists import first_of, read_json
from sightline.data.sets.imagenet_classes import class_of_synset
from sightline.data.source import DATASETS, Entry, Listing, Mask, Sample, Source, inside, is_file_in
from sightline.errors import InputError, RecipeError

__all__ = ["Coco", "drawn_mask", "read_annotations"]

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

Place = tuple[int, int, tuple[Mapping[str, Any], ...]]  # height, width, the annotations of the region


@DATASETS.register(
    "coco",
    family="segmentation",
    cite="lin2014",
    layout="""
        root/val2017/000000000139.jpg
        root/annotations/instances_val2017.json
    """,
    protocols={"iia": {"regions": "union"}, "var": {"regions": "category", "least": 0.01}},
    filters="iia takes the union of all annotations of each picture that has any, 4952 of 5000, and explains the "
    "predicted class. var explains the ImageNet class of each category, by a table of its own that maps many "
    "categories to dubious classes: give it as classes=, here only clear matches are mapped; regions under 1 % of the "
    "picture are left out, and, by the run, classes to which the model gives less than 0.0001",
)
@dataclass(frozen=True, slots=True)
class Coco(Source):
    """COCO 2017: photographs of 80 categories with the outlines of their objects.

    Attributes:
        root: the folder.
        split: 'val' or 'train'.
        regions: 'union' gives each picture once, all its objects as evidence and no label; 'category' gives it once
            for each category in it that has an ImageNet class, which is the label.
        shape: what an object covers: its outline 'mask', or its 'box'.
        least: the least share of the picture that a region must cover.
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
        folder = first_of((self.root / f"{self.split}2017", self.root / "images" / f"{self.split}2017"), "the pictures")
        pictures, names, skipped = read_annotations(first_of([table], "the annotations"), folder)
        classes = _classes(self.classes)
        entries: list[Entry] = []
        for path, height, width, found in pictures:
            if not found:
                skipped.append((path.stem, "it has no annotation"))
            elif self.regions == "union":
                entries.append(Entry(path.stem, path, place=(height, width, tuple(found))))
            else:
                entries += _by_category(path, height, width, found, names, classes, skipped)
        return Listing(tuple(sorted(entries, key=lambda entry: entry.id)), tuple(skipped))

    def refuse(self, entry: Entry) -> str | None:
        if not self.least:
            return None
        share = float(drawn_mask(entry, self.shape).mean())
        return None if share >= self.least else f"its region covers {share:.1%} of the picture"

    def read(self, entry: Entry) -> Sample:
        return Sample(entry.id, self.picture(entry), entry.label, drawn_mask(entry, self.shape))


def read_annotations(
    table: Path, folder: Path
) -> tuple[list[tuple[Path, int, int, list[Mapping[str, Any]]]], dict[int, str], list[tuple[str, str]]]:
    """Read a file in COCO's format: pictures with their annotations, names of categories, and what is missing."""
    told = read_json(table, ("images", "annotations", "categories"))
    try:
        names = {int(one["id"]): str(one["name"]) for one in told["categories"]}
        found: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
        for one in told["annotations"]:
            found[int(one["image_id"])].append(one)
        pictures, skipped = [], []
        for one in told["images"]:
            name = str(one["file_name"])
            if reason := is_file_in(folder, name):
                skipped.append((Path(name).stem, reason))
            else:
                pictures.append((inside(folder, name), int(one["height"]), int(one["width"]), found[int(one["id"])]))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{table} lacks {error}, or holds something else there; restore it") from None
    return pictures, names, skipped


def drawn_mask(entry: Entry, shape: str = "mask") -> Mask:
    """Draw all annotations of an entry into one mask."""
    height, width, annotations = entry.place
    mask = np.zeros((height, width), dtype=np.bool_)
    for one in annotations:
        try:
            drawn = one["bbox"] if shape == "box" else one["segmentation"]
            mask |= box_mask(drawn, height, width) if shape == "box" else annotation_mask(drawn, height, width)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"an annotation of {entry.id!r} cannot be drawn: {error}") from error
    return mask.astype(np.int8)


def _by_category(
    path: Path,
    height: int,
    width: int,
    found: Iterable[Mapping[str, Any]],
    names: Mapping[int, str],
    classes: Mapping[str, int],
    skipped: list[tuple[str, str]],
) -> list[Entry]:
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for one in found:
        groups[names.get(int(one["category_id"]), "?")].append(one)
    entries = []
    for name, group in groups.items():
        id = f"{path.stem}-{name.replace(' ', '-')}"
        if name in classes:
            entries.append(Entry(id, path, classes[name], place=(height, width, tuple(group))))
        else:
            skipped.append((id, f"no ImageNet class is known for {name!r}"))
    return entries


def _classes(table: Path | None) -> dict[str, int]:
    if table is None:
        known = {name: class_of_synset(synset) for name, synset in SYNSETS.items()}
        return {name: index for name, index in known.items() if index is not None}
    try:
        with table.open(newline="", encoding="utf-8-sig") as lines:
            return {row["category"]: int(row["class"]) for row in csv.DictReader(lines)}
    except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise InputError(
            f"{table} cannot be read ({error}); give a CSV file with the columns category and class"
        ) from None
