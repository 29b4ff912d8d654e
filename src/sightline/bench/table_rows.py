"""Lines: what one model and metric say of each recipe, and of every two."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.bench.stats.paired import Block
from sightline.bench.stats.reduce import Numbers
from sightline.bench.stats.resampling import (
    Estimate,
    Places,
    Resamples,
    Settings,
    holm,
    pairs_of,
    resample,
    swap_test,
    win_rates,
)
from sightline.bench.stats.ties import letters, rank_intervals
from sightline.bench.traits import direction_of, kind_of

Columns = dict[str, NDArray[Any]]
NAN = math.nan  # one object, so that lines which lack the same numbers are equal


@dataclass(frozen=True, slots=True)
class Line:
    """One recipe under one metric with one model.

    Attributes:
        model: the model's id.
        recipe: of the method.
        metric: recipe of the metric.
        direction: whether "higher" or "lower" is better.
        mean: the figure of the set: for most metrics the mean over images, see `Table.reductions`.
        low: lower end of its interval; NaN for fewer than three images.
        high: upper end.
        error: standard error.
        count: images it was computed from: those that all compared recipes scored.
        failed: images the recipe failed on.
        degenerate: images on which its score is undefined.
        flagged: images with a score and a remark, such as a constant map.
        rank: by the mean, equal means sharing a rank; None for a recipe that was set aside.
        rank_low: the best rank it may hold.
        rank_high: the worst rank it may hold.
        group: letters; recipes that share one are not significantly different.
        wins: share of comparisons with other recipes, image by image, that it wins, draws counting half.
        margin: how far it is ahead of the best control, positive whichever way the metric points; NaN for that control.
        margin_low: lower end of its interval.
        margin_high: upper end.
        p_control: p-value of the difference from the best control, corrected over all pairs.
        forward: passes per image.
        backward: passes per image.
        control: whether it knows nothing of the model.
        agnostic: whether its map ignores the class.
        seconds: wall time per image; the one field that another run will not repeat, so it does not count in ``==``.
    """

    model: str
    recipe: str
    metric: str
    direction: str
    mean: float
    low: float
    high: float
    error: float
    count: int
    failed: int
    degenerate: int
    flagged: int
    rank: int | None
    rank_low: int | None
    rank_high: int | None
    group: str
    wins: float
    margin: float
    margin_low: float
    margin_high: float
    p_control: float
    forward: float
    backward: float
    control: bool
    agnostic: bool
    seconds: float = field(compare=False)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two recipes under one metric with one model.

    Attributes:
        model: the model's id.
        metric: recipe of the metric.
        a: the recipe with the better mean.
        b: the other.
        difference: mean of `a` less mean of `b`, in the metric's own unit.
        low: lower end of its interval.
        high: upper end.
        p: of the paired swap test, two-sided.
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


def judge(block: Block, settings: Settings) -> tuple[list[Line], list[Comparison]]:
    """Return the lines of a block, best first, and the comparisons of every two of its recipes."""
    direction = direction_of(block.metric)
    sign = 1 if direction == "higher" else -1
    if not block.images:
        return [_line(block, place, direction, {}) for place in range(len(block.recipes))], []
    block = _best_first(block, sign)
    sampled = resample(block.reduction, block.data, settings)
    pairs = _pairs(block, sign, sampled, settings)
    columns = _intervals(sampled.estimate(settings.confidence)) | _margins(block, sign, sampled, pairs, settings)
    if block.ranked:
        columns |= _standing(block, sign, sampled.figure, pairs)
    lines = [_line(block, place, direction, columns) for place in range(len(block.recipes))]
    return lines, list(_comparisons(block, pairs))


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """Every two recipes, the better one first, one entry per pair."""

    one: Places
    other: Places
    difference: Estimate
    p: Numbers
    p_holm: Numbers
    wins: Numbers
    different: NDArray[np.bool_]

    def square(self, values: NDArray[Any], count: int) -> NDArray[Any]:
        """Return values of pairs by recipe and recipe; only the upper triangle is filled."""
        filled = np.zeros((count, count), dtype=values.dtype)
        filled[self.one, self.other] = values
        return filled


def _best_first(block: Block, sign: int) -> Block:
    order = np.argsort(-sign * block.reduction.figure(block.data), kind="stable")
    return replace(
        block,
        recipes=tuple(block.recipes[place] for place in order),
        tallies=tuple(block.tallies[place] for place in order),
        values=block.values[:, order],
        data=block.data[:, order],
    )


def _pairs(block: Block, sign: int, sampled: Resamples, settings: Settings) -> _Pairs:
    one, other = pairs_of(len(block.recipes))
    difference = sampled.differences(one, other).estimate(settings.confidence)
    p = swap_test(block.reduction, block.data, block.values, one, other, settings)
    p_holm = holm(p)
    different = (p_holm <= 1 - settings.confidence) & (sign * difference.figure > 0)
    better = sign * block.values
    wins = np.array(
        [np.sign(better[:, a] - better[:, b]).mean() / 2 + 0.5 for a, b in zip(one, other, strict=True)], dtype=float
    )
    return _Pairs(one, other, difference, p, p_holm, wins, different)


def _intervals(found: Estimate) -> Columns:
    return {"mean": found.figure, "low": found.low, "high": found.high, "error": found.error}


def _standing(block: Block, sign: int, figures: Numbers, pairs: _Pairs) -> Columns:
    """Return ranks, groups and wins."""
    ahead = pairs.square(pairs.different, len(block.recipes))
    low, high = rank_intervals(ahead)
    near = 1e-12 * np.abs(figures).max()
    rank = 1 + (sign * figures[None] > sign * figures[:, None] + near).sum(axis=1)
    group = np.array(letters(ahead | ahead.T), dtype=object)
    return {"rank": rank, "rank_low": low, "rank_high": high, "group": group, "wins": win_rates(sign * block.values)}


def _margins(block: Block, sign: int, sampled: Resamples, pairs: _Pairs, settings: Settings) -> Columns:
    """Return how far each recipe is ahead of the best control."""
    count = len(block.recipes)
    best = next((place for place, recipe in enumerate(block.recipes) if kind_of(recipe)[0]), None)
    if best is None or count < 2:
        return {}
    found = sampled.differences(np.arange(count), np.full(count, best)).estimate(settings.confidence)
    ends = (found.low, found.high) if sign > 0 else (-found.high, -found.low)
    p_holm = pairs.square(pairs.p_holm, count)
    columns = {"margin": sign * found.figure, "margin_low": ends[0], "margin_high": ends[1]}
    columns["p_control"] = p_holm[best] + p_holm[:, best]  # one of the two is 0: only the upper triangle is filled
    return {name: np.where(np.arange(count) == best, NAN, values) for name, values in columns.items()}


def _line(block: Block, place: int, direction: str, columns: Columns) -> Line:
    def number(name: str) -> float:
        return _known(columns[name][place]) if name in columns else NAN

    def whole(name: str) -> int | None:
        return int(columns[name][place]) if name in columns else None

    recipe, tally = block.recipes[place], block.tallies[place]
    control, agnostic = kind_of(recipe)
    return Line(
        block.model,
        recipe,
        block.metric,
        direction,
        mean=number("mean"),
        low=number("low"),
        high=number("high"),
        error=number("error"),
        count=len(block.images),
        failed=tally.failed,
        degenerate=tally.degenerate,
        flagged=tally.flagged,
        rank=whole("rank"),
        rank_low=whole("rank_low"),
        rank_high=whole("rank_high"),
        group=str(columns["group"][place]) if "group" in columns else "",
        wins=number("wins"),
        margin=number("margin"),
        margin_low=number("margin_low"),
        margin_high=number("margin_high"),
        p_control=number("p_control"),
        forward=_known(tally.forward),
        backward=_known(tally.backward),
        control=control,
        agnostic=agnostic,
        seconds=tally.seconds,
    )


def _known(value: float) -> float:
    return NAN if math.isnan(value) else float(value)


def _comparisons(block: Block, pairs: _Pairs) -> Iterator[Comparison]:
    found = pairs.difference
    for place, (one, other) in enumerate(zip(pairs.one, pairs.other, strict=True)):
        yield Comparison(
            block.model,
            block.metric,
            a=block.recipes[one],
            b=block.recipes[other],
            difference=_known(found.figure[place]),
            low=_known(found.low[place]),
            high=_known(found.high[place]),
            p=float(pairs.p[place]),
            p_holm=float(pairs.p_holm[place]),
            wins=float(pairs.wins[place]),
            different=bool(pairs.different[place]),
        )
