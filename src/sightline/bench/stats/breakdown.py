"""Breakdowns: the statistics class by class, and the images on which a recipe falls furthest behind."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sightline.bench.stats.paired import PairedScores
from sightline.bench.stats.reduce import MEAN

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


def by_class(scores: PairedScores) -> Iterator[ClassRow]:
    """Yield the statistics of each class that has two images or more."""
    members: dict[int, list[int]] = {}
    for image, label in enumerate(scores.labels):
        if label is not None:
            members.setdefault(label, []).append(image)
    for label, of_class in sorted(members.items()):
        for column, recipe in enumerate(scores.recipes):
            own = scores.values[of_class, column]
            scored = np.isfinite(own)
            if (count := int(scored.sum())) < LEAST:
                continue
            images = np.array(of_class)[scored]
            statistic = float(scores.reduction.statistic(scores.data[images, column][:, None])[0])
            error = float(own[scored].std(ddof=1) / np.sqrt(count))
            known = error if scores.reduction is MEAN else math.nan
            yield ClassRow(scores.model, scores.metric, recipe, label, statistic, known, count)


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
