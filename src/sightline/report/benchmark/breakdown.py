"""Class by class, and the images on which methods fall furthest behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sightline.report.numbers import NONE, figure, finite

if TYPE_CHECKING:
    from sightline.bench.stats.breakdown import ClassRow, WorstImage

__all__ = ["class_table", "worst_table"]

CLASSES, WORST = 40, 15  # lines of the two tables


def worst_table(worst: Iterable[WorstImage], names: Mapping[int, str]) -> dict[str, Any]:
    """List the images with the largest shortfall of any method against the best one on them."""
    found = sorted(worst, key=lambda one: (-one.shortfall, one.image, one.recipe))[:WORST]
    if not found:
        return {}
    heads = [("image", False), ("class", False), ("method", False), ("value", True), ("behind by", True)]
    heads += [("best", True), ("by", False)]
    rows = [
        [
            _text(one.image),
            _text(NONE if one.label is None else names.get(one.label, str(one.label))),
            _text(one.recipe),
            _number(one.value),
            _number(one.shortfall),
            _number(one.best),
            _text(one.best_recipe),
        ]
        for one in found
    ]
    return {"heads": [{"name": name, "number": number} for name, number in heads], "rows": rows}


def class_table(lines: Iterable[ClassRow], recipes: Sequence[str], names: Mapping[int, str]) -> dict[str, Any]:
    """Lay out the figures of the classes with the most images, a column per recipe in the order given.

    `names` says what classes are called; one that it does not know is shown by its number.
    """
    cells: dict[int, dict[str, ClassRow]] = {}
    for line in lines:
        cells.setdefault(line.label, {})[line.recipe] = line
    if len(cells) < 2:
        return {}
    counts = {label: max(line.count for line in found.values()) for label, found in cells.items()}
    shown = sorted(cells, key=lambda label: (-counts[label], label))
    columns = [recipe for recipe in recipes if any(recipe in found for found in cells.values())]
    rows = [
        [
            _text(names.get(label, str(label))),
            _number(counts[label], str(counts[label])),
            *_means(cells[label], columns),
        ]
        for label in shown[:CLASSES]
    ]
    heads = [("class", False), ("images", True), *((recipe, True) for recipe in columns)]
    return {
        "heads": [{"name": name, "number": number} for name, number in heads],
        "rows": rows,
        "left_out": max(len(shown) - CLASSES, 0),
    }


def _means(found: dict[str, ClassRow], columns: Sequence[str]) -> list[dict[str, Any]]:
    return [_number(found[recipe].mean if recipe in found else None) for recipe in columns]


def _text(text: str) -> dict[str, Any]:
    return {"text": text, "value": text, "number": False}


def _number(value: float | None, text: str | None = None) -> dict[str, Any]:
    number = finite(value)
    return {"text": figure(number) if text is None else text, "value": "" if number is None else number, "number": True}
