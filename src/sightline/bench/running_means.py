"""Running means: what the rows so far say while a run is under way, and what has failed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sightline.bench.store.rows import FAILED
from sightline.bench.tables.traits import direction_of
from sightline.bench.unit_keys import KeyTable

__all__ = ["Failure", "Moments", "RunningMean", "RunningMeans", "moments_of"]

NEEDED = ("unit", "model", "recipe", "metric", "image", "value", "flag")
Cell = tuple[str, str, str]  # model, recipe, metric


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


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean and sum of squared differences from the mean: enough to put means together.

    >>> moments_of([1.0, 2.0]) + moments_of([6.0])
    Moments(count=3, mean=3.0, squares=14.0)
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def __add__(self, other: Moments) -> Moments:
        count = self.count + other.count
        if not self.count or not other.count:
            return self if self.count else other
        apart = other.mean - self.mean
        mean = (self.count * self.mean + other.count * other.mean) / count
        return Moments(count, mean, self.squares + other.squares + apart**2 * self.count * other.count / count)


def moments_of(values: Iterable[float]) -> Moments:
    """Return the moments of those values that are numbers, by exactly rounded sums, whatever their order."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return Moments()
    mean = math.fsum(known) / len(known)
    return Moments(len(known), mean, math.fsum((value - mean) ** 2 for value in known))


@dataclass
class RunningMeans:
    """Means by model, recipe and metric; a unit that comes twice counts once, and replaces what had failed before.

    Attributes:
        scored: moments of all units whose every image was scored.
        apart: by unit, moments of those with failures, which may be computed again.
        failures: images that could not be scored.
        units: keys of the units in `scored` that were added one by one.
        packed: keys of the other ones, which may be millions.
    """

    scored: dict[Cell, Moments] = field(default_factory=dict)
    apart: dict[str, dict[Cell, Moments]] = field(default_factory=dict)
    failures: dict[Cell, Failure] = field(default_factory=dict)
    units: set[str] = field(default_factory=set)
    packed: list[KeyTable] = field(default_factory=list)

    def add(self, table: Any) -> bool:
        """Add the rows of a unit, a pyarrow table; return whether all of its images were scored."""
        rows = table.select(NEEDED).to_pylist()
        unit = rows[0]["unit"]
        if unit in self.units or any(unit in keys for keys in self.packed):
            return True
        values: dict[Cell, list[float]] = {}
        failed: dict[Cell, Failure] = {}
        for row in rows:
            model, recipe, metric, image = (row[name] for name in NEEDED[1:5])
            values.setdefault((model, recipe, metric), []).append(row["value"])
            if row["flag"].startswith(FAILED):
                failed[model, recipe, image] = Failure(model, recipe, image, row["flag"].removeprefix(FAILED))
            self.failures.pop((model, recipe, image), None)
        self.failures.update(failed)
        moments = {cell: moments_of(own) for cell, own in values.items()}
        if failed:
            self.apart[unit] = moments
        else:
            self.apart.pop(unit, None)
            self.add_scored({unit}, moments)
        return not failed

    def add_scored(self, units: Iterable[str], moments: dict[Cell, Moments]) -> None:
        """Add the moments of units that are not there yet and whose every image was scored."""
        self.units.update(units)
        for cell, own in moments.items():
            self.scored[cell] = self.scored.get(cell, Moments()) + own

    def add_packed(self, units: KeyTable, moments: dict[Cell, Moments]) -> None:
        """Add the same of many units."""
        self.packed.append(units)
        self.add_scored((), moments)

    def merge(self, other: RunningMeans) -> None:
        """Add what another has counted, of units that are not counted here or that failed here."""
        for unit in list(self.apart):
            if unit in other.units or unit in other.apart or any(unit in keys for keys in other.packed):
                del self.apart[unit]
        self.packed += other.packed
        self.add_scored(other.units, other.scored)
        self.apart.update(other.apart)
        self.failures.update(other.failures)

    def ranked(self) -> list[RunningMean]:
        """Return every mean, models and metrics in the order they came, best recipe first."""
        together = dict(self.scored)
        for moments in self.apart.values():
            for cell, own in moments.items():
                together[cell] = together.get(cell, Moments()) + own
        means = [_mean(*cell, moments) for cell, moments in together.items()]
        order = {key: index for index, key in enumerate(dict.fromkeys((mean.model, mean.metric) for mean in means))}
        return sorted(means, key=lambda mean: (order[mean.model, mean.metric], _sort_value(mean), mean.recipe))


def _mean(model: str, recipe: str, metric: str, moments: Moments) -> RunningMean:
    count = moments.count
    if not count:
        return RunningMean(model, recipe, metric, math.nan, math.nan, 0)
    standard_error = math.sqrt(moments.squares / (count - 1) / count) if count > 1 else math.nan
    return RunningMean(model, recipe, metric, moments.mean, standard_error, count)


def _sort_value(mean: RunningMean) -> float:
    """Return a number that is smaller for what is better."""
    if math.isnan(mean.mean):
        return math.inf
    return mean.mean if direction_of(mean.metric) == "lower" else -mean.mean
