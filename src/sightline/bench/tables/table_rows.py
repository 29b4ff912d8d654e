"""The rows of the table: what one model and metric say of each recipe, and of every two."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.bench.stats.paired import PairedScores
from sightline.bench.stats.reduce import MEAN, Numbers
from sightline.bench.stats.resampling import (
    Estimate,
    Indices,
    Settings,
    holm,
    paired_permutation_test,
    pairs_of,
    resample,
    win_rates,
)
from sightline.bench.stats.ties import letters, rank_intervals
from sightline.bench.tables.columns import NAN, RecipeResult, TableRow, build_rows
from sightline.bench.tables.traits import direction_of, traits_of

__all__ = ["Comparison", "compare", "own_statistics", "sign_of"]

Statistics = dict[str, NDArray[Any]]  # by the name of a column, one entry per recipe
MAX_NUMBERS = 2_000_000  # of images by pairs of recipes that are held at a time


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two recipes under one metric with one model.

    Attributes:
        model: the model's id.
        metric: recipe of the metric.
        a: the better recipe on these images.
        b: the other.
        images: how many both scored; the comparison is about these.
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
    images: int
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
        pairs = _compare_pairs(scores, sign, settings)
        estimate = _own_estimates(scores, settings)
        statistics = _intervals(estimate) | _margins(scores, sign, pairs, settings)
        if scores.ranked:
            statistics |= _ranks(scores, sign, estimate.statistic, pairs)
        comparisons = list(_comparisons(scores, pairs))
    results = [RecipeResult(scores, index, statistics) for index in range(len(scores.recipes))]
    return build_rows(row_type, results), comparisons


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """Every two recipes on the images that both scored, the one that is better there first, one entry per pair."""

    first: Indices
    second: Indices
    images: Indices
    difference: Estimate
    p: Numbers
    p_holm: Numbers
    wins: Numbers
    different: NDArray[np.bool_]

    def square(self, values: NDArray[Any], count: int) -> NDArray[Any]:
        """Return values of pairs as a matrix, (recipe, recipe), filled where the row's recipe is the better one."""
        filled = np.zeros((count, count), dtype=values.dtype)
        filled[self.first, self.second] = values
        return filled


def _best_first(scores: PairedScores, sign: int) -> PairedScores:
    order = np.argsort(-sign * own_statistics(scores), kind="stable")
    values = scores.values[:, order]
    return replace(
        scores,
        recipes=tuple(scores.recipes[index] for index in order),
        counts=tuple(scores.counts[index] for index in order),
        values=values,
        data=values[..., None] if scores.reduction is MEAN else scores.data[:, order],
    )


def _groups(scored: NDArray[np.bool_]) -> Iterator[tuple[NDArray[np.bool_], Indices]]:
    """Group recipes that scored the same images, (image, recipe): yield these images and the recipes."""
    return _pair_groups(scored, np.arange(scored.shape[1]), np.arange(scored.shape[1]))


def _pair_groups(
    scored: NDArray[np.bool_], first: Indices, second: Indices
) -> Iterator[tuple[NDArray[np.bool_], Indices]]:
    """Group pairs of recipes that have the same images in common: yield these images and the pairs."""
    packed = [np.packbits(scored[:, recipe]) for recipe in range(scored.shape[1])]
    same = {column.tobytes(): place for place, column in reversed(list(enumerate(packed)))}
    pattern = [same[column.tobytes()] for column in packed]  # the first recipe that scored these images
    common: dict[tuple[int, int], bytes] = {}
    groups: dict[bytes, list[int]] = {}
    for pair, (one, other) in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
        both = (pattern[one], pattern[other])
        if both not in common:
            common[both] = (packed[one] & packed[other]).tobytes()
        groups.setdefault(common[both], []).append(pair)
    for images, pairs in groups.items():
        yield np.unpackbits(np.frombuffer(images, dtype=np.uint8), count=len(scored)).astype(bool), np.array(pairs)


def _part(numbers: Numbers, images: NDArray[np.bool_], columns: Indices) -> Numbers:
    """Return some images and columns; the numbers themselves where that is all of them, since a copy may be large."""
    kept = numbers if images.all() else numbers[images]
    is_all = len(columns) == kept.shape[1] and bool((columns == np.arange(len(columns))).all())
    return kept if is_all else kept[:, columns]


def own_statistics(scores: PairedScores) -> Numbers:
    """Return the statistic of each recipe over the images that it scored, NaN where it scored none."""
    found = np.full(len(scores.recipes), NAN)
    for images, columns in _groups(scores.scored):
        if images.any():
            found[columns] = scores.reduction.statistic(_part(scores.data, images, columns))
    return found


def _own_estimates(scores: PairedScores, settings: Settings) -> Estimate:
    """Estimate the statistic of each recipe over the images that it scored."""
    found = np.full((4, len(scores.recipes)), NAN)
    for images, columns in _groups(scores.scored):
        if images.any():
            resamples = resample(scores.reduction, _part(scores.data, images, columns), settings)
            for block in _blocks(len(columns), len(scores.images)):
                found[:, columns[block]] = _numbers(resamples.part(block).estimate(settings.confidence))
    return Estimate(*found)


