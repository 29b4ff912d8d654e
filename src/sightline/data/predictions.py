"""What models predicted for the images of a set, so that filters that ask a model can be applied without one.

Several papers keep only images that their models classify correctly and surely. Such a filter needs the models, and
belongs to a run; its outcome is a table, and this file applies the table. A CSV file has one row per image, or one
per image and model, with the columns

==============================  ==================================================
``id``, ``image`` or ``file``   the image's id in its set; a suffix may be there
``predicted``                   the class that was most probable
``probability``                 how probable it was, 0..1
==============================  ==================================================

Where an image has several rows, each of its models must have been right, and the least sure one counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from sightline.data.annotation_files import read_csv
from sightline.data.images import SUFFIXES
from sightline.data.source import Entry
from sightline.errors import InputError

__all__ = ["Predictions"]


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """What models predicted for each image: pairs of class and probability, by id."""

    by_image: dict[str, list[tuple[int, float]]]

    @classmethod
    def read(cls, path: Path) -> Predictions:
        """Read a table of predictions.

        Raises:
            InputError: the file cannot be read, lacks a column, or holds something else than numbers.
        """
        by_image: dict[str, list[tuple[int, float]]] = {}
        for number, row in enumerate(read_csv(path), start=2):
            name = next((row[key] for key in ("id", "image", "file") if row.get(key)), None)
            if name is None:
                raise InputError(f"line {number} of {path} has no id, image or file; name the columns")
            by_image.setdefault(_without_suffix(name), []).append(_numbers(row, f"line {number} of {path}"))
        return cls(by_image)

    def attach(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the entries with what was predicted for each: a wrong model's answer first, then the least sure."""
        return [self._with_prediction(entry) for entry in entries]

    def _with_prediction(self, entry: Entry) -> Entry:
        pairs = self.by_image.get(entry.id) or self.by_image.get(_without_suffix(entry.id))
        if not pairs:
            return replace(entry, predicted=None, probability=None)
        predicted, probability = min(pairs, key=lambda pair: (entry.label is None or pair[0] == entry.label, pair[1]))
        return replace(entry, predicted=predicted, probability=probability)


def _without_suffix(name: str) -> str:
    path = Path(name)
    return str(path.with_suffix("")) if path.suffix.lower() in SUFFIXES else name


def _numbers(row: dict[str, str], where: str) -> tuple[int, float]:
    try:
        return int(row["predicted"]), float(row["probability"])
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{where} lacks a number under predicted or probability; fill both columns") from None
