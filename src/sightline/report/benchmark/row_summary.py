"""A summary of rows: what a report says of all of them, gathered while they go by part by part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sightline.bench.stats.score_matrix import ScoreMatrix
from sightline.bench.store.rows import FAILED

__all__ = ["RowSummary"]


@dataclass
class RowSummary:
    """What the rows of a run say as a whole.

    Attributes:
        run: the plan's name; empty where no part came as a frame.
        images: their ids.
        units: keys of the units, of those parts that came as frames.
        recipes: of the methods.
        metrics: recipes of the metrics.
        versions: texts that name the versions of libraries.
        weights: pairs of a model and a digest of its weights.
        failed_maps: model, recipe and image of every map that could not be computed or scored.
        rows: how many there are.
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

    def watch(self, parts: Iterable[Any]) -> Iterator[Any]:
        """Pass matrices and frames of rows on, and note what they say."""
        for part in parts:
            if isinstance(part, ScoreMatrix):
                self._add_matrix(part)
                yield part
            elif len(part):
                self._add(part)
                yield part
            del part  # before the next one is made

    def _add_matrix(self, matrix: ScoreMatrix) -> None:
        self.images.update(matrix.images)
        self.recipes.update(matrix.recipes)
        self.metrics.add(matrix.metric)
        self.versions |= matrix.versions
        self.weights.update((matrix.model, digest) for digest in matrix.weights)
        self.rows += matrix.rows
        is_failed = np.array([text.startswith(FAILED) for text in matrix.flag_texts])
        if is_failed.any():
            for image, recipe in np.argwhere(is_failed[matrix.flags]).tolist():
                self.failed_maps.add((matrix.model, matrix.recipes[recipe], matrix.images[image]))

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
        self.rows += len(part)
        failed = part[part["flag"].fillna("").str.startswith(FAILED)]
        self.failed_maps.update(failed[["model", "recipe", "image"]].itertuples(index=False, name=None))
