"""Paired scores: from rows to matrices of images by recipes.

Each recipe of a model and metric has the statistic of the images that it scored itself, and every two are compared on
the images that both scored. An image that a recipe could not score, because its map is constant or its value not
defined, is listed with the reason and counts for the others. A recipe that scored less than half as many images as the
best covered one is set aside, with its own mean and no rank: what it scored may be the easy half.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sightline.bench.stats.reduce import MEAN, Numbers, Reduction
from sightline.bench.stats.score_matrix import ScoreMatrix, matrix_of
from sightline.errors import InputError

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
        seconds_deviation: sample standard deviation of the seconds over images; NaN for one.
    """

    failed: int
    degenerate: int
    flagged: int
    forward: float
    backward: float
    seconds: float
    seconds_deviation: float


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


def paired_scores(rows: pandas.DataFrame | ScoreMatrix) -> Iterator[PairedScores]:
    """Yield the paired scores of a run's rows, by model and metric; a recipe set aside follows alone."""
    if isinstance(rows, ScoreMatrix):
        yield from _paired(rows)
        return
    for (model, metric), part in _checked(rows).groupby(["model", "metric"], sort=True):
        yield from _paired(matrix_of(str(model), str(metric), part))


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
    names = ["model", "metric", "recipe", "dataset", "weights", "recipe_source", "metric_source"]
    distinct = rows[names].drop_duplicates().astype(object)
    refuse_mixtures(distinct.where(distinct.notna(), "").astype(str).to_dict("records"))


def refuse_mixtures(origins: Sequence[Mapping[str, str]]) -> None:
    """Refuse to average over what is not the same thing: other data, other weights, other code.

    Args:
        origins: the different combinations of model, metric, recipe, dataset, weights, recipe_source and metric_source
            among rows.

    Raises:
        InputError: there are several, so that no table can be made.
    """
    datasets = sorted({origin["dataset"] for origin in origins} - {""})
    if len(datasets) > 1:
        raise InputError(f"the rows are of {len(datasets)} data sets, {', '.join(datasets)}; make a table of each")
    for (model,), digests in _by(origins, ("model",), "weights"):
        if (count := len(digests - {""})) > 1:
            raise InputError(f"the rows of {model} come from {count} sets of weights; make a table of each")
    for name in ("recipe", "metric"):
        for (model, computed), sources in _by(origins, ("model", name), f"{name}_source"):
            if (count := len(sources)) > 1:  # an unknown source is one, too
                raise InputError(
                    f"the rows of {computed} with {model} come from {count} versions of its code; "
                    "make a table of each, or run the plan again"
                )


def _by(
    origins: Sequence[Mapping[str, str]], names: tuple[str, ...], value: str
) -> list[tuple[tuple[str, ...], set[str]]]:
    """Return the different values for each combination of names, in alphabetical order."""
    found: dict[tuple[str, ...], set[str]] = {}
    for origin in origins:
        found.setdefault(tuple(origin[name] for name in names), set()).add(origin[value])
    return sorted(found.items())


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


def _paired(matrix: ScoreMatrix) -> Iterator[PairedScores]:
    """Yield the recipes that are compared with each other, then each that was set aside."""
    scored = np.isfinite(matrix.values)
    compared = scored.sum(axis=0) * 2 >= max(scored.sum(axis=0).max(), 1)
    for chosen in (np.flatnonzero(compared), *np.flatnonzero(~compared)[:, None]):
        if len(chosen):
            yield _chosen(matrix, scored, chosen, ranked=bool(compared[chosen[0]]))


def _chosen(matrix: ScoreMatrix, scored: NDArray[np.bool_], chosen: NDArray[np.intp], *, ranked: bool) -> PairedScores:
    """Return the scores of some recipes, on the images that one of them scored at least."""
    known = np.flatnonzero(scored[:, chosen].any(axis=1))
    if (len(known), len(chosen)) == scored.shape and scored.all():
        kept: tuple[Any, ...] = (slice(None), slice(None))
        values = matrix.values  # as they are, since a copy may be large
    else:
        kept = np.ix_(known, chosen)
        values = np.where(scored[kept], matrix.values[kept], np.nan)
    reduction: Reduction = MEAN
    data = values[..., None]
    if matrix.curves is not None:
        reduction, data = matrix.curves.data(matrix.metric, values, kept)
    return PairedScores(
        matrix.model,
        matrix.metric,
        reduction,
        recipes=tuple(matrix.recipes[recipe] for recipe in chosen),
        images=tuple(matrix.images[image] for image in known),
        labels=tuple(matrix.labels[image] for image in known),
        values=values,
        data=data,
        counts=tuple(_counts(matrix, scored[:, recipe], recipe) for recipe in chosen),
        unpaired=tuple(_unpaired(matrix, scored, chosen)),
        ranked=ranked,
    )


def _unpaired(matrix: ScoreMatrix, scored: NDArray[np.bool_], chosen: NDArray[np.intp]) -> Iterator[Unpaired]:
    for recipe in chosen:
        for image in np.flatnonzero(~scored[:, recipe]):
            reason = matrix.flag_texts[matrix.flags[image, recipe]] or "no value"
            yield Unpaired(matrix.model, matrix.metric, matrix.recipes[recipe], matrix.images[image], reason)


def _counts(matrix: ScoreMatrix, scored: NDArray[np.bool_], recipe: int) -> RecipeCounts:
    flags = matrix.flags[:, recipe]
    is_failed = np.array([text.startswith("failed") for text in matrix.flag_texts])
    is_remark = np.array([text != "" for text in matrix.flag_texts])
    failed, missing = is_failed[flags], flags == 0
    degenerate = ~scored & ~failed & ~missing
    flagged = scored & is_remark[flags]
    return RecipeCounts(
        int(failed.sum()), int(degenerate.sum()), int(flagged.sum()), *(float(cost) for cost in matrix.costs[:, recipe])
    )
