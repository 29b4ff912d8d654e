"""Folders of images: one folder per class, a plain folder, or a folder with images/, masks/ and labels.csv."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sightline.data.images import find_images, read_image
from sightline.data.labels_csv import LabelledImage, read_labels_csv
from sightline.data.masks import read_mask
from sightline.data.sets.imagenet_classes import class_of_synset
from sightline.data.source import DATASETS, Entry, Listing, Sample, Source
from sightline.errors import InputError

__all__ = ["Folder", "LabelledFolder"]


@DATASETS.register(
    "folder",
    family="your own",
    layout="""
        root/<class>/*.jpg      one folder per class, as torchvision's ImageFolder
        root/*.jpg              or plain images, without labels
    """,
)
@dataclass(frozen=True, slots=True)
class Folder(Source):
    """A folder of images: one folder per class, or plain images without labels.

    An id is the path below the folder, without its suffix.

    Attributes:
        root: the folder.
        labels: what the names of class folders mean: 'folders' numbers them in alphabetical order, 'synsets' takes them
            for ImageNet's (n01440764), 'numbers' for class numbers, 'none' ignores them. 'auto' takes 'none' where
            images lie beside or above fewer than two folders, 'synsets' where every folder is one of ImageNet's, and
            'folders' elsewhere.
    """

    root: Path
    labels: Literal["auto", "folders", "synsets", "numbers", "none"] = "auto"

    def title(self) -> str | None:
        return self.root.resolve().name

    def listing(self) -> Listing:
        if not self.root.is_dir():
            raise InputError(f"{self.root} is not a folder; give a folder of images")
        files = find_images(self.root)
        classes = self._classes(files)
        bare = Counter(file.relative_to(self.root).with_suffix("") for file in files)
        entries = []
        for file in files:
            name = file.relative_to(self.root)
            short = name.with_suffix("") if bare[name.with_suffix("")] == 1 else name
            entries.append(Entry(short.as_posix(), file, classes.get(name.parts[0]) if len(name.parts) > 1 else None))
        return Listing(tuple(sorted(entries, key=lambda entry: entry.id)))

    def read(self, entry: Entry) -> Sample:
        assert entry.path is not None
        return Sample(entry.id, read_image(entry.path), entry.label)

    def _classes(self, files: list[Path]) -> dict[str, int]:
        """Return the label of each class folder."""
        names = [file.relative_to(self.root) for file in files]
        folders = sorted({name.parts[0] for name in names if len(name.parts) > 1})
        meaning = self.labels
        if meaning == "auto":
            plain = len(folders) < 2 or any(len(name.parts) == 1 for name in names)
            known = all(class_of_synset(folder) is not None for folder in folders)
            meaning = "none" if plain else "synsets" if known else "folders"
        if meaning == "none":
            return {}
        if meaning == "folders":
            return {folder: index for index, folder in enumerate(folders)}
        return {folder: self._number(folder, meaning) for folder in folders}

    def _number(self, folder: str, meaning: str) -> int:
        number = class_of_synset(folder) if meaning == "synsets" else int(folder) if folder.isdecimal() else None
        if number is None:
            raise InputError(
                f"the folder {folder!r} of {self.root} is no class with labels={meaning!r}; rename it, or "
                "choose labels='folders'"
            )
        return number


@DATASETS.register(
    "labelled",
    family="your own",
    layout="""
        root/labels.csv             columns file (or stem) and label, perhaps predicted and probability
        root/images/<file>
        root/masks/<stem>.png       255 evidence, 128 ignore, 0 background; where there are masks
    """,
    filters="confidence= leaves out images by the table's own columns predicted and probability",
)
@dataclass(frozen=True, slots=True)
class LabelledFolder(Source):
    """A folder with images/, labels.csv and perhaps masks/, in the order of the table.

    Attributes:
        root: the folder.
        masked: take only images that have a mask with evidence in it.
    """

    root: Path
    masked: bool = False

    def title(self) -> str | None:
        return self.root.resolve().name

    def listing(self) -> Listing:
        skipped: list[tuple[str, str]] = []
        images = read_labels_csv(self.root, skipped)
        return Listing(tuple(map(_entry, images)), tuple(skipped))

    def read(self, entry: Entry) -> Sample:
        assert entry.path is not None
        mask = None if entry.mask is None else read_mask(entry.mask).numpy()
        return Sample(entry.id, read_image(entry.path), entry.label, mask)

    def reject_reason(self, entry: Entry) -> str | None:
        if self.masked and (entry.mask is None or not (read_mask(entry.mask) == 1).any()):
            return "it has no mask, or one without evidence"
        return None


def _entry(image: LabelledImage) -> Entry:
    return Entry(
        image.name, image.path, image.label, image.mask, predicted=image.predicted, probability=image.confidence
    )