def _numbers(estimate: Estimate) -> list[Numbers]:
    return [estimate.statistic, estimate.low, estimate.high, estimate.standard_error]


def _differences(
    scores: PairedScores, first: Indices, second: Indices, settings: Settings, *, tested: bool = True
) -> tuple[Estimate, Numbers]:
    """Estimate the difference of each pair on the images that both scored, and test it if asked."""
    found, p = np.full((4, len(first)), NAN), np.ones(len(first))
    for images, pairs in _pair_groups(scores.scored, first, second):
        if not images.any():
            continue
        kept, sides = np.unique([first[pairs], second[pairs]], return_inverse=True)
        a, b = sides.reshape(2, -1)
        data, values = _part(scores.data, images, kept), _part(scores.values, images, kept)
        resamples = resample(scores.reduction, data, settings)
        for block in _blocks(len(pairs), len(data)):
            differences = resamples.differences(a[block], b[block])
            found[:, pairs[block]] = _numbers(differences.estimate(settings.confidence))
        if tested:
            p[pairs] = paired_permutation_test(scores.reduction, data, values, a, b, settings)
    return Estimate(*found), p


def _compare_pairs(scores: PairedScores, sign: int, settings: Settings) -> _Pairs:
    first, second = pairs_of(len(scores.recipes))
    difference, p = _differences(scores, first, second, settings)
    swapped = sign * difference.statistic < 0
    first, second = np.where(swapped, second, first), np.where(swapped, first, second)
    turned = np.where(swapped, -1.0, 1.0)
    low, high = (
        np.where(swapped, -a, b) for a, b in ((difference.high, difference.low), (difference.low, difference.high))
    )
    difference = Estimate(turned * difference.statistic, low, high, difference.standard_error)
    p_holm = holm(p)
    different = (p_holm <= 1 - settings.confidence) & (sign * difference.statistic > 0)
    images, wins = _wins(scores, sign, first, second)
    return _Pairs(first, second, images, difference, p, p_holm, wins, different)


def _wins(scores: PairedScores, sign: int, first: Indices, second: Indices) -> tuple[Indices, Numbers]:
    """Return how many images both recipes of a pair scored, and the share of them that the first won."""
    images, wins = np.zeros(len(first), dtype=np.intp), np.full(len(first), NAN)
    scored = scores.scored
    for block in _blocks(len(first), len(scores.images)):
        a, b = first[block], second[block]
        common = scored[:, a] & scored[:, b]
        images[block] = common.sum(axis=0)
        with np.errstate(invalid="ignore"):
            ahead = np.sign(sign * (scores.values[:, a] - scores.values[:, b]))
            wins[block] = np.where(common, ahead, 0.0).sum(axis=0) / images[block] / 2 + 0.5
    return images, wins


def _blocks(pairs: int, images: int) -> Iterator[slice]:
    """Split pairs into blocks, so that a number for each image and pair of a block takes little memory."""
    most = max(MAX_NUMBERS // max(images, 1), 1)
    return (slice(start, start + most) for start in range(0, pairs, most))


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
    near = 1e-12 * np.nanmax(np.abs(means))
    rank = 1 + (sign * means[None] > sign * means[:, None] + near).sum(axis=1)
    group = np.array(letters(ahead | ahead.T), dtype=object)
    return {"rank": rank, "rank_low": low, "rank_high": high, "group": group, "wins": win_rates(scores.values, sign)}


def _margins(scores: PairedScores, sign: int, pairs: _Pairs, settings: Settings) -> Statistics:
    """Return how far each recipe is ahead of the best control, on the images that both scored."""
    count = len(scores.recipes)
    best = next((index for index, recipe in enumerate(scores.recipes) if traits_of(recipe).control), None)
    if best is None or count < 2:
        return {}
    ahead, _ = _differences(scores, np.arange(count), np.full(count, best), settings, tested=False)
    ends = (ahead.low, ahead.high) if sign > 0 else (-ahead.high, -ahead.low)
    p_holm = pairs.square(pairs.p_holm, count)
    margins = {"margin": sign * ahead.statistic, "margin_low": ends[0], "margin_high": ends[1]}
    margins["p_control"] = p_holm[best] + p_holm[:, best]  # one of the two is 0: a pair is filled in once
    return {name: np.where(np.arange(count) == best, NAN, values) for name, values in margins.items()}


def _comparisons(scores: PairedScores, pairs: _Pairs) -> Iterator[Comparison]:
    difference = pairs.difference
    for index, (first, second) in enumerate(zip(pairs.first, pairs.second, strict=True)):
        yield Comparison(
            scores.model,
            scores.metric,
            a=scores.recipes[first],
            b=scores.recipes[second],
            images=int(pairs.images[index]),
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
