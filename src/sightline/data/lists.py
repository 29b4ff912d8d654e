"""Read the lists that data sets come with: lines of text, JSON tables, whichever of several files is there."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sightline.errors import InputError

__all__ = ["first_of", "read_json", "read_lines"]


def first_of(candidates: Iterable[Path], what: str) -> Path:
    """Return the first path that exists, or say what is missing and where it was looked for."""
    tried = list(candidates)
    found = next((path for path in tried if path.exists()), None)
    if found is None:
        places = ", ".join(str(path) for path in tried)
        raise InputError(f"{what} is missing; looked for {places}")
    return found


def read_lines(path: Path) -> list[list[str]]:
    """Return the words of each line that is neither empty nor a comment."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the list {path} cannot be read ({error}); restore it") from error
    return [line.split() for line in lines if line.strip() and not line.startswith("#")]


def read_json(path: Path, keys: Iterable[str]) -> dict[str, Any]:
    """Return a JSON object that has all these keys."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON ({error}); restore it") from error
    missing = [key for key in keys if not isinstance(found, dict) or key not in found]
    if missing:
        raise InputError(f"{path} has no {missing[0]!r}; give the annotation file as published")
    return dict(found)
