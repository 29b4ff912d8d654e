"""Breakdowns: the statistics class by class, and the images on which a recipe falls furthest behind."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import overload

import numpy as np
from numpy.typing import NDArray

from sightline.bench.stats.paired import PairedScores
from sightline.bench.stats.reduce import MEAN, Numbers

LEAST = 2  # images of a class that is shown
WORST = 5  # images per recipe
MAX_NUMBERS = 500_000  # of images by recipes that are looked at together


@dataclass(frozen=True, slots=True)
class ClassRow:
    """One recipe on the images of one class.

    Attributes:
        model: the model's id.
        metric: recipe of the metric.
        recipe: of the method.
        label: the class.
        mean: the statistic of its images, reduced as that of the set.
        standard_error: NaN where the statistic is no mean.
        count: images.
    """

    model: str
    metric: str
    recipe: str
    label: int
    mean: float
    standard_error: float
    count: int


@dataclass(frozen=True, slots=True)
class WorstImage:
    """An image on which a recipe falls behind.

    Attributes:
        model: the model's id.
        metric: recipe of the metric.
        recipe: of the method.
        image: its id.
        label: its class, None where unknown.
        value: what the recipe scored.
        best: what the best recipe scored on it.
        best_recipe: which that was.
        median: the median over recipes on it.
        shortfall: how far the recipe is behind the best, positive whichever way the metric points.
    """

    model: str
    metric: str
    recipe: str
    image: str
    label: int | None
    value: float
    best: float
    best_recipe: str
    median: float
    shortfall: float


@dataclass(frozen=True, slots=True, eq=False)
class ClassPart:
    """The statistics of one model and metric by class; a recipe with too few images of a class has none.

    Attributes:
        model: the model's id.
        metric: recipe of the metric.
        recipes: of the methods.
        labels: the classes, in order.
        means: statistics, shape (class, recipe).
        errors: standard errors, likewise.
        counts: images, likewise.
    """

    model: str
    metric: str
    recipes: tuple[str, ...]
    labels: NDArray[np.int64]
    means: Numbers
    errors: Numbers
    counts: NDArray[np.int32]

    def __len__(self) -> int:
        return int((self.counts >= LEAST).sum())

    def rows(self) -> Iterator[ClassRow]:
        """Yield the rows, class by class."""
        for label, *of_class in zip(self.labels.tolist(), self.means, self.errors, self.counts, strict=True):
            for recipe, mean, error, count in zip(self.recipes, *(part.tolist() for part in of_class), strict=True):
                if count >= LEAST:
                    yield ClassRow(self.model, self.metric, recipe, label, mean, error, count)


class ClassRows(Sequence[ClassRow]):
    """The statistics by class of all models and metrics, as columns; a `ClassRow` is made when it is asked for.

    A thousand classes, sixty recipes and a few models and metrics make millions of them.
    """

    def __init__(self, parts: Sequence[ClassPart]) -> None:
        self._parts = tuple(parts)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[ClassRow]:
        return (row for part in self._parts for row in part.rows())

    @overload
    def __getitem__(self, chosen: int) -> ClassRow: ...

    @overload
    def __getitem__(self, chosen: slice) -> tuple[ClassRow, ...]: ...

    def __getitem__(self, chosen: int | slice) -> ClassRow | tuple[ClassRow, ...]:
        places = range(len(self))[chosen]
        if isinstance(places, range):
            wanted = set(places)
            found = {place: row for place, row in enumerate(self) if place in wanted}
            return tuple(found[place] for place in places)
        return next(islice(self, places, None))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def of(self, model: str, metric: str) -> Iterator[ClassRow]:
        """Yield the rows of one model and metric."""
        return (row for part in self._parts if (part.model, part.metric) == (model, metric) for row in part.rows())


def by_class(scores: PairedScores) -> ClassPart:
    """Return the statistics of each class that has two images or more."""
    members: dict[int, list[int]] = {}
    for image, label in enumerate(scores.labels):
        if label is not None:
            members.setdefault(label, []).append(image)
    kept = sorted((label, images) for label, images in members.items() if len(images) >= LEAST)
    means, errors, counts = np.full((3, len(kept), len(scores.recipes)), math.nan)
    for place, (_, images) in enumerate(kept):
        means[place], errors[place], counts[place] = _of_class(scores, np.array(images))
    labels = np.array([label for label, _ in kept], dtype=np.int64)
    return ClassPart(scores.model, scores.metric, scores.recipes, labels, means, errors, counts.astype(np.int32))


def _of_class(scores: PairedScores, images: NDArray[np.intp]) -> tuple[Numbers, Numbers, Numbers]:
    """Return statistic, standard error and number of images of each recipe on the images of a class."""
    values = np.ascontiguousarray(scores.values[images].T)
    scored = np.isfinite(values)
    if scores.reduction is MEAN and scored.all():  # recipe by recipe in memory, so that sums are those of one recipe
        errors = values.std(axis=1, ddof=1) / np.sqrt(len(images))
        return values.sum(axis=1) / float(len(images)), errors, np.full(len(values), float(len(images)))
    means, errors = np.full((2, len(values)), math.nan)
    for column, (own, known) in enumerate(zip(values, scored, strict=True)):
        if (count := int(known.sum())) >= LEAST:
            means[column] = scores.reduction.statistic(scores.data[images[known], column][:, None])[0]
            errors[column] = own[known].std(ddof=1) / np.sqrt(count) if scores.reduction is MEAN else math.nan
    return means, errors, scored.sum(axis=1).astype(np.float64)


def worst_images(scores: PairedScores, sign: int, recipes: tuple[str, ...]) -> Iterator[WorstImage]:
    """Yield, for each of some recipes, the images with the largest shortfall against the best recipe on them.

    Args:
        scores: of recipes on images.
        sign: 1 where higher is better, -1 where lower is.
        recipes: whose images to list.
    """
    if not len(scores.images):
        return
    first = _best(scores, sign)
    best = sign * scores.values[np.arange(len(first)), first]
    for column, recipe in enumerate(scores.recipes):
        if recipe not in recipes:
            continue
        own = scores.values[:, column]
        short = np.where(np.isfinite(own), best - sign * own, 0.0)
        for index in np.argsort(-short, kind="stable")[:WORST]:
            if short[index] > 0:
                yield WorstImage(
                    scores.model,
                    scores.metric,
                    recipe,
                    image=scores.images[index],
                    label=scores.labels[index],
                    value=float(scores.values[index, column]),
                    best=float(scores.values[index, first[index]]),
                    best_recipe=scores.recipes[first[index]],
                    median=float(np.nanmedian(scores.values[index])),
                    shortfall=float(short[index]),
                )


def _best(scores: PairedScores, sign: int) -> NDArray[np.intp]:
    """Return the best recipe on each image, the first of several; a few images are looked at together."""
    step = max(MAX_NUMBERS // len(scores.recipes), 1)
    found = []
    for start in range(0, len(scores.images), step):
        better = sign * scores.values[start : start + step]
        found.append(np.where(np.isfinite(better), better, -np.inf).argmax(axis=1))
    return np.concatenate(found)
