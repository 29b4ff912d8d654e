"""Lazy greedy search: few candidates are measured again at a step, and segments that hardly matter go in blocks.

A greedy search measures every candidate at every step, although most gains change little from one step to the next. A
lazy one :cite:p:`minoux1978` keeps the gains that it has measured, and measures again only the best of them. Where many
segments are left to place, it places the best tenth of them at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sightline.perturb.search.composites import Composite, Measure, Search
from sightline.perturb.search.shortlist import Shortlist

Steps = list[tuple[int, float]]  # the segments pasted, each with the score after it
WIDER = 3  # candidates for each segment of a block


@dataclass(frozen=True, slots=True)
class Pace:
    """How much a lazy search measures.

    Attributes:
        window: how many candidates are looked at, the first in the seed's order; more for large blocks.
        again: how many of those measured before are measured again at a step.
        per_step: how many segments a step places at least.
        parts: a step places one in so many of the segments that are left; 0 for `per_step` alone.
    """

    window: int
    again: int
    per_step: int = 1
    parts: int = 0

    def sizes(self, left: int) -> tuple[int, int]:
        """Return how many segments a step places when so many are left, and how many candidates it looks at."""
        block = min(left, max(self.per_step, left // self.parts if self.parts else 1))
        return block, min(left, max(self.window, WIDER * block if block > self.per_step else 0))


def lazy_steps(
    composite: Composite, left: list[int], before: float, sign: int, pace: Pace, stop: Callable[[float], bool]
) -> Search[Steps]:
    """Paste segments until none is left or the score says stop; return them with the score after each.

    Of a block only the score at its end is measured; those before it are taken to change evenly.

    Args:
        composite: where to paste.
        left: the segments, the most promising first.
        before: the score before the first.
        sign: 1 where a high score is wanted, -1 where a low one is.
        pace: how much to measure.
        stop: tells of a score whether to end.
    """
    gains = Shortlist(pace.window, sign)
    pasted: Steps = []
    while left:
        block, window = pace.sizes(len(left))
        chosen, after = yield from _choose(composite, left[:window], before, block, gains, pace.again)
        for place, segment in enumerate(chosen, start=1):
            composite.paste(segment)
            left.remove(segment)
            pasted.append((segment, after if place == block else before + (after - before) * place / block))
            if stop(pasted[-1][1]):
                return pasted
        before = after
    return pasted


def _choose(
    composite: Composite, candidates: list[int], before: float, block: int, gains: Shortlist, again: int
) -> Search[tuple[list[int], float]]:
    """Choose the best candidates; return them with the score once all of them are pasted."""
    asked = {*gains.unknown(candidates), *gains.best(candidates, again)}
    some = [candidate for candidate in candidates if candidate in asked]
    scores = (yield Measure(composite, [[candidate] for candidate in some])).tolist()
    gains.learn(some, scores, before)
    if block == 1:
        best = max(range(len(some)), key=lambda index: gains.sign * scores[index])  # of equal ones, the first
        return [some[best]], scores[best]
    chosen = gains.best(candidates, block)
    (after,) = (yield Measure(composite, [chosen])).tolist()
    return chosen, after


def lazy_cost(count: int, stop: int, pace: Pace) -> int:
    """Return the passes it takes to place `stop` of `count` segments."""
    total, left, known = 0, count, 0  # known: how many of the first candidates have been measured
    while count - left < stop:
        block, window = pace.sizes(left)
        total += max(window - known, 0) + min(pace.again, known, window) + (block > 1)
        known, left = max(known, window) - block, left - block
    return total
