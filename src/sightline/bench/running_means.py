"""Running means: what the rows so far say while a run is under way, and what has failed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sightline.bench.store.rows import FAILED
from sightline.bench.traits import direction_of

__all__ = ["Failure", "RunningMean", "RunningMeans"]

NEEDED = ("model", "recipe", "metric", "image", "value", "flag")


@dataclass(frozen=True, slots=True)
class RunningMean:
    """One recipe under one metric on one model: the plain mean over images so far, and its standard error."""

    model: str
    recipe: str
    metric: str
    mean: float
    standard_error: float
    count: int

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data; the standard error is called ``error``, as in every version."""
        return {
            "model": self.model,
            "recipe": self.recipe,
            "metric": self.metric,
            "mean": self.mean,
            "error": self.standard_error,
            "count": self.count,
        }


@dataclass(frozen=True, slots=True)
class Failure:
    """One image that could not be scored."""

    model: str
    recipe: str
    image: str
    reason: str


@dataclass
class RunningMeans:
    """Values by model, recipe and metric, then image; a row that comes twice counts once."""

    values: dict[tuple[str, str, str], dict[str, float]] = field(default_factory=dict)
    failures: dict[tuple[str, str, str], Failure] = field(default_factory=dict)

    def add(self, table: Any) -> bool:
        """Add the rows of a unit, a pyarrow table; return whether all of its images were scored."""
        failed: dict[tuple[str, str, str], Failure] = {}
        for row in table.select(NEEDED).to_pylist():
            model, recipe, metric, image = (row[name] for name in NEEDED[:4])
            self.values.setdefault((model, recipe, metric), {})[image] = row["value"]
            if row["flag"].startswith(FAILED):
                failed[model, recipe, image] = Failure(model, recipe, image, row["flag"].removeprefix(FAILED))
            self.failures.pop((model, recipe, image), None)
        self.failures.update(failed)
        return not failed

    def ranked(self) -> list[RunningMean]:
        """Return every mean, models and metrics in the order they came, best recipe first."""
        means = [_mean(*key, values.values()) for key, values in self.values.items()]
        order = {key: index for index, key in enumerate(dict.fromkeys((mean.model, mean.metric) for mean in means))}
        return sorted(means, key=lambda mean: (order[mean.model, mean.metric], _sort_value(mean), mean.recipe))


def _mean(model: str, recipe: str, metric: str, values: Iterable[float]) -> RunningMean:
    """Average values that are numbers; exactly rounded sums, so that their order does not matter."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return RunningMean(model, recipe, metric, math.nan, math.nan, 0)
    count = len(known)
    mean = math.fsum(known) / count
    squares = math.fsum((value - mean) ** 2 for value in known)
    standard_error = math.sqrt(squares / (count - 1) / count) if count > 1 else math.nan
    return RunningMean(model, recipe, metric, mean, standard_error, count)


def _sort_value(mean: RunningMean) -> float:
    """Return a number that is smaller for what is better."""
    if math.isnan(mean.mean):
        return math.inf
    return mean.mean if direction_of(mean.metric) == "lower" else -mean.mean
