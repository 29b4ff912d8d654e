"""Labels of ImageNet's flat layout, read from either of the two files that hold them.

Two files of the same look circulate. ``val.txt`` names each image and its class from 0 to 999, synsets in
alphabetical order, which is how every model counts. The devkit's ``ILSVRC2012_validation_ground_truth.txt`` gives one
number per image from 1 to 1000, its ILSVRC id, which is in another order: less one it looks like a class and is wrong
nearly everywhere. Only the devkit's meta.mat says which synset an id is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from sightline.data.annotation_files import first_existing, read_lines
from sightline.data.sets.imagenet_classes import class_of_synset, synsets
from sightline.errors import InputError

__all__ = ["Numbering", "read_labels"]

Numbering = Literal["auto", "sorted", "devkit"]
Labels = tuple[dict[str, int | None], list[tuple[str, str]]]  # the class of each image; lines that could not be used

NAMES = ("val.txt", "ILSVRC2012_validation_ground_truth.txt")
FOLDERS = ("", "data", "ILSVRC2012_devkit_t12/data", "devkit/data")
CLASSES = 1000


def read_labels(folder: Path, path: Path | None, numbering: Numbering, meta: Path | None) -> Labels:
    """Return the class of each image by name without suffix, and the lines that could not be used.

    Raises:
        InputError: there is no such file, it is empty, or nobody says what its numbers mean.
    """
    if path is None:
        tops = (folder, folder.parent)
        path = first_existing(
            (top / sub / name for name in NAMES for top in tops for sub in FOLDERS), "the file of classes"
        )
    lines = read_lines(path)
    if not lines:
        raise InputError(f"{path} is empty; restore the file with the classes")
    named = len(lines[0]) >= 2
    if named:
        pairs = [(line[0], line[1] if len(line) > 1 else "") for line in lines]
    else:
        pairs = [(f"ILSVRC2012_val_{number:08d}", line[0]) for number, line in enumerate(lines, start=1)]
    ids = {int(word) for _, word in pairs if word.isdecimal() and len(word) < 10}
    if _is_devkit(path, ids, numbering, named, meta):
        return _labels(pairs, _devkit_classes(path, meta), path)
    return _labels(pairs, {str(index): index for index in range(CLASSES)}, path)


def _is_devkit(path: Path, ids: set[int], numbering: Numbering, named: bool, meta: Path | None) -> bool:
    """Tell whether numbers are ILSVRC ids, from 1, or classes, from 0; never by guessing."""
    if numbering == "auto":
        if not ids or 0 in ids:
            return False
        if CLASSES in ids or meta is not None or (path.parent / "meta.mat").is_file():
            return True
        if named:
            return False
        raise InputError(
            f"the numbers of {path} may be ILSVRC ids (from 1, in the devkit's order) or classes (from 0, synsets "
            "sorted), and none of them tells which; say numbering='devkit' or numbering='sorted'"
        )
    if numbering == "sorted" and CLASSES in ids:
        raise InputError(f"{path} holds 1000, so it counts from 1 as the devkit does; say numbering='devkit'")
    if numbering == "devkit" and 0 in ids:
        raise InputError(f"{path} holds 0, so its numbers are no ILSVRC ids; say numbering='sorted'")
    return numbering == "devkit"


def _devkit_classes(path: Path, meta: Path | None) -> dict[str, int]:
    """Return the class of each ILSVRC id."""
    from scipy.io import loadmat

    matlab_file = meta or first_existing(
        (top / sub / "meta.mat" for top in (path.parent, path.parent.parent) for sub in FOLDERS),
        f"{path.name} counts by ILSVRC ids, whose order only the devkit's meta.mat tells; it",
    )
    try:
        table = loadmat(str(matlab_file), squeeze_me=True)["synsets"]
        pairs = [(int(row["ILSVRC2012_ID"]), str(row["WNID"])) for row in table.reshape(-1)]
    except Exception as error:  # a damaged file fails in the middle of parsing, with nearly anything
        raise InputError(f"{matlab_file} cannot be read as the devkit's meta.mat ({error}); restore it") from error
    known = {str(number): class_of_synset(synset) for number, synset in pairs if number <= CLASSES}
    return {number: index for number, index in known.items() if index is not None}


def _labels(pairs: list[tuple[str, str]], classes: dict[str, int], path: Path) -> Labels:
    """Return the class of each pair of a file name and the word for its class: a number, or a synset."""
    labels: dict[str, int | None] = {}
    skipped: list[tuple[str, str]] = []
    for file, word in pairs:
        name = Path(file).stem
        label = classes.get(word) if word.isdecimal() else class_of_synset(word)
        if label is None:
            skipped.append((name, f"{path.name} gives {word!r} as its class, which is none of {len(synsets())}"))
        else:
            labels[name] = label
    return labels, skipped
