"""What an experiment found, image by image: kept in a JSON file, continued by a later run, shown as a table."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

Found = dict[str, float | None]  # by metric, and the passes as "forward" and "backward"; None where undefined
PASSES = ("forward", "backward")


@dataclass
class Results:
    """Values by place (a model on a set), recipe and image.

    Attributes:
        path: the file to keep them in, None to keep them nowhere.
        found: the values.
        refused: why a recipe has no values at a place.
        failed: why a recipe has no value for an image at a place.
    """

    path: Path | None = None
    found: dict[str, dict[str, dict[str, Found]]] = field(default_factory=dict)
    refused: dict[tuple[str, str], str] = field(default_factory=dict)
    failed: dict[tuple[str, str, str], str] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path | None, also: Iterable[Path] = ()) -> Results:
        """Read what earlier runs found: the file itself, if it is there, and others, which must be."""
        results = cls(path)
        for other in also:
            results.merge(other)
        if path is not None and path.exists():
            results.merge(path)
        return results

    def merge(self, path: Path) -> None:
        """Add the values of a file; where both have one, the file's counts."""
        for place, recipes in json.loads(path.read_text(encoding="utf-8"))["found"].items():
            for recipe, images in recipes.items():
                for image, values in images.items():
                    self.of(place, recipe).setdefault(image, {}).update(values)

    def of(self, place: str, recipe: str) -> dict[str, Found]:
        """Return the values of a recipe at a place, by image, to be read or added to."""
        return self.found.setdefault(place, {}).setdefault(recipe, {})

    def lacking(self, place: str, recipe: str, images: Iterable[str], metrics: Iterable[str]) -> list[str]:
        """Return the metrics that at least one of the images has no value of."""
        known = self.found.get(place, {}).get(recipe, {})
        images = list(images)
        return [metric for metric in metrics if any(metric not in known.get(image, {}) for image in images)]

    def add(self, place: str, recipe: str, images: Sequence[str], values: Mapping[str, Sequence[float]]) -> None:
        """Add the values of some images, and write the file."""
        for row, image in enumerate(images):
            mine = {name: _number(column[row]) for name, column in values.items()}
            self.of(place, recipe).setdefault(image, {}).update(mine)
        self.save()

    def save(self) -> None:
        """Write the file beside itself, then put it in its place: a killed run leaves the old one or the new one."""
        if self.path is None:
            return
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        draft.write_text(json.dumps({"found": self.found}, indent=1), encoding="utf-8")
        draft.replace(self.path)


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        title: its heading.
        place: where the values are from.
        metric: which values.
        minus: another metric, subtracted image by image.
        against: another recipe, or one for each, whose values are subtracted image by image.
        scale: what values are multiplied by.
        digits: after the point.
    """

    title: str
    place: str
    metric: str
    minus: str | None = None
    against: str | Mapping[str, str] | None = None
    scale: float = 100.0
    digits: int = 1

    def values(self, results: Results, recipe: str, shown: set[str] | None = None) -> list[float]:
        """Return one value per image; the parts of an image, named image#part, are averaged first."""
        mine = self._read(results, recipe, self.metric)
        rival = self._rival(recipe)
        others = [self._read(results, recipe, self.minus)] if self.minus else []
        others += [self._read(results, rival, self.metric)] if rival else []
        images: dict[str, list[float]] = {}
        for name, value in mine.items():
            if (shown is None or name in shown) and all(name in other for other in others):
                images.setdefault(name.partition("#")[0], []).append(value - sum(other[name] for other in others))
        return [fmean(parts) for parts in images.values()]

    def _rival(self, recipe: str) -> str | None:
        return self.against.get(recipe, recipe) if isinstance(self.against, Mapping) else self.against

    def _read(self, results: Results, recipe: str, metric: str) -> dict[str, float]:
        images = results.found.get(self.place, {}).get(recipe, {})
        read = {name: values.get(metric) for name, values in images.items()}
        return {name: value for name, value in read.items() if value is not None}

    def cell(self, results: Results, recipe: str, shown: set[str] | None = None) -> str:
        """Write mean ± standard error."""
        if self._rival(recipe) == recipe:
            return "0"
        values = [value * self.scale for value in self.values(results, recipe, shown)]
        sign = "+" if self.against else ""
        return mean_and_error(values, self.digits, sign)


def mean_and_error(values: Sequence[float], digits: int = 1, sign: str = "") -> str:
    """Write the mean of some values and its standard error, their deviation over the root of their number.

    >>> mean_and_error([1.0, 2.0, 3.0])
    '2.0 ± 0.6'
    """
    if not values:
        return "–"
    mean = f"{fmean(values):{sign}.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {stdev(values) / math.sqrt(len(values)):.{digits}f}"


def table(
    results: Results, recipes: Sequence[str], columns: Sequence[Column], shown: Mapping[str, set[str]] | None = None
) -> str:
    """Return a Markdown table, one row per recipe, with the passes of one map and the number of images.

    Args:
        results: the values.
        recipes: the rows, in this order.
        columns: what is shown of them.
        shown: by place, the images that count; all by default.
    """
    heads = ["recipe", *(column.title for column in columns), "passes (forward, backward)", "images"]
    lines = [_line(heads), _line(["---"] * len(heads))]
    places = list(dict.fromkeys(column.place for column in columns))
    for recipe in recipes:
        if not any(results.found.get(place, {}).get(recipe) for place in places):
            lines.append(_line([f"`{recipe}`", "not available", *[""] * (len(heads) - 2)]))
            continue
        cells = [column.cell(results, recipe, (shown or {}).get(column.place)) for column in columns]
        counts = [
            len(next(c for c in columns if c.place == p).values(results, recipe, (shown or {}).get(p))) for p in places
        ]
        lines.append(_line([f"`{recipe}`", *cells, _passes(results, places, recipe), ", ".join(map(str, counts))]))
    return "\n".join(lines)


def reasons(results: Results, recipes: Iterable[str]) -> str:
    """Return why rows or single images have no value, as a list; empty when all have."""
    wanted = set(recipes)
    lines = [f"- `{recipe}` on {place}: {why}" for (place, recipe), why in results.refused.items() if recipe in wanted]
    grouped: dict[tuple[str, str], list[str]] = {}
    for (place, recipe, image), why in results.failed.items():
        if recipe in wanted:
            grouped.setdefault((place, recipe), []).append(f"{image}: {why}")
    for (place, recipe), whys in grouped.items():
        lines.append(f"- `{recipe}` on {place}, {len(whys)} of its images, the first {whys[0]}")
    return "\n".join(["", "Not available:", "", *lines]) if lines else ""


def _passes(results: Results, places: Sequence[str], recipe: str) -> str:
    rows: list[Any] = [found for p in places for found in results.found.get(p, {}).get(recipe, {}).values()]
    spent = [(row["forward"], row["backward"]) for row in rows if all(row.get(name) is not None for name in PASSES)]
    return ", ".join(f"{fmean(column):.4g}" for column in zip(*spent, strict=True)) if spent else "–"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
