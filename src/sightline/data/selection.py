"""Select images from a source: shuffled by a seed, filtered, checked, cut to a limit; what is left out says why."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sightline.data.images import peek_image
from sightline.data.predictions import Predictions
from sightline.data.source import Entry, Listing, Sample, Source
from sightline.errors import InputError
from sightline.registry import check_options

__all__ = ["Dataset", "Selection", "select"]

# Options that say where and how files lie, or how many are taken, and not what they are: no part of the digest.
NOT_IN_DIGEST = frozenset({"count", "layout"})


@dataclass(frozen=True, slots=True)
class Selection:
    """Which images of a set are taken; every data set has these options.

    Attributes:
        limit: how many at most; None takes all.
        seed: None takes the first in the set's order; a number shuffles the whole set first, by
            ``numpy.random.default_rng(seed).permutation``, before any filter. A set that has a seed of its own keeps
            it.
        check: what is looked at before a file is taken: 'header', 'whole', which decodes it, or 'none', for large sets
            on slow disks; damage then shows when an image is read.
        predictions: a table of what models predicted, with the columns id, predicted and probability; see
            `sightline.data.predictions`.
        confidence: leave out images that were misclassified, or whose class was less probable than this.
        per_class: how many images at most of each predicted class, or of each label where nothing was predicted.
    """

    limit: int | None = None
    seed: int | None = None
    check: Literal["header", "whole", "none"] = "header"
    predictions: Path | None = None
    confidence: float = 0.0
    per_class: int | None = None

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """A data set: the entries that were selected, and the source that reads them.

    `ids` are in the set's fixed order, after its filters; `skipped` names what was left out; `read` raises InputError
    for what is missing or damaged; `digest` is the same for the same data on every machine.

    Attributes:
        name: what tables call it.
        kind: the name it is registered under.
        source: its options, and how its entries are read.
        entries: those selected, by id, in order.
        skipped: (id, reason) of those left out by a filter, or because they cannot be read.
    """

    name: str
    kind: str
    source: Source
    entries: Mapping[str, Entry]
    skipped: tuple[tuple[str, str], ...] = field(default=())

    @property
    def ids(self) -> tuple[str, ...]:
        """The names of the images, in order."""
        return tuple(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Sample]:
        return (self.read(id) for id in self.entries)

    def read(self, id: str) -> Sample:
        """Read one image with its label and mask.

        Raises:
            InputError: there is none of this id, its file is missing or damaged, or its mask does not fit it.
        """
        if id not in self.entries:
            reason = next((why for skipped, why in self.skipped if skipped == id), "it is not in the list")
            raise InputError(f"{self.name} has no picture {id!r}: {reason}")
        try:
            sample = self.source.read(self.entries[id])
        except OSError as error:  # a disk that goes away, a file that may not be read
            raise InputError(f"{id!r} of {self.name} cannot be read ({error}); check the disk and try again") from error
        size = (sample.image.height, sample.image.width)
        if sample.mask is not None and sample.mask.shape != size:
            came, needed = ("×".join(map(str, shape)) for shape in (sample.mask.shape, size))
            raise InputError(
                f"the mask of {id!r} is {came} and the image {needed} (height×width); restore the right one"
            )
        return sample

    def label(self, id: str) -> int | None:
        """Return the class of an image, read only where the entry does not say."""
        known = self.entries[id].label if id in self.entries else None
        return self.read(id).label if known is None else known

    def digest(self) -> str:
        """Return a text that is the same for the same images on every machine.

        It is made of the registered name, the options that decide what an image shows, and the ids with their
        labels; not of paths. Pixels are not read: files of the same names are taken for the same.
        """
        content: dict[str, Any] = {"name": self.kind, "options": _digest_options(self.source)}
        content["entries"] = [[entry.id, entry.label] for entry in self.entries.values()]
        return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def select(source: Source, kind: str, selection: Selection) -> Dataset:
    """List a source and select from it.

    The order of work is fixed: shuffle, predictions, the set's own filter, the check of the file, the limit. Filters
    stop when the limit is reached, so that a small selection from a large set is quick.

    Raises:
        InputError: nothing is left.
    """
    listing = source.listing()
    entries = _shuffled(listing, selection.seed)
    skipped = list(listing.skipped)
    if selection.predictions is not None:
        entries = Predictions.read(selection.predictions).attach(entries)
    selected: dict[str, Entry] = {}
    counts: Counter[int | None] = Counter()
    for entry in entries:
        if selection.limit is not None and len(selected) >= selection.limit:
            break
        group = entry.label if entry.predicted is None else entry.predicted
        repeated = "its id is listed twice" if entry.id in selected else None
        reason = repeated or _skip_reason(source, entry, selection, counts[group])
        if reason is None:
            selected[entry.id] = entry
            counts[group] += 1
        else:
            skipped.append((entry.id, reason))
    name = source.title() or kind
    if not selected:
        first = f"; of {len(skipped)} left out the first is {skipped[0][0]!r}: {skipped[0][1]}" if skipped else ""
        raise InputError(f"no picture of {name} is left{first}; check the folder and the filters")
    return Dataset(name, kind, source, selected, tuple(skipped))


def _shuffled(listing: Listing, seed: int | None) -> list[Entry]:
    if seed is None:
        return list(listing.entries)
    return [listing.entries[index] for index in np.random.default_rng(seed).permutation(len(listing.entries))]


def _skip_reason(source: Source, entry: Entry, selection: Selection, taken: int) -> str | None:
    """Return why an entry is left out, cheapest checks first; None takes it."""
    filtered = selection.confidence > 0 or selection.predictions is not None
    if filtered and (reason := _prediction_reason(entry, selection.confidence)):
        return reason
    if selection.per_class is not None and taken >= selection.per_class:
        return f"its class has {selection.per_class} pictures already"
    try:
        if entry.path is not None and selection.check != "none":
            peek_image(entry.path)
        if reason := source.reject_reason(entry):
            return reason
        if selection.check == "whole":
            source.read(entry)
    except InputError as error:
        return str(error)
    return None


def _prediction_reason(entry: Entry, confidence: float) -> str | None:
    """Return why an entry is left out for what a model predicted."""
    if entry.predicted is None and entry.probability is None:
        return "nobody says what a model predicted for it"
    if entry.predicted is not None and entry.label is not None and entry.predicted != entry.label:
        return f"it was classified as {entry.predicted} and is {entry.label}"
    if confidence > 0 and entry.probability is None:
        return "nobody says how probable its class was"
    if entry.probability is not None and entry.probability < confidence:
        return f"its class had a probability of {entry.probability:g}, below {confidence:g}"
    return None


def _digest_options(source: Source) -> dict[str, Any]:
    """Return the options that decide what images show: no paths, and a set inside by its digest."""
    options: dict[str, Any] = {}
    for option in fields(source):  # type: ignore[arg-type]
        value = getattr(source, option.name)
        if isinstance(value, Dataset):
            options[option.name] = value.digest()
        elif not isinstance(value, Path) and option.name not in NOT_IN_DIGEST and value is not None:
            options[option.name] = value
    return options
