"""Score matrices: what the rows of one model and metric say, one cell per image and recipe.

A matrix is filled from a frame of rows or, by the store, from batches of a query. It holds eight bytes for a value and
four for a flag, whatever else a row says; statistics are computed from it alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sightline.bench.stats.reduce import MEAN, Numbers, Reduction, reduction_of
from sightline.extras import require

if TYPE_CHECKING:
    import pandas

__all__ = ["COSTS", "NOT_SCORED", "Curves", "ScoreMatrix", "matrix_of"]

NOT_SCORED = "not scored"  # the flag of a cell that no row is about
COSTS = ("forward", "backward", "seconds")


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """Curves of one length each.

    Attributes:
        points: shape (image, recipe, point).
        known: which of them there are, shape (image, recipe).
    """

    points: Numbers
    known: NDArray[np.bool_]

    def data(self, metric: str, values: Numbers, kept: tuple[Any, ...]) -> tuple[Reduction, Numbers]:
        """Return how a metric is reduced and what from, for some images and recipes."""
        if not self.known[kept][np.isfinite(values)].all():
            return MEAN, values[..., None]
        points = self.points[kept]
        points[~np.isfinite(values)] = np.nan
        return reduction_of(metric), points


@dataclass(frozen=True, slots=True, eq=False)
class CurveObjects:
    """Curves of any length, as rows hold them.

    Attributes:
        curves: shape (image, recipe).
    """

    curves: NDArray[Any]

    def data(self, metric: str, values: Numbers, kept: tuple[Any, ...]) -> tuple[Reduction, Numbers]:
        """Return how a metric is reduced and what from; the mean where the curves are not all of one length."""
        scored = np.isfinite(values)
        curves = self.curves[kept][scored]
        known = [np.asarray(curve, dtype=float) if np.ndim(curve) else np.empty(0) for curve in curves]
        lengths = {len(curve) for curve in known}
        if len(lengths) != 1 or 0 in lengths:
            return MEAN, values[..., None]
        data = np.full((*values.shape, lengths.pop()), np.nan)
        data[scored] = known
        return reduction_of(metric), data


@dataclass(frozen=True, slots=True, eq=False)
class ScoreMatrix:
    """The rows of one model and metric, cell by cell.

    Attributes:
        model: the model's id.
        metric: recipe of the metric.
        recipes: of the methods, in alphabetical order.
        images: ids of those that a row is about, in order.
        labels: the class of each image, None where unknown.
        values: shape (image, recipe), NaN where there is no row or no value.
        flags: places in `flag_texts`, shape (image, recipe).
        flag_texts: the first is `NOT_SCORED`.
        costs: `COSTS` and the sample standard deviation of the seconds, means over images, shape (4, recipe).
        curves: where the metric's statistic is made of them.
        rows: how many there were.
        weights: digests of the model's weights.
        versions: texts that name the versions of libraries.
    """

    model: str
    metric: str
    recipes: tuple[str, ...]
    images: tuple[str, ...]
    labels: tuple[int | None, ...]
    values: Numbers
    flags: NDArray[np.int32]
    flag_texts: tuple[str, ...]
    costs: Numbers
    curves: Curves | CurveObjects | None = None
    rows: int = 0
    weights: frozenset[str] = field(default_factory=frozenset)
    versions: frozenset[str] = field(default_factory=frozenset)


def matrix_of(model: str, metric: str, rows: pandas.DataFrame) -> ScoreMatrix:
    """Return the matrix of rows that have a flag, a curve and costs, one row per recipe and image."""
    pandas = require("pandas")
    recipe_of, recipes = pandas.factorize(rows["recipe"].to_numpy(dtype=object), sort=True)
    image_of, images = pandas.factorize(rows["image"].to_numpy(dtype=object), sort=True)
    values = np.full((len(images), len(recipes)), np.nan)
    values[image_of, recipe_of] = rows["value"].to_numpy(dtype=float)
    codes, texts = pandas.factorize(rows["flag"].to_numpy(dtype=object))
    flags = np.zeros(values.shape, dtype=np.int32)
    flags[image_of, recipe_of] = codes + 1
    curves = None
    if reduction_of(metric).needs_curves:
        objects = np.full(values.shape, None, dtype=object)
        objects[image_of, recipe_of] = rows["curve"].to_numpy(dtype=object)
        curves = CurveObjects(objects)
    grouped = [rows[name].groupby(recipe_of) for name in COSTS]
    return ScoreMatrix(
        model,
        metric,
        recipes=tuple(str(name) for name in recipes),
        images=tuple(str(name) for name in images),
        labels=_labels(len(images), image_of, rows["label"]),
        values=values,
        flags=flags,
        flag_texts=(NOT_SCORED, *(str(text) for text in texts)),
        costs=np.array([*(part.mean() for part in grouped), grouped[2].std()], dtype=float),
        curves=curves,
    )


def _labels(count: int, image_of: NDArray[np.intp], labels: Any) -> tuple[int | None, ...]:
    by_image: list[int | None] = [None] * count
    known = labels.notna().to_numpy()
    for image, label in zip(image_of[known].tolist(), labels[known].tolist(), strict=True):
        by_image[image] = int(label)
    return tuple(by_image)
