r"""Agreement: do two metrics put the recipes in the same order?

Both are turned so that higher is better, then compared by Kendall's tau-b,

.. math:: \tau_b = \frac{\sum_{i<j} s_{ij}\, t_{ij}}{\sqrt{\sum_{i<j} s_{ij}^2 \sum_{i<j} t_{ij}^2}}, \qquad
          s_{ij} = \operatorname{sign}(x_i - x_j), \quad t_{ij} = \operatorname{sign}(y_i - y_j),

over the recipes, controls among them: once of the statistics of the whole set, and once image by image, averaged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.bench.stats.reduce import Numbers
from sightline.bench.stats.resampling import pairs_of
from sightline.metrics.similarity import spearman

MAX_NUMBERS = 500_000  # held at a time, of values and of pairs of recipes by images


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far two metrics agree on the order of the recipes.

    Attributes:
        model: the model's id.
        one: recipe of a metric.
        other: recipe of another.
        tau: Kendall's tau-b of the recipes' statistics; NaN where there are fewer than two, or all are equal.
        rho: Spearman's rank correlation of them.
        recipes: how many are ranked by both.
        image_tau: mean over images of tau-b of the recipes' values; images on which all are equal are left out.
        images: how many both metrics have.
    """

    model: str
    one: str
    other: str
    tau: float
    rho: float
    recipes: int
    image_tau: float
    images: int


@dataclass(frozen=True, slots=True, eq=False)
class RankedRecipes:
    """What one metric says of recipes, turned so that higher is better.

    Attributes:
        model: the model's id.
        metric: its recipe.
        recipes: in alphabetical order.
        images: ids, in order.
        statistics: shape (recipe,).
        values: shape (image, recipe), NaN where a recipe did not score an image; not turned. Large ones are a file that
            `numpy.save` wrote.
        sign: -1 where lower values are better.
    """

    model: str
    metric: str
    recipes: tuple[str, ...]
    images: tuple[str, ...]
    statistics: Numbers
    values: Numbers | Path
    sign: int = 1

    def better(self, images: NDArray[np.intp], recipes: NDArray[np.intp]) -> Numbers:
        """Return the values of some images and recipes, higher being better."""
        values = np.load(self.values, mmap_mode="r") if isinstance(self.values, Path) else self.values
        block: Numbers = np.asarray(values[images[0] : images[-1] + 1])[np.ix_(images - images[0], recipes)]
        return self.sign * block


def set_aside(values: Numbers, path: Path) -> Numbers | Path:
    """Return values as they are where they are few; otherwise write them into a file and return its path."""
    if values.size <= MAX_NUMBERS:
        return values
    np.save(path, values)
    return path


def agreements(ranked: Sequence[RankedRecipes]) -> Iterator[Agreement]:
    """Yield the agreement of every two metrics of the same model."""
    known: dict[tuple[int, int], Numbers] = {}  # of metrics with the same images and recipes, by their ids
    for first, second in combinations(ranked, 2):
        if first.model == second.model:
            if (id(first), id(second)) not in known and _is_alike(first, second):
                known |= _taus_of_images(
                    [each for each in ranked if each.model == first.model and _is_alike(first, each)]
                )
            by_image = known.pop((id(first), id(second)), None)
            yield _agreement(first, second, by_image)


def _is_alike(first: RankedRecipes, second: RankedRecipes) -> bool:
    return first.images == second.images and first.recipes == second.recipes


def _agreement(first: RankedRecipes, second: RankedRecipes, by_image: Numbers | None) -> Agreement:
    recipes = [_common(first.recipes, second.recipes), _common(second.recipes, first.recipes)]
    statistics = [ranked.statistics[kept] for ranked, kept in zip((first, second), recipes, strict=True)]
    tau = float(tau_b(statistics[0][None], statistics[1][None])[0])
    if by_image is None:
        images = [_common(first.images, second.images), _common(second.images, first.images)]
        by_image = _taus_of_images([first, second], images, recipes)[id(first), id(second)]
    defined = by_image[~np.isnan(by_image)]
    return Agreement(
        first.model,
        first.metric,
        second.metric,
        tau=math.nan if math.isnan(tau) else tau,
        rho=_spearman(statistics[0], statistics[1]),
        recipes=len(recipes[0]),
        image_tau=float(defined.mean()) if len(defined) else math.nan,
        images=len(by_image),
    )


def _taus_of_images(
    ranked: Sequence[RankedRecipes],
    images: Sequence[NDArray[np.intp]] | None = None,
    recipes: Sequence[NDArray[np.intp]] | None = None,
) -> dict[tuple[int, int], Numbers]:
    """Return tau-b of every two metrics on each image, by the ids of the two; the signs of each are computed once.

    Args:
        ranked: what the metrics say.
        images: which of each are compared; all by default.
        recipes: likewise.
    """
    images = images or [np.arange(len(each.images)) for each in ranked]
    recipes = recipes or [np.arange(len(each.recipes)) for each in ranked]
    found = {(id(one), id(other)): np.full(len(images[0]), np.nan) for one, other in combinations(ranked, 2)}
    for block in _blocks(len(images[0]), len(recipes[0])):
        chosen = zip(ranked, images, recipes, strict=True)
        signs = {id(each): _signs(each.better(own[block], kept)) for each, own, kept in chosen}
        squares = {each: np.square(own).sum(axis=1) for each, own in signs.items()}
        for (one, other), taus in found.items():
            taus[block] = _tau_b(signs[one], signs[other], squares[one], squares[other])
    return found


def _blocks(images: int, recipes: int) -> Iterator[slice]:
    """Split images into blocks, so that a number for each image and pair of recipes takes little memory."""
    most = max(MAX_NUMBERS // max(recipes * (recipes - 1) // 2, 1), 1)
    return (slice(start, start + most) for start in range(0, images, most))


def tau_b(first: Numbers, second: Numbers) -> Numbers:
    """Return Kendall's tau-b of each row, (row, recipe) twice -> (row,); NaN where all values of a row are equal."""
    s, t = _signs(first), _signs(second)
    return _tau_b(s, t, np.square(s).sum(axis=1), np.square(t).sum(axis=1))


def _tau_b(s: Numbers, t: Numbers, s_squares: Numbers, t_squares: Numbers) -> Numbers:
    above = (s * t).sum(axis=1)
    below = np.sqrt(s_squares * t_squares)
    return np.where(below > 0, above / np.where(below > 0, below, 1), np.nan)


def _signs(values: Numbers) -> Numbers:
    """Return which of every two recipes is ahead; a difference that is only rounding, or not known, is none."""
    first, second = pairs_of(values.shape[1])
    apart, sizes = values[:, first] - values[:, second], np.abs(values[:, first]) + np.abs(values[:, second])
    return np.sign(np.where(np.isfinite(apart) & (np.abs(apart) > 1e-12 * sizes), apart, 0.0))


def _spearman(first: Numbers, second: Numbers) -> float:
    if len(first) < 2:
        return math.nan
    rho = float(spearman(torch.from_numpy(first)[None], torch.from_numpy(second)[None]))
    return math.nan if math.isnan(rho) else rho


def _common(names: tuple[str, ...], others: tuple[str, ...]) -> NDArray[np.intp]:
    known = set(others)
    return np.array([index for index, name in enumerate(names) if name in known], dtype=np.intp)
