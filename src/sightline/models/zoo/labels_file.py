"""Read a file of class names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sightline.errors import InputError


def read_labels(path: Path, classes: int | None = None) -> tuple[str, ...]:
    """Return the class names of a file: one per line, or JSON, a list of names or an object of number and name.

    Args:
        path: the file.
        classes: how many the model has, where that is known; another number of names is refused.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the class names in {path}; give a text file or JSON") from error
    labels = _from_json(path, text) if text.lstrip()[:1] in ("[", "{") else tuple(text.splitlines())
    labels = tuple(label.strip() for label in labels)
    if not labels or not all(labels):
        raise InputError(f"{path} has an empty class name; give one name per line")
    if classes is not None and len(labels) != classes:
        raise InputError(f"{path} names {len(labels)} classes and the model has {classes}; give one name for each")
    return labels


def _from_json(path: Path, text: str) -> tuple[str, ...]:
    try:
        names: Any = json.loads(text)
        if isinstance(names, dict):
            numbered = {int(number): name for number, name in names.items()}
            names = [numbered[index] for index in range(len(numbered))]
    except (ValueError, KeyError) as error:
        raise InputError(
            f"{path} is no list of class names and no object of numbers from 0 and names; correct the JSON"
        ) from error
    return tuple(map(str, names))
