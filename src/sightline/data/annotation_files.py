"""Read the files that data sets come with: lines of text, JSON, CSV, whichever of several paths exists."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sightline.errors import InputError

__all__ = ["first_existing", "read_csv", "read_json", "read_lines"]


def first_existing(candidates: Iterable[Path], what: str) -> Path:
    """Return the first path that exists, or say what is missing and where it was looked for."""
    tried = list(candidates)
    existing = next((path for path in tried if path.exists()), None)
    if existing is None:
        raise InputError(f"{what} is missing; looked for {', '.join(map(str, tried))}")
    return existing


def read_lines(path: Path) -> list[list[str]]:
    """Return the words of each line that is neither empty nor a comment."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the list {path} cannot be read ({error}); restore it") from error
    return [line.split() for line in lines if line.strip() and not line.startswith("#")]


def read_csv(path: Path, advice: str = "save it as CSV in UTF-8") -> list[dict[str, str]]:
    """Return the rows of a CSV file by the names in its first line; row i is line i + 2 of the file."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            return list(csv.DictReader(lines))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read ({error}); {advice}") from error


def read_json(path: Path, keys: Iterable[str]) -> dict[str, Any]:
    """Return a JSON object that has all these keys."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON ({error}); restore it") from error
    missing = [key for key in keys if not isinstance(content, dict) or key not in content]
    if missing:
        raise InputError(f"{path} has no {missing[0]!r}; give the annotation file as published")
    return dict(content)
