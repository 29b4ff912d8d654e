"""A CSV file that lists images wherever they lie below a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sightline.data.annotation_files import read_csv
from sightline.data.images import read_image
from sightline.data.masks import read_mask
from sightline.data.source import DATASETS, Entry, Listing, Sample, Source, file_problem, path_inside
from sightline.errors import InputError

__all__ = ["CsvFile"]

FILE_COLUMNS = ("file", "path", "image", "filename")


@DATASETS.register(
    "csv",
    family="your own",
    layout="""
        root             a .csv file with the column file (or path, image, filename), and perhaps id, label, mask,
                         predicted, probability
        images/<file>    files as the table names them, below images=, or beside the table
    """,
    filters="confidence= leaves out images by the table's own columns predicted and probability",
)
@dataclass(frozen=True, slots=True)
class CsvFile(Source):
    """A CSV file that lists images, with labels, masks and predictions where it has those columns.

    A file is named by its path below the folder; a name that leads out of it is refused, unless `absolute` allows it.

    Attributes:
        root: the CSV file.
        images: the folder that names are relative to; None takes the one in which the table lies.
        absolute: whether a name may also be an absolute path, of a file anywhere on this machine. A table from somebody
            else then decides which files are opened.
    """

    root: Path
    images: Path | None = None
    absolute: bool = False

    def title(self) -> str | None:
        return self.root.stem

    def listing(self) -> Listing:
        folder = self.images or self.root.parent
        rows = read_csv(self.root)
        if not rows or not set(rows[0]) & set(FILE_COLUMNS):
            raise InputError(
                f"{self.root} has no row, or no column {', '.join(FILE_COLUMNS)}; name one in its first line"
            )
        entries, skipped = [], []
        for line, row in enumerate(rows, start=2):
            name = next((row[column] for column in FILE_COLUMNS if row.get(column)), "")
            try:
                entries.append(_entry(folder, name, row, self.absolute))
            except InputError as error:
                skipped.append((name or f"line {line}", f"line {line}: {error}"))
        return Listing(tuple(entries), tuple(skipped))

    def read(self, entry: Entry) -> Sample:
        assert entry.path is not None
        mask = None if entry.mask is None else read_mask(entry.mask).numpy()
        return Sample(entry.id, read_image(entry.path), entry.label, mask)


def _entry(folder: Path, name: str, row: dict[str, str], absolute: bool) -> Entry:
    mask = row.get("mask") or None
    path = _file(folder, name, absolute)
    mask_path = None if mask is None else _file(folder, mask, absolute)
    try:
        label, predicted = (int(row[key]) if row.get(key) else None for key in ("label", "predicted"))
        probability = float(row["probability"]) if row.get("probability") else None
    except ValueError as error:
        raise InputError(f"{error}; correct the number") from None
    return Entry(
        id=row.get("id") or Path(name).with_suffix("").as_posix(),
        path=path,
        label=label,
        mask=mask_path,
        predicted=predicted,
        probability=probability,
    )


def _file(folder: Path, name: str, absolute: bool) -> Path:
    """Return the path of a listed file that is there."""
    path = Path(name)
    if absolute and path.is_absolute():
        folder, name = path.parent, path.name
    elif path.is_absolute():
        raise InputError(f"{name!r} leads out of {folder}; name files inside the folder, or say absolute=True")
    if reason := file_problem(folder, name):
        raise InputError(reason)
    return path_inside(folder, name)
