"""Read ``labels.csv`` of a folder of labelled images.

The folder holds ``images/``, perhaps ``masks/`` (one PNG for each image that has one, of the same name), and
``labels.csv`` with one row per image:

=================================  ======================================================================
``file`` or ``stem``               the image's name in ``images/``, with or without its suffix
``label`` or ``imagenet_label``    its class, a number
``predicted``, ``…_predicted``     the class a model predicted; may be missing
``probability``, ``…_probability`` the probability that model gave the label; may be missing
=================================  ======================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sightline.data.annotation_files import read_csv
from sightline.data.images import LONGEST_NAME, SUFFIXES
from sightline.errors import InputError

__all__ = ["LabelledImage", "read_labels_csv"]


@dataclass(frozen=True, slots=True)
class LabelledImage:
    """One image of a labelled folder.

    Attributes:
        name: of the file, without its suffix.
        path: of the image.
        label: its class.
        mask: path of its mask, None where there is none.
        predicted: the class a model predicted for it, None where unknown.
        confidence: the probability that model gave the label, None where unknown.
    """

    name: str
    path: Path
    label: int
    mask: Path | None = None
    predicted: int | None = None
    confidence: float | None = None

    @property
    def correct(self) -> bool:
        """Whether the model is known to have been right."""
        return self.predicted == self.label


def read_labels_csv(folder: str | Path, skipped: list[tuple[str, str]] | None = None) -> list[LabelledImage]:
    """Read ``labels.csv`` of a folder, in the order of its rows.

    Args:
        folder: that holds the table.
        skipped: where given, a row that cannot be used is added here as (name, reason) and the others are read.

    Raises:
        InputError: the table or an image is missing, a column is, or a number is none.
    """
    folder = Path(folder)
    table = folder / "labels.csv"
    if not table.is_file():
        raise InputError(f"{folder} has no labels.csv; give a folder with images/ and labels.csv")
    rows = read_csv(table)
    if not rows:
        raise InputError(f"{table} has no row; list one image per row")
    images = []
    for line, row in enumerate(rows, start=2):
        try:
            images.append(_read_row(folder, row, line))
        except InputError as error:
            if skipped is None:
                raise
            skipped.append((row.get("file") or row.get("stem") or f"line {line}", str(error)))
    return images


def _read_row(folder: Path, row: Mapping[str, str | None], line: int) -> LabelledImage:
    where = f"line {line} of {folder / 'labels.csv'}"
    path = _find(folder / "images", _needed(row, ("file", "stem"), where), where)
    mask = folder / "masks" / f"{path.stem}.png"
    predicted, confidence = _ending(row, "predicted"), _ending(row, "probability")
    return LabelledImage(
        name=path.stem,
        path=path,
        label=int(_number(_needed(row, ("label", "imagenet_label"), where), where)),
        mask=mask if mask.is_file() else None,
        predicted=None if predicted is None else int(_number(predicted, where)),
        confidence=None if confidence is None else _number(confidence, where),
    )


def _needed(row: Mapping[str, str | None], columns: tuple[str, ...], where: str) -> str:
    for column in columns:
        if row.get(column):
            return str(row[column]).strip()
    raise InputError(f"{where} has no {' or '.join(columns)}; name the columns in the first line and fill them all")


def _ending(row: Mapping[str, str | None], word: str) -> str | None:
    """Return the first filled column of this name, or of a name that ends in it after an underscore."""
    names = (name for name in row if name and (name == word or name.endswith(f"_{word}")))
    return next((row[name] for name in names if row[name]), None)


def _number(text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{where} has {text!r} where a number belongs; correct it")
    return number


def _find(folder: Path, name: str, where: str) -> Path:
    """Return the image of this name, its suffix given or not; a name may not lead out of the folder."""
    if Path(name).name != name or len(name.encode("utf-8", "replace")) > LONGEST_NAME - 5:
        raise InputError(f"{where} names {name!r}; give the name of a file in {folder}, not a path")
    if (folder / name).suffix.lower() in SUFFIXES and (folder / name).is_file():
        return folder / name
    candidates = (folder / f"{name}{suffix}" for suffix in sorted(SUFFIXES))
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        raise InputError(f"{where} names {name!r}, and {folder} holds no such image; restore it or drop the row")
    return path
