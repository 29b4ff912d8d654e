"""Sets in the format of Hugging Face's `datasets`: saved in a folder, or by the name of a repository."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from PIL import Image

from sightline.data.images import decode_image, read_image
from sightline.data.masks import mask_of
from sightline.data.source import DATASETS, Entry, Listing, Sample, Source
from sightline.errors import InputError, RecipeError
from sightline.extras import require

__all__ = ["Hub"]


@DATASETS.register(
    "hub",
    family="your own",
    cite="lhoest2021",
    layout="""
        root        a folder written by save_to_disk, or one of Parquet files
        repo        or the name of a repository, OWNER/NAME, downloaded once by the `datasets` package
    """,
)
@dataclass(frozen=True, slots=True)
class Hub(Source):
    """A set of the Hugging Face datasets package: rows with an image, and perhaps a label and a mask.

    An id is the number of the row. Of a label that is a list the first is taken.

    Attributes:
        root: a local folder; needs no network.
        repo: the name of a repository, OWNER/NAME, where there is no folder.
        split: which part; empty takes the only one.
        image: the column of the image.
        label: the column of the class; empty for none.
        mask: the column of the mask, 255 or 1 evidence, 128 ignore, 0 background; empty for none.
    """

    root: Path | None = None
    repo: str | None = None
    split: str = ""
    image: str = "image"
    label: str = "label"
    mask: str = ""

    def __post_init__(self) -> None:
        if (self.root is None) == (not self.repo):
            raise RecipeError("hub needs either root='folder' or repo='OWNER/NAME'")

    def title(self) -> str | None:
        return self.root.resolve().name if self.root is not None else self.repo

    def listing(self) -> Listing:
        table = self._table()
        for column in filter(None, (self.image, self.label, self.mask)):
            if column not in table.column_names:
                raise InputError(f"{self.title()} has no column {column!r}; it has {', '.join(table.column_names)}")
        labels = table[self.label][:] if self.label else [None] * len(table)
        entries = [Entry(f"{row:06d}", label=_class(label), details=row) for row, label in enumerate(labels)]
        return Listing(tuple(entries))

    def read(self, entry: Entry) -> Sample:
        row = self._table()[entry.details]
        mask = None
        if self.mask:
            mask = mask_of(_picture(row[self.mask], f"the mask of row {entry.id}"), entry.id).numpy()
        return Sample(entry.id, _picture(row[self.image], f"row {entry.id} of {self.title()}"), entry.label, mask)

    def _table(self) -> Any:
        return _load(self.root, self.repo, self.split, tuple(filter(None, (self.image, self.mask))))


@lru_cache(maxsize=4)
def _load(root: Path | None, repo: str | None, split: str, pictures: tuple[str, ...]) -> Any:
    """Load a table; its images stay bytes, so that they are decoded with our limits."""
    datasets = require("datasets")
    where = str(root) if root is not None else str(repo)
    try:
        if root is not None and any((root / name).is_file() for name in ("state.json", "dataset_dict.json")):
            table = datasets.load_from_disk(where)
        else:
            table = datasets.load_dataset(where)
    except Exception as error:  # network, cache, formats: the package raises nearly anything
        advice = (
            "give a folder written by save_to_disk, or one of Parquet files"
            if root is not None
            else "without a network, save the set with save_to_disk on a machine that has one, and give root='folder'"
        )
        raise InputError(f"{where} cannot be loaded ({_first_line(error)}); {advice}") from error
    table = _split(table, split, where)
    for column in pictures:
        if isinstance(table.features.get(column), datasets.Image):
            table = table.cast_column(column, datasets.Image(decode=False))
    return table


def _split(table: Any, split: str, where: str) -> Any:
    if not isinstance(table, Mapping):
        return table
    if split in table:
        return table[split]
    if not split and len(table) == 1:
        return next(iter(table.values()))
    raise InputError(f"{where} has the splits {', '.join(table)}; say which, for instance split={next(iter(table))!r}")


def _picture(value: Any, name: str) -> Image.Image:
    if isinstance(value, Image.Image):
        return value.convert("RGB")
    if isinstance(value, Mapping) and isinstance(value.get("bytes"), bytes):
        return decode_image(value["bytes"], name, upright=False)
    if isinstance(value, Mapping) and isinstance(value.get("path"), str):
        return read_image(value["path"], upright=False)
    raise InputError(f"{name} holds no picture in its column; name the right one with image=")


def _class(label: Any) -> int | None:
    if isinstance(label, list | tuple):
        label = label[0] if label else None
    return label if isinstance(label, int) and not isinstance(label, bool) and label >= 0 else None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
