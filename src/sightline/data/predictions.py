"""What models predicted for the pictures of a set, so that filters that ask a model can be applied without one.

Several papers keep only pictures that their models classify correctly and surely. Such a filter needs the models, and
belongs to a run; its outcome is a table, and this file applies the table. A CSV file has one row per picture, or one
per picture and model, with the columns

==============================  ==================================================
``id``, ``image`` or ``file``   the picture's id in its set; a suffix may be there
``predicted``                   the class that was most probable
``probability``                 how probable it was, 0..1
==============================  ==================================================

Where a picture has several rows, each of its models must have been right, and the least sure one counts.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from sightline.data.images import SUFFIXES
from sightline.data.source import Entry
from sightline.errors import InputError

__all__ = ["Predictions"]


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """What models said of each picture: pairs of class and probability, by id."""

    said: dict[str, list[tuple[int, float]]]

    @classmethod
    def read(cls, path: Path) -> Predictions:
        """Read a table of predictions.

        Raises:
            InputError: the file cannot be read, lacks a column, or holds something else than numbers.
        """
        said: dict[str, list[tuple[int, float]]] = {}
        try:
            with path.open(newline="", encoding="utf-8-sig") as lines:
                for number, row in enumerate(csv.DictReader(lines), start=2):
                    name = next((row[key] for key in ("id", "image", "file") if row.get(key)), None)
                    if name is None:
                        raise InputError(f"line {number} of {path} has no id, image or file; name the columns")
                    said.setdefault(_bare(name), []).append(_numbers(row, f"line {number} of {path}"))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"the predictions {path} cannot be read ({error}); give a CSV file") from error
        return cls(said)

    def tell(self, entries: Iterable[Entry]) -> list[Entry]:
        """Write onto each entry what was predicted for it; a wrong model outweighs right ones, then the least sure."""
        return [self._told(entry) for entry in entries]

    def _told(self, entry: Entry) -> Entry:
        said = self.said.get(entry.id) or self.said.get(_bare(entry.id))
        if not said:
            return replace(entry, predicted=None, probability=None)
        predicted, probability = min(said, key=lambda one: (entry.label is None or one[0] == entry.label, one[1]))
        return replace(entry, predicted=predicted, probability=probability)


def _bare(name: str) -> str:
    path = Path(name)
    return str(path.with_suffix("")) if path.suffix.lower() in SUFFIXES else name


def _numbers(row: dict[str, str], where: str) -> tuple[int, float]:
    try:
        return int(row["predicted"]), float(row["probability"])
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{where} lacks a number under predicted or probability; fill both columns") from None
