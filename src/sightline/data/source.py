"""What a data set is made of: entries that are listed without reading a pixel, and a source that reads them.

A file that adds a data set writes a frozen dataclass of its options, derives it from :class:`Source`, and registers it
with ``DATASETS.register(...)``; it is found by itself.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sightline.data.images import LONGEST_NAME, read_image
from sightline.errors import InputError, RegistryError
from sightline.registry import BaseSpec, HasOptions, Registry

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "DATASETS",
    "DatasetSpec",
    "Entry",
    "Listing",
    "Mask",
    "Sample",
    "Source",
    "file_problem",
    "path_inside",
]

Mask = NDArray[np.int8]


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One image with its label and mask, as far as they are known.

    Attributes:
        id: unique and stable within the data set.
        image: RGB, as stored.
        label: class in the model's output, None where unknown.
        mask: (height, width) int8 at the image's own size, 1 evidence, 0 background, -1 ignore; None where there is
            none.
        tensor: (3, height, width) in 0..1 where the set composes its own pixels, which are then fed to the model
            normalised and not resized; None elsewhere.
        classes: every class that the picture shows, the label among them; None where that is not known.
    """

    id: str
    image: Image.Image
    label: int | None = None
    mask: Mask | None = None
    tensor: Tensor | None = None
    classes: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One image of a data set, listed and not read yet.

    Attributes:
        id: unique and stable within the data set.
        path: of the image file, None where it lies in a larger file or is drawn.
        label: class in the model's output, None where unknown before reading.
        mask: path of its mask, None where there is none.
        details: whatever else its source needs to read it.
        predicted: the class a model predicted for it, None where unknown.
        probability: the probability of that class, None where unknown.
    """

    id: str
    path: Path | None = None
    label: int | None = None
    mask: Path | None = None
    details: Any = None
    predicted: int | None = None
    probability: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """Everything a source holds, in its fixed order, and (id, reason) of what it had to leave out."""

    entries: tuple[Entry, ...]
    skipped: tuple[tuple[str, str], ...] = ()


class Source(HasOptions, ABC):
    """Where the images of a data set come from: its options, and how entries are listed and read."""

    __slots__ = ()

    @abstractmethod
    def listing(self) -> Listing:
        """List all entries, without reading pixels."""

    def read(self, entry: Entry) -> Sample:
        """Read one entry; a file that cannot be read raises InputError."""
        return Sample(entry.id, self.stored_image(entry), entry.label)

    def reject_reason(self, entry: Entry) -> str | None:
        """Return why a filter of the set leaves an entry out, or None; asked only of entries that may be taken."""
        return None

    def title(self) -> str | None:
        """Return what this set is called where its registered name says too little."""
        return None

    @staticmethod
    def stored_image(entry: Entry) -> Image.Image:
        """Read an entry's file as stored, not turned by its EXIF block, since its mask is drawn over it as stored."""
        if entry.path is None:
            raise InputError(f"{entry.id} has no file of its own")
        return read_image(entry.path, upright=False)


@dataclass(frozen=True, slots=True)
class DatasetSpec(BaseSpec):
    """What is known of a registered data set.

    Attributes:
        name: as written in plans.
        family: the word it is listed under.
        cite: key in references.bib, empty for what has no paper.
        layout: how its files must lie.
        protocols: for each paper that used it, the options its protocol fixes.
        filters: which images papers left out, and how to do the same.
        build: the class; calling it gives the source.
    """

    name: str
    family: str
    cite: str
    layout: str
    protocols: Mapping[str, Mapping[str, Any]]
    filters: str
    build: Callable[..., Source]


def _spec(
    name: str,
    kind: str,
    build: type,
    *,
    family: str,
    cite: str = "",
    layout: str = "",
    protocols: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    filters: str = "",
) -> DatasetSpec:
    if not issubclass(build, Source):
        raise RegistryError(f"{build.__module__}.{build.__name__} must be a Source to be registered as {kind} {name}")
    protocols = MappingProxyType(dict(protocols))
    return DatasetSpec(name, family, cite, inspect.cleandoc(layout), protocols, filters, build)


DATASETS = Registry("dataset", "sightline.data.sets", _spec)


def path_inside(folder: Path, name: str) -> Path:
    """Return the path of a file named in a list, which may not lead out of its folder.

    Raises:
        InputError: the name is absolute, leads out of the folder, or is no file name at all.
    """
    parts = Path(name).parts
    if not parts or "\0" in name or Path(name).is_absolute() or ".." in parts:
        raise InputError(f"{name!r} leads out of {folder}, or is no name; name files inside the folder")
    if max(len(part.encode("utf-8", "replace")) for part in parts) > LONGEST_NAME or len(parts) > 100:
        raise InputError(f"{name[:20]!r}… is too long for the name of a file; name files inside {folder}")
    return folder / name


def file_problem(folder: Path, name: str) -> str | None:
    """Return why a listed file cannot be taken, or None where it is there."""
    try:
        path = path_inside(folder, name)
    except InputError as error:
        return str(error)
    return None if path.is_file() else f"{path.name} does not exist in {path.parent}"
