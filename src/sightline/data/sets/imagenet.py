"""The validation set of ImageNet-1k, in the three ways it lies on disks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from sightline.data.annotation_files import first_existing, read_csv
from sightline.data.images import find_images, peek_image
from sightline.data.sets.imagenet_classes import class_of_synset
from sightline.data.sets.imagenet_labels import Numbering, read_labels
from sightline.data.source import DATASETS, Entry, Listing, Mask, Sample, Source
from sightline.errors import InputError

__all__ = ["ImageNet", "Layout", "validation_files"]

Layout = Literal["auto", "flat", "folders", "kaggle"]
Box = tuple[int, int, int, int]

_KAGGLE = ("ILSVRC/Data/CLS-LOC/val", "Data/CLS-LOC/val")


@DATASETS.register(
    "imagenet",
    family="classification",
    cite="russakovsky2015",
    layout="""
        flat      root/[val/]ILSVRC2012_val_00000001.JPEG and val.txt (file and class), or
                  ILSVRC2012_validation_ground_truth.txt with the devkit's meta.mat
        folders   root/[val/]n01440764/ILSVRC2012_val_00000293.JPEG
        kaggle    root/ILSVRC/Data/CLS-LOC/val/*.JPEG and root/LOC_val_solution.csv
    """,
    protocols={
        "iia": {},
        "var": {"limit": 1000},
        "skipplus": {"seed": 43, "limit": 5000},
        "caap": {"seed": 0, "limit": 500},
        "mda": {"rgb": True, "confidence": 0.6, "per_class": 5, "limit": 5000},
        "pair": {"confidence": 0.8},
    },
    filters="mda keeps five colour images per predicted class that its model classified correctly with 60 % or more, "
    "in the order of file names: give predictions=. Its other two conditions, a map that is not all zero and a blur "
    "that hides the class, are the metric's. caap names no seed, 0 is taken; skipplus shuffled the copy "
    "mrm8488/ImageNet1K-val by seed 43, in that copy's order: hub(repo='mrm8488/ImageNet1K-val', seed=43, limit=5000)",
)
@dataclass(frozen=True, slots=True)
class ImageNet(Source):
    """ImageNet-1k validation: 50 000 photographs of a thousand classes, in any of three layouts.

    Images are in the order of their file names, and labels in the order of a model's output, in every layout.

    Attributes:
        root: the folder.
        layout: how files lie; 'auto' finds out.
        truth: in the flat layout the file that tells the classes; None looks for it beside the images.
        numbering: what its numbers mean: 'sorted' classes from 0, in the order of the models' outputs; 'devkit' ILSVRC
            ids from 1, which are in another order and need meta.mat. 'auto' finds out, or refuses to guess.
        meta: the devkit's meta.mat; None looks for it beside the file with the classes.
        rgb: leave out images that are stored in grey or CMYK.
        mask: 'boxes' gives the boxes of the class as evidence, which the layout 'kaggle' knows; 'none' gives none.
    """

    root: Path
    layout: Layout = "auto"
    truth: Path | None = None
    numbering: Numbering = "auto"
    meta: Path | None = None
    rgb: bool = False
    mask: Literal["none", "boxes"] = "none"

    def listing(self) -> Listing:
        layout, folder = _find_layout(self.root, self.layout)
        if self.mask == "boxes" and layout != "kaggle":
            raise InputError(f"{self.root} has no LOC_val_solution.csv, so boxes are not known; choose mask='none'")
        if layout == "folders":
            return _by_folder(folder)
        if layout == "kaggle":
            tables = (self.root / "LOC_val_solution.csv", self.root / "ILSVRC" / "LOC_val_solution.csv")
            return _by_solution(folder, first_existing(tables, "the file with the classes"))
        labels, skipped = read_labels(folder, self.truth, self.numbering, self.meta)
        return _listing(_files(folder), labels, {}, skipped)

    def reject_reason(self, entry: Entry) -> str | None:
        if self.rgb and entry.path is not None and (mode := peek_image(entry.path)[0]) != "RGB":
            return f"it is stored as {mode}, not RGB"
        return None

    def read(self, entry: Entry) -> Sample:
        image = self.stored_image(entry)
        mask = _box_mask(entry.details, image.height, image.width) if self.mask == "boxes" else None
        return Sample(entry.id, image, entry.label, mask)


def validation_files(root: Path) -> dict[str, Path]:
    """Return the images of a validation set in any layout, by name without suffix."""
    return _files(_find_layout(root, "auto")[1])


def _find_layout(root: Path, layout: Layout) -> tuple[str, Path]:
    """Return the layout and the folder in which its images lie."""
    kaggle = next((root / name for name in _KAGGLE if (root / name).is_dir()), None)
    if layout == "kaggle" or (layout == "auto" and kaggle is not None):
        return "kaggle", kaggle or first_existing((root / name for name in _KAGGLE), "the folder of the kaggle layout")
    folder = root / "val" if (root / "val").is_dir() else root
    if not folder.is_dir():
        raise InputError(f"{root} is not a folder; give the folder of ImageNet's validation set")
    if layout == "auto":
        classes = any(class_of_synset(path.name) is not None and path.is_dir() for path in folder.iterdir())
        layout = "folders" if classes else "flat"
    return layout, folder


def _files(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in find_images(folder)}


def _by_folder(folder: Path) -> Listing:
    files = {path.stem: path for path in find_images(folder) if class_of_synset(path.parent.name) is not None}
    strange = sorted({path.parent.name for path in find_images(folder)} - {path.parent.name for path in files.values()})
    skipped = [(name, "the folder is none of ImageNet's thousand synsets") for name in strange]
    return _listing(files, {stem: class_of_synset(path.parent.name) for stem, path in files.items()}, {}, skipped)


def _by_solution(folder: Path, table: Path) -> Listing:
    """Read LOC_val_solution.csv: for each image a synset and a box, once or several times."""
    labels: dict[str, int | None] = {}
    boxes: dict[str, list[Box]] = {}
    skipped: list[tuple[str, str]] = []
    for row in read_csv(table, "restore it"):
        name, words = row.get("ImageId") or "", (row.get("PredictionString") or "").split()
        label = class_of_synset(words[0]) if words else None
        if label is None or not name:
            skipped.append((name or "?", f"{table.name} tells no synset of ImageNet for it"))
            continue
        labels[name] = label
        boxes[name] = [box for synset, box in _boxes(words) if synset == words[0]]
    return _listing(_files(folder), labels, boxes, skipped)


def _boxes(words: list[str]) -> Iterator[tuple[str, Box]]:
    """Yield each synset and its box, five words of the table."""
    for start in range(0, len(words) - 4, 5):
        numbers = words[start + 1 : start + 5]
        if all(re.fullmatch(r"-?\d{1,9}", number) for number in numbers):
            left, top, right, bottom = map(int, numbers)
            yield words[start], (left, top, right, bottom)


def _box_mask(boxes: list[Box], height: int, width: int) -> Mask:
    mask = np.zeros((height, width), dtype=np.int8)
    for left, top, right, bottom in boxes:
        mask[max(0, top) : bottom + 1, max(0, left) : right + 1] = 1  # the corners belong to the box
    return mask


def _listing(
    files: Mapping[str, Path],
    labels: Mapping[str, int | None],
    boxes: Mapping[str, list[Box]],
    skipped: list[tuple[str, str]],
) -> Listing:
    """Put files and classes together, in the order of names; what lacks either is left out and named."""
    named = {name for name, _ in skipped}
    missing = [(name, "its class is not told") for name in files if name not in labels and name not in named]
    missing += [(name, "its file is missing") for name in labels if name not in files]
    known = [name for name in sorted(files) if name in labels]
    entries = (Entry(name, files[name], labels[name], details=boxes.get(name)) for name in known)
    return Listing(tuple(entries), (*skipped, *sorted(missing)))
