"""Breakdowns: the figures class by class, and the images on which a recipe falls furthest behind."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sightline.bench.stats.paired import Block
from sightline.bench.stats.reduce import MEAN

LEAST = 2  # images of a class that is shown
WORST = 5  # images per recipe


@dataclass(frozen=True, slots=True)
class ClassLine:
    """One recipe on the images of one class.

    Attributes:
        model: the model's id.
        metric: recipe of the metric.
        recipe: of the method.
        label: the class.
        mean: the figure of its images, reduced as that of the set.
        error: standard error; NaN where the figure is no mean.
        count: images.
    """

    model: str
    metric: str
    recipe: str
    label: int
    mean: float
    error: float
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


def by_class(block: Block) -> Iterator[ClassLine]:
    """Yield the figures of each class that has two images or more."""
    for label in sorted({label for label in block.labels if label is not None}):
        rows = [place for place, each in enumerate(block.labels) if each == label]
        if len(rows) < LEAST:
            continue
        figures = block.reduction.figure(block.data[rows])
        errors = block.values[rows].std(axis=0, ddof=1) / np.sqrt(len(rows))
        for recipe, figure, error in zip(block.recipes, figures, errors, strict=True):
            known = float(error) if block.reduction is MEAN else math.nan
            yield ClassLine(block.model, block.metric, recipe, label, float(figure), known, len(rows))


def worst_images(block: Block, sign: int, recipes: tuple[str, ...]) -> Iterator[WorstImage]:
    """Yield, for each of some recipes, the images with the largest shortfall against the best recipe on them.

    Args:
        block: recipes and images.
        sign: 1 where higher is better, -1 where lower is.
        recipes: whose images to list.
    """
    if not len(block.images):
        return
    better = sign * block.values
    first = better.argmax(axis=1)
    short = better.max(axis=1, keepdims=True) - better
    median = np.median(block.values, axis=1)
    for column, recipe in enumerate(block.recipes):
        if recipe not in recipes:
            continue
        for row in np.argsort(-short[:, column], kind="stable")[:WORST]:
            if short[row, column] > 0:
                yield WorstImage(
                    block.model,
                    block.metric,
                    recipe,
                    image=block.images[row],
                    label=block.labels[row],
                    value=float(block.values[row, column]),
                    best=float(block.values[row, first[row]]),
                    best_recipe=block.recipes[first[row]],
                    median=float(median[row]),
                    shortfall=float(short[row, column]),
                )
