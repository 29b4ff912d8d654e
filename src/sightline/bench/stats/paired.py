"""Paired scores: from rows to matrices of images by recipes.

Each recipe of a model and metric has the statistic of the images that it scored itself, and every two are compared on
the images that both scored. An image that a recipe could not score, because its map is constant or its value not
defined, is listed with the reason and counts for the others. A recipe that scored less than half as many images as the
best covered one is set aside, with its own mean and no rank: what it scored may be the easy half.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sightline.bench.stats.reduce import MEAN, Numbers, Reduction, reduction_of
from sightline.errors import InputError
from sightline.extras import require

if TYPE_CHECKING:
    import pandas

KEY = ["model", "metric", "recipe", "image"]
DEFAULTS = {"flag": "", "seed": 0, "label": None, "curve": None, "forward": np.nan, "backward": np.nan}
DEFAULTS |= {"seconds": np.nan, "dataset": "", "weights": "", "recipe_source": "", "metric_source": ""}
TEXTS = ("flag", "recipe_source", "metric_source")  # columns in which nothing is an empty text
TOLERANCE = 1e-5  # relative difference up to which two rows of one image say the same


@dataclass(frozen=True, slots=True)
class Unpaired:
    """An image that a recipe did not score, so that it counts for the others only.

    Attributes:
        model: the model's id.
        metric: recipe of the metric.
        recipe: of the method.
        image: its id.
        reason: the flag of its row, or that there is none.
    """

    model: str
    metric: str
    recipe: str
    image: str
    reason: str


@dataclass(frozen=True, slots=True)
class RecipeCounts:
    """What the rows of one recipe say besides values: failures and cost.

    Attributes:
        failed: images that could not be scored.
        degenerate: images whose score is undefined.
        flagged: images that have a score and a remark.
        forward: passes per image.
        backward: passes per image.
        seconds: wall time per image.
    """

    failed: int
    degenerate: int
    flagged: int
    forward: float
    backward: float
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class PairedScores:
    """The scores of all recipes of one model and metric, image by image.

    Attributes:
        model: the model's id.
        metric: recipe of the metric.
        reduction: from images to the statistic of the set.
        recipes: of the methods, in alphabetical order.
        images: ids of those that one of them scored at least, in order.
        labels: the class of each image, None where unknown.
        values: shape (image, recipe), NaN where an image was not scored.
        data: what the reduction works on, shape (image, recipe, part), likewise.
        counts: failures and cost of each recipe.
        unpaired: images that a recipe did not score.
        ranked: False for a recipe that was set aside.
    """

    model: str
    metric: str
    reduction: Reduction
    recipes: tuple[str, ...]
    images: tuple[str, ...]
    labels: tuple[int | None, ...]
    values: Numbers
    data: Numbers
    counts: tuple[RecipeCounts, ...]
    unpaired: tuple[Unpaired, ...]
    ranked: bool = True

    @property
    def scored(self) -> NDArray[np.bool_]:
        """Which images each recipe scored, shape (image, recipe)."""
        return np.isfinite(self.values)


def paired_scores(rows: pandas.DataFrame) -> Iterator[PairedScores]:
    """Yield the paired scores of a run's rows, by model and metric; a recipe set aside follows alone."""
    for (model, metric), part in _checked(rows).groupby(["model", "metric"], sort=True):
        yield from _paired(str(model), str(metric), part)


