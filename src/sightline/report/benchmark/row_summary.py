"""A summary of rows: what a report says of all of them, gathered while they go by part by part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sightline.bench.store.rows import FAILED

__all__ = ["RowSummary"]

MOST_FLAGGED = 100_000


@dataclass
class RowSummary:
    """What the rows of a run say as a whole.

    Attributes:
        run: the plan's name.
        images: their ids.
        units: keys of the units.
        recipes: of the methods.
        metrics: recipes of the metrics.
        versions: texts that name the versions of libraries.
        weights: pairs of a model and a digest of its weights.
        failed_maps: model, recipe and image of every map that could not be computed or scored.
        rows: how many there are.
        flagged: frames of those that have a flag, up to `MOST_FLAGGED` rows.
    """

    run: str = ""
    images: set[str] = field(default_factory=set)
    units: set[str] = field(default_factory=set)
    recipes: set[str] = field(default_factory=set)
    metrics: set[str] = field(default_factory=set)
    versions: set[str] = field(default_factory=set)
    weights: set[tuple[str, str]] = field(default_factory=set)
    failed_maps: set[tuple[str, str, str]] = field(default_factory=set)
    rows: int = 0
    flagged: list[Any] = field(default_factory=list)

    def watch(self, parts: Iterable[Any]) -> Iterator[Any]:
        """Pass frames of rows on, and note what they say."""
        for part in parts:
            if len(part):
                self._add(part)
                yield part

    def _add(self, part: Any) -> None:
        self.run = self.run or str(part["run"].iloc[0])
        for names, column in (
            (self.images, "image"),
            (self.units, "unit"),
            (self.recipes, "recipe"),
            (self.metrics, "metric"),
            (self.versions, "versions"),
        ):
            names.update(part[column].unique())
        self.weights.update(part[["model", "weights"]].drop_duplicates().itertuples(index=False, name=None))
        flagged = part[part["flag"].fillna("") != ""]
        room = MOST_FLAGGED - sum(map(len, self.flagged))
        self.rows += len(part)
        self.flagged.append(flagged[:room])
        failed = flagged[flagged["flag"].str.startswith(FAILED)]
        self.failed_maps.update(failed[["model", "recipe", "image"]].itertuples(index=False, name=None))
