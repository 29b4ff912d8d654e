"""What a data set is made of: entries that can be listed without reading a pixel, and a source that reads them.

A file that adds a data set writes a frozen dataclass of its options, derives it from :class:`Source`, and registers it
with ``DATASETS.register(...)``; it is found by itself.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sightline.data.images import read_image
from sightline.errors import InputError, RecipeError, RegistryError
from sightline.registry import load_plugins, unknown

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "DATASETS",
    "DatasetSpec",
    "Datasets",
    "Entry",
    "Listing",
    "Mask",
    "Sample",
    "Source",
    "inside",
    "is_file_in",
]

Mask = NDArray[np.int8]
T = TypeVar("T", bound=type)


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One picture with what is known of it.

    Attributes:
        id: unique and stable within the data set.
        image: RGB, as stored.
        label: class in the model's output, None where unknown.
        mask: (height, width) int8 at the image's own size, 1 evidence, 0 background, -1 ignore; None where there is
            none.
        tensor: (3, height, width) in 0..1 where the set composes its own pixels, which are then fed to the model
            normalised and not resized; None elsewhere.
    """

    id: str
    image: Image.Image
    label: int | None = None
    mask: Mask | None = None
    tensor: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One picture of a list, not read yet.

    Attributes:
        id: unique and stable within the data set.
        path: of the image file, None where it lies in a larger file or is drawn.
        label: class in the model's output, None where unknown before reading.
        mask: path of its mask, None where there is none.
        place: whatever else its source needs to read it.
        predicted: the class a model gave it, None where nobody says.
        probability: how probable that model thought it, None where nobody says.
    """

    id: str
    path: Path | None = None
    label: int | None = None
    mask: Path | None = None
    place: Any = None
    predicted: int | None = None
    probability: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """Everything a source holds, in its fixed order, and what it had to leave out, each with a reason."""

    entries: tuple[Entry, ...]
    skipped: tuple[tuple[str, str], ...] = ()


class Source(ABC):
    """Where pictures come from: the options of a data set, and how its entries are listed and read."""

    __slots__ = ()

    @abstractmethod
    def listing(self) -> Listing:
        """List all entries, without reading pixels."""

    def read(self, entry: Entry) -> Sample:
        """Read one entry; a file that cannot be read raises InputError."""
        return Sample(entry.id, self.picture(entry), entry.label)

    def refuse(self, entry: Entry) -> str | None:
        """Return why a filter of the set leaves an entry out, or None; asked only of entries that may be taken."""
        return None

    def title(self) -> str | None:
        """Return what this set is called where its registered name says too little."""
        return None

    @staticmethod
    def picture(entry: Entry) -> Image.Image:
        """Read an entry's file as it is stored: masks are drawn over it as it is stored."""
        if entry.path is None:
            raise InputError(f"{entry.id} has no file of its own")
        return read_image(entry.path, upright=False)


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """What is known of a registered data set.

    Attributes:
        name: as written in plans.
        family: the word it is listed under.
        cite: key in references.bib, empty for what has no paper.
        layout: how its files must lie.
        protocols: for each paper that used it, the options its protocol fixes.
        filters: which pictures papers left out, and how to do the same.
        build: the class; calling it gives the source.
    """

    name: str
    family: str
    cite: str
    layout: str
    protocols: Mapping[str, Mapping[str, Any]]
    filters: str
    build: Callable[..., Source]

    @property
    def doc(self) -> str:
        """The documentation of the class."""
        return inspect.getdoc(self.build) or ""

    @property
    def summary(self) -> str:
        """The first sentence of the documentation."""
        return self.doc.strip().split("\n", 1)[0]


class Datasets(Mapping[str, DatasetSpec]):
    """Names of data sets; iterates in alphabetical order."""

    def __init__(self) -> None:
        self._specs: dict[str, DatasetSpec] = {}
        self._walked = False

    def register(
        self,
        name: str,
        *,
        family: str,
        cite: str = "",
        layout: str = "",
        protocols: Mapping[str, Mapping[str, Any]] | None = None,
        filters: str = "",
    ) -> Callable[[T], T]:
        """Enter a frozen dataclass under `name`."""

        def enter(cls: T) -> T:
            if not (is_dataclass(cls) and cls.__dataclass_params__.frozen and issubclass(cls, Source)):  # type: ignore[attr-defined]
                raise RegistryError(f"{cls.__module__}.{cls.__name__} must be a frozen dataclass and a Source")
            if name in self._specs:
                raise RegistryError(f"the dataset {name!r} is registered twice, the second time by {cls.__module__}")
            kept = MappingProxyType(dict(protocols or {}))
            self._specs[name] = DatasetSpec(name, family, cite, inspect.cleandoc(layout), kept, filters, build=cls)
            return cls

        return enter

    def name_of(self, source: Source) -> str:
        """Return the name that a source is registered under."""
        return next(spec.name for spec in self._specs.values() if spec.build is type(source))

    def _walk(self) -> None:
        if self._walked:
            return
        self._walked = True
        package = importlib.import_module("sightline.data.sets")
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")
        load_plugins()

    def __getitem__(self, name: str) -> DatasetSpec:
        self._walk()
        try:
            return self._specs[name]
        except KeyError:
            raise RecipeError(unknown(name, "dataset", self._specs)) from None

    def __contains__(self, name: object) -> bool:
        self._walk()
        return name in self._specs

    def __iter__(self) -> Iterator[str]:
        self._walk()
        return iter(sorted(self._specs))

    def __len__(self) -> int:
        self._walk()
        return len(self._specs)


DATASETS = Datasets()


def inside(folder: Path, name: str) -> Path:
    """Return the path of a file named in a list, which may not lead out of its folder.

    Raises:
        InputError: the name is absolute, leads out of the folder, or is no file name at all.
    """
    parts = Path(name).parts
    if not parts or "\0" in name or Path(name).is_absolute() or ".." in parts:
        raise InputError(f"{name!r} leads out of {folder}, or is no name; name files inside the folder")
    return folder / name


def is_file_in(folder: Path, name: str) -> str | None:
    """Return why a listed file cannot be taken, or None where it is there."""
    try:
        path = inside(folder, name)
    except InputError as error:
        return str(error)
    return None if path.is_file() else f"{path.name} does not exist in {path.parent}"
