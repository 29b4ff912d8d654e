"""The rows of the table: what one model and metric say of each recipe, and of every two."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.bench.columns import NAN, RecipeResult, TableRow, build_rows
from sightline.bench.stats.paired import PairedScores
from sightline.bench.stats.reduce import Numbers
from sightline.bench.stats.resampling import (
    Estimate,
    Indices,
    Resamples,
    Settings,
    holm,
    paired_permutation_test,
    pairs_of,
    resample,
    win_rates,
)
from sightline.bench.stats.ties import letters, rank_intervals
from sightline.bench.traits import direction_of, traits_of

__all__ = ["Comparison", "compare", "sign_of"]

Statistics = dict[str, NDArray[Any]]  # by the name of a column, one entry per recipe


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two recipes under one metric with one model.

    Attributes:
        model: the model's id.
        metric: recipe of the metric.
        a: the recipe with the better mean.
        b: the other.
        difference: mean of `a` less mean of `b`, in the metric's own unit.
        low: lower end of its confidence interval.
        high: upper end.
        p: of the paired permutation test, two-sided.
        p_holm: the same, corrected over all pairs of this model and metric.
        wins: share of images on which `a` is better, draws counting half.
        different: whether the two are significantly different.
    """

    model: str
    metric: str
    a: str
    b: str
    difference: float
    low: float
    high: float
    p: float
    p_holm: float
    wins: float
    different: bool


def sign_of(metric: str) -> int:
    """Return 1 for a metric of which higher is better, -1 for one of which lower is."""
    return 1 if direction_of(metric) == "higher" else -1


def compare(
    scores: PairedScores, settings: Settings, row_type: type[TableRow] = TableRow
) -> tuple[list[TableRow], list[Comparison]]:
    """Return the rows of one model and metric, best first, and the comparisons of every two of its recipes."""
    sign = sign_of(scores.metric)
    statistics: Statistics = {}
    comparisons: list[Comparison] = []
    if scores.images:
        scores = _best_first(scores, sign)
        resamples = resample(scores.reduction, scores.data, settings)
        pairs = _compare_pairs(scores, sign, resamples, settings)
        statistics = _intervals(resamples.estimate(settings.confidence))
        statistics |= _margins(scores, sign, resamples, pairs, settings)
        if scores.ranked:
            statistics |= _ranks(scores, sign, resamples.statistic, pairs)
        comparisons = list(_comparisons(scores, pairs))
    results = [RecipeResult(scores, index, statistics) for index in range(len(scores.recipes))]
    return build_rows(row_type, results), comparisons


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """Every two recipes, the better one first, one entry per pair."""

    first: Indices
    second: Indices
    difference: Estimate
    p: Numbers
    p_holm: Numbers
    wins: Numbers
    different: NDArray[np.bool_]

    def square(self, values: NDArray[Any], count: int) -> NDArray[Any]:
        """Return values of pairs as a matrix whose upper triangle is filled, (recipe, recipe)."""
        filled = np.zeros((count, count), dtype=values.dtype)
        filled[self.first, self.second] = values
        return filled


def _best_first(scores: PairedScores, sign: int) -> PairedScores:
    order = np.argsort(-sign * scores.reduction.statistic(scores.data), kind="stable")
    return replace(
        scores,
        recipes=tuple(scores.recipes[index] for index in order),
        counts=tuple(scores.counts[index] for index in order),
        values=scores.values[:, order],
        data=scores.data[:, order],
    )


def _compare_pairs(scores: PairedScores, sign: int, resamples: Resamples, settings: Settings) -> _Pairs:
    first, second = pairs_of(len(scores.recipes))
    difference = resamples.differences(first, second).estimate(settings.confidence)
    p = paired_permutation_test(scores.reduction, scores.data, scores.values, first, second, settings)
    p_holm = holm(p)
    different = (p_holm <= 1 - settings.confidence) & (sign * difference.statistic > 0)
    better = sign * scores.values
    wins = np.array(
        [np.sign(better[:, a] - better[:, b]).mean() / 2 + 0.5 for a, b in zip(first, second, strict=True)], dtype=float
    )
    return _Pairs(first, second, difference, p, p_holm, wins, different)


def _intervals(estimate: Estimate) -> Statistics:
    return {
        "mean": estimate.statistic,
        "low": estimate.low,
        "high": estimate.high,
        "standard_error": estimate.standard_error,
    }


def _ranks(scores: PairedScores, sign: int, means: Numbers, pairs: _Pairs) -> Statistics:
    """Return ranks, groups and wins."""
    ahead = pairs.square(pairs.different, len(scores.recipes))
    low, high = rank_intervals(ahead)
    near = 1e-12 * np.abs(means).max()
    rank = 1 + (sign * means[None] > sign * means[:, None] + near).sum(axis=1)
    group = np.array(letters(ahead | ahead.T), dtype=object)
    return {"rank": rank, "rank_low": low, "rank_high": high, "group": group, "wins": win_rates(sign * scores.values)}


def _margins(scores: PairedScores, sign: int, resamples: Resamples, pairs: _Pairs, settings: Settings) -> Statistics:
    """Return how far each recipe is ahead of the best control."""
    count = len(scores.recipes)
    best = next((index for index, recipe in enumerate(scores.recipes) if traits_of(recipe).control), None)
    if best is None or count < 2:
        return {}
    ahead = resamples.differences(np.arange(count), np.full(count, best)).estimate(settings.confidence)
    ends = (ahead.low, ahead.high) if sign > 0 else (-ahead.high, -ahead.low)
    p_holm = pairs.square(pairs.p_holm, count)
    margins = {"margin": sign * ahead.statistic, "margin_low": ends[0], "margin_high": ends[1]}
    margins["p_control"] = p_holm[best] + p_holm[:, best]  # one of the two is 0: only the upper triangle is filled
    return {name: np.where(np.arange(count) == best, NAN, values) for name, values in margins.items()}


def _comparisons(scores: PairedScores, pairs: _Pairs) -> Iterator[Comparison]:
    difference = pairs.difference
    for index, (first, second) in enumerate(zip(pairs.first, pairs.second, strict=True)):
        yield Comparison(
            scores.model,
            scores.metric,
            a=scores.recipes[first],
            b=scores.recipes[second],
            difference=_known(difference.statistic[index]),
            low=_known(difference.low[index]),
            high=_known(difference.high[index]),
            p=float(pairs.p[index]),
            p_holm=float(pairs.p_holm[index]),
            wins=float(pairs.wins[index]),
            different=bool(pairs.different[index]),
        )


def _known(value: float) -> float:
    return NAN if math.isnan(value) else float(value)