def _checked(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Add columns that are missing, refuse what cannot be averaged, and give each image one row."""
    if missing := [name for name in (*KEY, "value") if name not in rows.columns]:
        raise InputError(f"the rows have no column {missing[0]!r}; a table needs {', '.join((*KEY, 'value'))}")
    complete = rows.assign(**{name: default for name, default in DEFAULTS.items() if name not in rows.columns})
    texts = {name: complete[name].astype(object).where(complete[name].notna(), "").astype(str) for name in TEXTS}
    complete = complete.assign(
        value=complete["value"].astype(float), **texts, **{name: complete[name].astype(str) for name in KEY}
    )
    _refuse_mixtures(complete)
    return _one_row_per_image(complete)


def _refuse_mixtures(rows: pandas.DataFrame) -> None:
    """Refuse to average over what is not the same thing: other data, other weights, other code."""
    datasets = sorted({str(name) for name in rows["dataset"].dropna().unique()} - {""})
    if len(datasets) > 1:
        raise InputError(f"the rows are of {len(datasets)} data sets, {', '.join(datasets)}; make a table of each")
    for model, part in rows.groupby("model"):
        digests = {str(digest) for digest in part["weights"].dropna().unique()} - {""}
        if len(digests) > 1:
            raise InputError(f"the rows of {model} come from {len(digests)} sets of weights; make a table of each")
    for name in ("recipe", "metric"):
        for (model, computed), sources in rows.groupby(["model", name])[f"{name}_source"]:
            if (count := sources.nunique()) > 1:  # an unknown source is one, too
                raise InputError(
                    f"the rows of {computed} with {model} come from {count} versions of its code; "
                    "make a table of each, or run the plan again"
                )


def _one_row_per_image(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Average the seeds of an image, so that images stay what is drawn; refuse two answers from one seed."""
    if not rows.duplicated(KEY).any():
        return rows
    ordered = rows.sort_values([*KEY, "seed", "value"], kind="stable")
    seeds = ordered.groupby([*KEY, "seed"], sort=False)["value"]
    apart = (seeds.max() - seeds.min()) > TOLERANCE * seeds.max().abs().clip(lower=TOLERANCE)
    if apart.any():
        model, metric, recipe, image, seed = apart.index[apart][0]
        raise InputError(
            f"{recipe} has two values of {metric} for the image {image} with {model} and seed {seed}; "
            "the rows are of several runs, make a table of one"
        )
    single = ordered.drop_duplicates([*KEY, "seed"])
    if not single.duplicated(KEY).any():
        return single
    averaged = {name: "first" for name in single.columns if name not in KEY} | {
        "value": lambda values: values.mean(skipna=False),
        "flag": lambda flags: next((flag for flag in flags if flag), ""),
        "curve": _mean_curve,
        "forward": "mean",
        "backward": "mean",
        "seconds": "mean",
    }
    return single.groupby(KEY, sort=True, as_index=False).agg(averaged)


def _mean_curve(curves: Any) -> Any:
    known = [np.asarray(curve, dtype=float) for curve in curves if curve is not None and np.ndim(curve)]
    return np.mean(known, axis=0) if len({len(curve) for curve in known}) == 1 else None


def _paired(model: str, metric: str, rows: pandas.DataFrame) -> Iterator[PairedScores]:
    pandas = require("pandas")
    recipe_of, recipes = pandas.factorize(rows["recipe"].to_numpy(dtype=object), sort=True)
    image_of, images = pandas.factorize(rows["image"].to_numpy(dtype=object), sort=True)
    values = np.full((len(images), len(recipes)), np.nan)
    values[image_of, recipe_of] = rows["value"].to_numpy(dtype=float)
    flags = np.full(values.shape, "not scored", dtype=object)
    flags[image_of, recipe_of] = rows["flag"].to_numpy(dtype=object)
    curves = np.full(values.shape, None, dtype=object)
    curves[image_of, recipe_of] = rows["curve"].to_numpy(dtype=object)
    labels = _labels(len(images), image_of, rows["label"])
    costs = [rows[name].groupby(recipe_of).mean() for name in ("forward", "backward", "seconds")]

    scored = np.isfinite(values)
    compared = scored.sum(axis=0) * 2 >= max(scored.sum(axis=0).max(), 1)
    for chosen in (np.flatnonzero(compared), *np.flatnonzero(~compared)[:, None]):
        if not len(chosen):
            continue
        known = np.flatnonzero(scored[:, chosen].any(axis=1))
        kept = np.ix_(known, chosen)
        values_kept = np.where(scored[kept], values[kept], np.nan)
        reduction, data = _data(metric, values_kept, curves[kept])
        yield PairedScores(
            model,
            metric,
            reduction,
            recipes=tuple(str(name) for name in recipes[chosen]),
            images=tuple(str(name) for name in images[known]),
            labels=tuple(labels[image] for image in known),
            values=values_kept,
            data=data,
            counts=tuple(
                _counts(scored[:, recipe], flags[:, recipe], *(float(cost[recipe]) for cost in costs))
                for recipe in chosen
            ),
            unpaired=tuple(
                Unpaired(model, metric, str(recipes[recipe]), str(images[image]), flags[image, recipe] or "no value")
                for recipe in chosen
                for image in np.flatnonzero(~scored[:, recipe])
            ),
            ranked=bool(compared[chosen[0]]),
        )


def _labels(count: int, image_of: NDArray[np.intp], labels: Any) -> list[int | None]:
    by_image: list[int | None] = [None] * count
    known = labels.notna().to_numpy()
    for image, label in zip(image_of[known].tolist(), labels[known].tolist(), strict=True):
        by_image[image] = int(label)
    return by_image


def _data(metric: str, values: Numbers, curves: NDArray[Any]) -> tuple[Reduction, Numbers]:
    """Return how the metric is reduced and what from; the mean where it would need curves that were not kept."""
    reduction, scored = reduction_of(metric), np.isfinite(values)
    if reduction.needs_curves:
        known = [np.asarray(curve, dtype=float) if np.ndim(curve) else np.empty(0) for curve in curves[scored]]
        lengths = {len(curve) for curve in known}
        if len(lengths) == 1 and 0 not in lengths:
            data = np.full((*values.shape, lengths.pop()), np.nan)
            data[scored] = known
            return reduction, data
    return MEAN, values[..., None]


def _counts(scored: NDArray[np.bool_], flags: NDArray[Any], *costs: float) -> RecipeCounts:
    failed = np.array([flag.startswith("failed") for flag in flags])
    missing = flags == "not scored"
    degenerate = ~scored & ~failed & ~missing
    return RecipeCounts(int(failed.sum()), int(degenerate.sum()), int((scored & (flags != "")).sum()), *costs)
