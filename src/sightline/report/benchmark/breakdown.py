"""Tables of a metric by class, and of the images on which a method falls furthest behind the best one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sightline.formatting import MISSING, format_score, sort_key

if TYPE_CHECKING:
    from sightline.bench.stats.breakdown import ClassRow, WorstImage

__all__ = ["class_table", "worst_table"]

MOST_CLASSES, MOST_IMAGES = 40, 15  # rows of the two tables


def worst_table(worst: Iterable[WorstImage], names: Mapping[int, str]) -> dict[str, Any]:
    """Return the table of images with the largest shortfall of a method against the best one on that image."""
    images = sorted(worst, key=lambda image: (-image.shortfall, image.image, image.recipe))[:MOST_IMAGES]
    if not images:
        return {}
    heads = [("image", False), ("class", False), ("method", False), ("value", True), ("behind by", True)]
    heads += [("best", True), ("by", False)]
    rows = [
        [
            _text(image.image),
            _text(MISSING if image.label is None else names.get(image.label, str(image.label))),
            _text(image.recipe),
            _number(image.value),
            _number(image.shortfall),
            _number(image.best),
            _text(image.best_recipe),
        ]
        for image in images
    ]
    return {"heads": _heads(heads), "rows": rows}


def class_table(class_rows: Iterable[ClassRow], recipes: Sequence[str], names: Mapping[int, str]) -> dict[str, Any]:
    """Return the table of the classes with the most images, one column per recipe in the order given.

    `names` are the labels of the classes; a class without one is shown by its number.
    """
    by_class: dict[int, dict[str, ClassRow]] = {}
    for row in class_rows:
        by_class.setdefault(row.label, {})[row.recipe] = row
    if len(by_class) < 2:
        return {}
    counts = {label: max(row.count for row in by_recipe.values()) for label, by_recipe in by_class.items()}
    labels = sorted(by_class, key=lambda label: (-counts[label], label))
    columns = [recipe for recipe in recipes if any(recipe in by_recipe for by_recipe in by_class.values())]
    rows = [
        [
            _text(names.get(label, str(label))),
            _number(counts[label], str(counts[label])),
            *_means(by_class[label], columns),
        ]
        for label in labels[:MOST_CLASSES]
    ]
    heads = [("class", False), ("images", True), *((recipe, True) for recipe in columns)]
    return {"heads": _heads(heads), "rows": rows, "left_out": max(len(labels) - MOST_CLASSES, 0)}


def _heads(heads: Iterable[tuple[str, bool]]) -> list[dict[str, Any]]:
    return [{"name": name, "number": number} for name, number in heads]


def _means(by_recipe: Mapping[str, ClassRow], columns: Sequence[str]) -> list[dict[str, Any]]:
    return [_number(by_recipe[recipe].mean if recipe in by_recipe else None) for recipe in columns]


def _text(text: str) -> dict[str, Any]:
    return {"text": text, "value": text, "number": False}


def _number(value: float | None, text: str | None = None) -> dict[str, Any]:
    return {"text": format_score(value) if text is None else text, "value": sort_key(value), "number": True}
