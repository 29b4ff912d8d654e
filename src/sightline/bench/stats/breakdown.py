"""Breakdowns: the statistics class by class, and the images on which a recipe falls furthest behind."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sightline.bench.stats.paired import PairedScores
from sightline.bench.stats.reduce import MEAN

LEAST = 2  # images of a class that is shown
WORST = 5  # images per recipe


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


def by_class(scores: PairedScores) -> Iterator[ClassRow]:
    """Yield the statistics of each class that has two images or more."""
    for label in sorted({label for label in scores.labels if label is not None}):
        of_class = np.array([own == label for own in scores.labels])
        for column, recipe in enumerate(scores.recipes):
            images = np.flatnonzero(of_class & scores.scored[:, column])
            if len(images) < LEAST:
                continue
            statistic = float(scores.reduction.statistic(scores.data[images][:, [column]])[0])
            error = float(scores.values[images, column].std(ddof=1) / np.sqrt(len(images)))
            known = error if scores.reduction is MEAN else math.nan
            yield ClassRow(scores.model, scores.metric, recipe, label, statistic, known, len(images))


def worst_images(scores: PairedScores, sign: int, recipes: tuple[str, ...]) -> Iterator[WorstImage]:
    """Yield, for each of some recipes, the images with the largest shortfall against the best recipe on them.

    Args:
        scores: of recipes on images.
        sign: 1 where higher is better, -1 where lower is.
        recipes: whose images to list.
    """
    if not len(scores.images):
        return
    better = np.where(scores.scored, sign * scores.values, -np.inf)
    first = better.argmax(axis=1)
    short = np.where(scores.scored, better.max(axis=1, keepdims=True) - better, 0.0)
    median = np.nanmedian(scores.values, axis=1)
    for column, recipe in enumerate(scores.recipes):
        if recipe not in recipes:
            continue
        for index in np.argsort(-short[:, column], kind="stable")[:WORST]:
            if short[index, column] > 0:
                yield WorstImage(
                    scores.model,
                    scores.metric,
                    recipe,
                    image=scores.images[index],
                    label=scores.labels[index],
                    value=float(scores.values[index, column]),
                    best=float(scores.values[index, first[index]]),
                    best_recipe=scores.recipes[first[index]],
                    median=float(median[index]),
                    shortfall=float(short[index, column]),
                )
