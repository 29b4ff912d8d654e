"""Options: the fields of a registered dataclass, their annotations and defaults, and what they mean.

What they may hold is checked where a class is registered (`sightline.registry`).
"""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, get_type_hints

if TYPE_CHECKING:
    pass

__all__ = [
    "default_of",
    "default_text",
    "hints_of",
    "missing_options",
    "option_texts",
    "without_options",
]

_ATTRIBUTES = re.compile(r"^Attributes:\n(?P<body>(?:[ ]+[^\n]*\n?|\n)*)", flags=re.MULTILINE)
_ATTRIBUTE = re.compile(r"^    (?P<name>\w+): ", flags=re.MULTILINE)


@cache
def hints_of(cls: type, *, annotated: bool = False) -> dict[str, Any]:
    """Return the annotations of a class, resolved; without what ``Annotated`` adds to them unless `annotated`."""
    from sightline.types import Method  # loads torch

    return get_type_hints(cls, localns={"Method": Method}, include_extras=annotated)


def default_of(field: Field[Any]) -> Any:
    """Return the default of an option, MISSING where it has none."""
    return field.default_factory() if field.default_factory is not MISSING else field.default


def default_text(field: Field[Any]) -> str:
    """Write the default of an option as text; "required" where it has none."""
    default = default_of(field)
    return "required" if default is MISSING else repr(default)


def missing_options(cls: Any, given: Any) -> list[str]:
    """Return the options that have no default and are not given."""
    return [field.name for field in fields(cls) if default_of(field) is MISSING and field.name not in given]


def option_texts(cls: Any) -> dict[str, str]:
    """Return what each option means, from the ``Attributes:`` of the class and of the classes it derives from."""
    texts: dict[str, str] = {}
    for base in cls.__mro__:
        for section in _ATTRIBUTES.finditer(inspect.cleandoc(base.__dict__.get("__doc__") or "")):
            names = list(_ATTRIBUTE.finditer(section["body"]))
            ends = [name.start() for name in names[1:]] + [len(section["body"])]
            for name, end in zip(names, ends, strict=True):
                texts.setdefault(name["name"], " ".join(section["body"][name.end() : end].split()))
    return {field.name: texts[field.name] for field in fields(cls) if field.name in texts}


def without_options(doc: str) -> str:
    """Return a docstring without its ``Attributes:``."""
    return _ATTRIBUTES.sub("", doc)
