"""Variations of options: the other values that a search may try for an option, read off its annotation and range.

An option that is one word out of a few has its other words, a switch its other state, a number its half and its double
as far as its range goes (`sightline.catalogue.ranges`). Whoever declares an option thereby says how it is searched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin

from sightline.catalogue.options import hints_of
from sightline.catalogue.ranges import range_of
from sightline.registry import is_number, kinds_of

__all__ = ["KEPT", "other_values", "variations"]

KEPT = frozenset({"seed", "score"})  # another seed is luck, another score another question


def variations(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield every option of a built method with each other value that it may have, one at a time."""
    for field in fields(thing):
        if field.name not in KEPT:
            for value in other_values(type(thing), field.name, getattr(thing, field.name)):
                yield field.name, value


def other_values(cls: type, option: str, value: Any) -> list[Any]:
    """Return what an option may hold instead of a value; nothing where there is no telling, as of a tuple.

    >>> from sightline.methods.path.ig import IntegratedGradients
    >>> other_values(IntegratedGradients, "steps", 20)
    [10, 40]
    """
    hint = hints_of(cls)[option]
    words = [word for kind in kinds_of(hint) if get_origin(kind) is Literal for word in get_args(kind)]
    if isinstance(value, bool):
        return [not value] if bool in kinds_of(hint) else []
    if isinstance(value, str) or value in words:
        return [word for word in words if word != value]
    if not is_number(value):
        return []
    limits = range_of(option, hints_of(cls, annotated=True)[option])
    near = [value // 2, value * 2] if isinstance(value, int) else [value / 2, value * 2]
    return [each for each in near if limits.least <= each <= limits.most and each != value]
