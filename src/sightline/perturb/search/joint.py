"""Search an order for insertion and deletion together, with few passes.

Each step places what raises insertion minus deletion most. The search is lazy :cite:p:`minoux1978`: it keeps the gains
that it has measured and measures again only the best of them. It ends where the image is recognised and, without what
was placed, is not. Then segments change places across the boundaries of equal blocks of the order: those that are
missed least before a boundary for those that add most after it, where that raises insertion minus deletion there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sightline.perturb.endpoints import Endpoints
from sightline.perturb.search.composites import Composite, Measure, Search
from sightline.perturb.segments import Segments

PASSES = 4.3  # per segment at most: at 14×14, with the curves measured afterwards, a quarter of the exact search's
AGAIN = 6  # candidates that a step measures again, at least
GROWTH = 16  # a step places one segment more for each such part of the segments that was placed
PLACED = 0.4  # share of the segments that are placed in steps at most
NEARLY = 0.03  # how close to its end a curve counts as there
BLOCKS = 28  # into which the order is cut for the exchange
EXCHANGED = 4  # segments of a block at most, at a time


@dataclass(frozen=True, slots=True)
class JointPace:
    """How a joint search goes.

    Attributes:
        window: how many candidates are looked at, the first in the seed's order.
        per_step: how many segments a step places at least.
        inserting: whether insertion counts.
        deleting: whether deletion counts.
    """

    window: int
    per_step: int = 1
    inserting: bool = True
    deleting: bool = True


def most_together(count: int) -> int:
    """Return the passes that a joint search takes at most."""
    return int(PASSES * count)


def together(
    endpoints: Endpoints, segments: Segments, seed: Sequence[int], pace: JointPace
) -> Search[tuple[list[int], list[float]]]:
    """Search an order; return it with the score after each of its segments was deleted.

    The scores are measured at the boundaries of blocks and taken to change evenly between.

    Args:
        endpoints: the image, its blurred and its blank copy, with their scores.
        segments: of the image.
        seed: the segments, the most promising first.
        pace: how to go.
    """
    count = segments.count
    size = max(2, count // BLOCKS)
    boundaries = list(range(size, count, size))
    full, start, end = endpoints.scores
    inserted = Composite(endpoints.image, endpoints.blurred, segments)
    deleted = Composite(endpoints.blank, endpoints.image, segments)
    curves = [
        *([_Curve(inserted, start, full, rising=True)] if pace.inserting else []),
        *([_Curve(deleted, end, full, rising=False)] if pace.deleting else []),
    ]
    allowed = most_together(count) - len(boundaries)
    order, placed = yield from _place(curves, seed, pace, allowed)
    order = yield from _exchange(curves, order, [each for each in boundaries if each < placed + size], size, allowed)
    scores = (yield Measure(deleted, [order[:each] for each in boundaries])).tolist() if boundaries else []
    return order, np.interp(range(1, count + 1), [0, *boundaries, count], [full, *scores, end]).tolist()


class _Curve:
    """Insertion or deletion of sets of segments: how far it has come, from 0 to 1. Each set is measured once."""

    def __init__(self, composite: Composite, nothing: float, full: float, *, rising: bool) -> None:
        self.composite = composite
        self.nothing = nothing
        self.span = abs(full - nothing) or 1.0
        self.rising = rising
        self.known: dict[frozenset[int], float] = {}

    def measure(self, sets: Sequence[Sequence[int]]) -> Search[list[float]]:
        """Return how far each of the sets brings it."""
        keys = [frozenset(each) for each in sets]
        fresh = [key for key in dict.fromkeys(keys) if key not in self.known]
        if fresh:
            scores = (yield Measure(self.composite, [sorted(key) for key in fresh])).tolist()
            shares = [min(max((score - self.nothing) / self.span, 0.0), 1.0) for score in scores]
            self.known |= zip(fresh, shares if self.rising else [1 - share for share in shares], strict=True)
        return [self.known[key] for key in keys]


def _spent(curves: Sequence[_Curve]) -> int:
    return sum(len(curve.known) for curve in curves)


def _sums(curves: Sequence[_Curve], sets: Sequence[Sequence[int]]) -> Search[list[float]]:
    """Return how far each of the sets brings all curves together: one more than insertion minus deletion, of both."""
    totals = [0.0] * len(sets)
    for curve in curves:
        found = yield from curve.measure(sets)
        totals = [total + one for total, one in zip(totals, found, strict=True)]
    return totals


def _place(
    curves: Sequence[_Curve], seed: Sequence[int], pace: JointPace, allowed: int
) -> Search[tuple[list[int], int]]:
    """Place the segments that bring the curves furthest, until all are at their ends or enough is placed.

    Return an order of all segments and how many were placed. The others follow by the gain they had when last measured,
    and those never measured as in the seed.
    """
    placed: list[int] = []
    left = list(seed)
    best = dict.fromkeys(curves, 0.0)
    gains: dict[int, dict[_Curve, float]] = {}
    moving = list(curves)

    def gain(segment: int) -> float:
        return sum(gains[segment].get(curve, 0.0) for curve in moving)

    def by_gain(candidates: Sequence[int]) -> list[int]:
        """Return the candidates that were measured, the best first; of equal ones, the first that came."""
        return sorted((each for each in candidates if each in gains), key=lambda each: -gain(each))

    while left and moving and len(placed) < PLACED * len(seed):
        block = min(len(left), max(pace.per_step, 1 + GROWTH * len(placed) // len(seed)))
        candidates = left[: max(pace.window, block)]
        again = by_gain(candidates)[: max(AGAIN, block)]
        asked = [each for each in candidates if each not in gains or each in again]
        if _spent(curves) + len(moving) * (len(asked) + 1) > allowed:
            break
        for curve in moving:
            found = yield from curve.measure([[*placed, each] for each in asked])
            for each, value in zip(asked, found, strict=True):
                gains.setdefault(each, {})[curve] = value - best[curve]
        placed += by_gain(asked)[:block]
        left = [each for each in left if each not in placed]
        for curve in moving:
            best[curve] = max(best[curve], *(yield from curve.measure([placed])))
        moving = [curve for curve in moving if best[curve] < 1 - NEARLY]
    last = by_gain(left)
    return [*placed, *last, *(each for each in left if each not in last)], len(placed)


def _exchange(
    curves: Sequence[_Curve], order: list[int], boundaries: Sequence[int], size: int, allowed: int
) -> Search[list[int]]:
    """Exchange segments across boundaries while that brings the curves further there; return the new order.

    A segment moves from one block of the order to the next, so no other boundary is affected.
    """
    changed = True
    while changed:
        changed = False
        for boundary in boundaries:
            if _spent(curves) + len(curves) * (1 + 2 * size + EXCHANGED) > allowed:
                return order
            before, inside, outside = (
                order[:boundary], order[boundary - size : boundary], order[boundary : boundary + size]
            )  # fmt: skip
            (now,) = yield from _sums(curves, [before])
            moving = [curve for curve in curves if curve.known[frozenset(before)] < 1 - NEARLY]
            if not moving:
                continue
            without = yield from _sums(moving, [[each for each in before if each != one] for one in inside])
            added = yield from _sums(moving, [[*before, one] for one in outside])
            out, into = _best_first(inside, without), _best_first(outside, added)
            pairs = [(out[:each], into[:each]) for each in range(1, min(EXCHANGED, len(into)) + 1)]
            sets = [[*(each for each in before if each not in old), *new] for old, new in pairs]
            found = yield from _sums(curves, sets)
            top = found.index(max(found))
            if found[top] > now:
                order = [*sets[top], *pairs[top][0], *(each for each in order[boundary:] if each not in sets[top])]
                changed = True
    return order


def _best_first(segments: Sequence[int], values: Sequence[float]) -> list[int]:
    """Return the segments by falling value; of equal ones, the first that came."""
    ranked = sorted(range(len(segments)), key=lambda index: -values[index])
    return [segments[index] for index in ranked]
