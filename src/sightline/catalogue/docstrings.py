"""Docstrings of dataclasses: an option that several classes share is documented once, in their base class."""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from typing import Any

HEADING = "Attributes:"


def documentation(cls: Any) -> str:
    """Return the docstring of a class with its ``Attributes:`` section completed from its base classes.

    Options are listed in the order of the fields; where a class and its base both document one, the class's own text
    is taken.
    """
    before, own, after = _split(inspect.getdoc(cls) or "")
    options = [field.name for field in fields(cls)] if is_dataclass(cls) else []
    inherited = {}
    for base in reversed(inspect.getmro(cls)[1:]):
        inherited.update(_split(inspect.cleandoc(vars(base).get("__doc__") or ""))[1])
    if not any(name in inherited and name not in own for name in options):
        return inspect.getdoc(cls) or ""
    entries = inherited | own
    names = [name for name in (*options, *own) if name in entries]
    section = "\n".join([HEADING, *(entries[name] for name in dict.fromkeys(names))])
    return "\n\n".join(part for part in (before, section, after) if part)


def _split(doc: str) -> tuple[str, dict[str, str], str]:
    """Split a docstring into the text before its attributes, the lines of each attribute by name, and the rest."""
    lines = doc.splitlines()
    if HEADING not in lines:
        return doc, {}, ""
    first = lines.index(HEADING)
    last = next((i for i in range(first + 1, len(lines)) if lines[i][:1].strip()), len(lines))
    entries: dict[str, str] = {}
    name = ""
    for line in lines[first + 1 : last]:
        if line[:4].strip() == "" and line[4:5].strip():
            name = line.partition(":")[0].strip()
            entries[name] = line
        elif line.strip():
            entries[name] += f"\n{line}"
    return "\n".join(lines[:first]).strip(), entries, "\n".join(lines[last:]).strip()
