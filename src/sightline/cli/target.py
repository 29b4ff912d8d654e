"""What a user means by ``--target``: a class's number or its label."""

from __future__ import annotations

import difflib

from sightline.errors import TargetError
from sightline.models.adapter import Adapter

__all__ = ["find_class"]


def find_class(model: Adapter, wanted: str) -> int:
    """Return the class that a number or a label names; case does not matter, and one of several synonyms will do."""
    if wanted.strip().removeprefix("-").isdecimal():
        return _numbered(model, int(wanted))
    return _named(model, wanted)


def _numbered(model: Adapter, index: int) -> int:
    count = model.num_classes
    if index < 0 or (count is not None and index >= count):
        known = "0 upwards" if count is None else f"0 to {count - 1}"
        raise TargetError(f"got class {index}; {model.name} has classes {known}")
    return index


def _named(model: Adapter, wanted: str) -> int:
    if not model.labels:
        raise TargetError(f"got the target {wanted!r}, and {model.name} does not name its classes; give a number")
    names = {_plain(label): index for index, label in reversed(list(enumerate(model.labels)))}
    for index, label in enumerate(model.labels):  # "tabby, tabby cat" answers to both; a whole label goes before a part
        for part in label.split(","):
            names.setdefault(_plain(part), index)
    asked = _plain(wanted)
    if asked in names:
        return names[asked]
    near = difflib.get_close_matches(asked, names, n=1, cutoff=0.6) or [name for name in names if asked in name]
    hint = f"did you mean {near[0]!r}?" if near else f"its {len(model.labels)} classes begin with {model.labels[0]!r}"
    raise TargetError(f"{model.name} has no class called {wanted!r}; {hint}")


def _plain(label: str) -> str:
    return label.strip().casefold()
