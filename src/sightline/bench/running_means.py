"""Standings: what the rows so far say, and what has failed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sightline.bench.store.rows import FAILED

__all__ = ["Failure", "Standing", "Standings"]

NEEDED = ("model", "recipe", "metric", "image", "value", "flag")


@dataclass(frozen=True, slots=True)
class Standing:
    """One recipe by one metric on one model: the plain mean over images, and its standard error."""

    model: str
    recipe: str
    metric: str
    mean: float
    error: float
    count: int


@dataclass(frozen=True, slots=True)
class Failure:
    """One image that could not be scored."""

    model: str
    recipe: str
    image: str
    reason: str


@dataclass
class Standings:
    """Values by model, recipe and metric, then image; whatever is told twice counts once."""

    values: dict[tuple[str, str, str], dict[str, float]] = field(default_factory=dict)
    failures: dict[tuple[str, str, str], Failure] = field(default_factory=dict)

    def add(self, table: Any) -> bool:
        """Take in the rows of a unit, a pyarrow table; return whether all of its images were scored."""
        failed: dict[tuple[str, str, str], Failure] = {}
        for row in table.select(NEEDED).to_pylist():
            model, recipe, metric, image = (row[name] for name in NEEDED[:4])
            self.values.setdefault((model, recipe, metric), {})[image] = row["value"]
            if row["flag"].startswith(FAILED):
                failed[model, recipe, image] = Failure(model, recipe, image, row["flag"].removeprefix(FAILED))
            self.failures.pop((model, recipe, image), None)
        self.failures.update(failed)
        return not failed

    def lines(self) -> list[Standing]:
        """Return every standing, models and metrics in the order they came, best recipe first."""
        found = [_standing(*key, values.values()) for key, values in self.values.items()]
        places = {key: place for place, key in enumerate(dict.fromkeys((one.model, one.metric) for one in found))}
        return sorted(found, key=lambda one: (places[one.model, one.metric], _badness(one), one.recipe))


def _standing(model: str, recipe: str, metric: str, values: Iterable[float]) -> Standing:
    """Average values that are numbers; exactly rounded sums, so that their order does not matter."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return Standing(model, recipe, metric, math.nan, math.nan, 0)
    count = len(known)
    mean = math.fsum(known) / count
    spread = math.fsum((value - mean) ** 2 for value in known)
    error = math.sqrt(spread / (count - 1) / count) if count > 1 else math.nan
    return Standing(model, recipe, metric, mean, error, count)


def _badness(one: Standing) -> float:
    from sightline.bench.traits import direction_of

    if math.isnan(one.mean):
        return math.inf
    return one.mean if direction_of(one.metric) == "lower" else -one.mean
