"""Order segments by greedy insertion, then greedy deletion :cite:p:`mda2025`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sightline.perturb.endpoints import Endpoints
from sightline.perturb.search.composites import Composite, Measure, Search
from sightline.perturb.search.joint import JointPace, most_together, together
from sightline.perturb.search.lazy import Pace, Steps, lazy_cost, lazy_steps
from sightline.perturb.search.shortlist import Shortlist
from sightline.perturb.segments import Segments

# share of the way from the blank image's score to the image's below which there is nothing to see; None: no level
NOTHING: float | None = None
FRONT = 3  # candidates that are asked first then
SHARE = 0.43  # of the exact search's passes that the fast one takes; the curves measured afterwards make it a half
LAZY_SHARE = 0.165  # that a lazy one takes; the curves make it a quarter
AGAIN = 6  # candidates that a lazy search measures again at a step, at least
PARTS = 10  # a lazy deletion places one in so many of the segments that are left


@dataclass(frozen=True, slots=True)
class SegmentOrder:
    """An order and what the model said on the way.

    Attributes:
        order: the segments, most important first.
        inserted: how many of them the insertion phase placed; 0 where there is none, as in a joint search.
        insertion: the score after each of the segments that the insertion phase pasted.
        deletion: the score as segments are added to the blank image, least important first; of blocks that a lazy
            search added at once, only the last is measured and the others lie evenly between, and a joint one measures
            a point in seven of 196.
    """

    order: tuple[int, ...]
    inserted: int
    insertion: tuple[float, ...]
    deletion: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """How a greedy search goes.

    Attributes:
        window: how many candidates are looked at, the first in the seed's order.
        per_step: how many segments one step pastes, no more than the window holds.
        tau: the share of the response at which insertion stops: 1 never (insertion alone), 0 at once (deletion alone).
        fast: measure the promising candidates only.
        trusting: whether a fast search may take the seed's word where there is nothing to see.
        cut_short: keep only those insertions that the released program keeps.
        lazy: measure few candidates again, and place blocks.
        joint: search for insertion and deletion together; of tau only 0 and 1 matter then.
    """

    window: int
    per_step: int = 1
    tau: float = 0.9
    fast: bool = False
    trusting: bool = True
    cut_short: bool = False
    lazy: bool = False
    joint: bool = False


def greedy(endpoints: Endpoints, segments: Segments, seed: Sequence[int], rule: Rule) -> Search[SegmentOrder]:
    """Search an order of the segments.

    Args:
        endpoints: the image, its blurred and its blank copy, with their scores.
        segments: of the image.
        seed: the segments, the most promising first.
        rule: how to go.
    """
    count = segments.count
    if rule.joint:
        pace = JointPace(rule.window, rule.per_step, inserting=rule.tau > 0, deleting=rule.tau < 1)
        order, deletion = yield from together(endpoints, segments, seed, pace)
        return SegmentOrder(tuple(order), 0, (), (*reversed(deletion[:-1]), endpoints.full))
    inserted = yield from insert(endpoints, segments, seed, rule)
    locked = [segment for segment, _ in inserted]
    if rule.cut_short:
        locked = locked[: released_length(inserted, count, rule)]
    size = deletion_size(count, len(locked), rule)
    deleted = yield from delete(endpoints, segments, [s for s in reversed(seed) if s not in locked], rule, size)
    composite = Composite(endpoints.image, endpoints.blank, segments)
    for segment, _ in deleted:
        composite.paste(segment)
    rest = locked[::-1]
    scores = (yield Measure(composite, [rest[: i + 1] for i in range(len(rest))])).tolist() if rest else []
    return SegmentOrder(
        order=(*locked, *(segment for segment, _ in reversed(deleted))),
        inserted=len(locked),
        insertion=tuple(score for _, score in inserted),
        deletion=(*(score for _, score in deleted), *scores),
    )


def follow(endpoints: Endpoints, segments: Segments, order: Sequence[int]) -> Search[SegmentOrder]:
    """Measure a given order, the most important segment first, without searching."""
    composite, rest = Composite(endpoints.image, endpoints.blank, segments), list(reversed(order))
    scores = yield Measure(composite, [rest[: i + 1] for i in range(len(rest))])
    return SegmentOrder(tuple(order), 0, (), tuple(scores.tolist()))


def insert(endpoints: Endpoints, segments: Segments, seed: Sequence[int], rule: Rule) -> Search[Steps]:
    """Paste into the blurred image whatever raises the score most, until it has come back to a share tau."""
    if rule.tau == 0:
        return []
    shortlist = Shortlist(rule.window, sign=1)
    composite, left = Composite(endpoints.image, endpoints.blurred, segments), list(seed)
    pasted = [(-1, endpoints.blur)]
    span = abs(endpoints.full - endpoints.blur) or 1.0

    def back(score: float) -> bool:
        return rule.tau < 1 and (score - endpoints.blur) / span >= rule.tau

    if rule.lazy:
        return (yield from lazy_steps(composite, left, endpoints.blur, 1, insertion_pace(rule), back))
    while left:
        shortlist.size = insertion_size(segments.count, len(pasted) - 1, rule)
        for step in (yield from pick(composite, left[: rule.window], pasted[-1][1], rule.per_step, shortlist)):
            composite.paste(step[0])
            left.remove(step[0])
            pasted.append(step)
            if back(step[1]):
                return pasted[1:]
    return pasted[1:]


def delete(endpoints: Endpoints, segments: Segments, seed: Sequence[int], rule: Rule, size: int) -> Search[Steps]:
    """Paste into the blank image whatever raises the score least: read backwards, it is a deletion.

    Where a level NOTHING is set, a fast search takes the seed's word while the score is below it: scores of a
    thousandth and of a millionth are told apart by noise, and following the noise can cost the insertion curve.
    """
    shortlist = Shortlist(size, sign=-1)
    composite, left = Composite(endpoints.image, endpoints.blank, segments), list(seed)
    pasted = [(-1, endpoints.empty)]
    if rule.lazy:
        pace = deletion_pace(rule, size)
        return (yield from lazy_steps(composite, left, endpoints.empty, -1, pace, lambda score: False))
    quiet = -math.inf
    if NOTHING is not None and rule.fast and rule.trusting and rule.per_step == 1:
        quiet = endpoints.empty + NOTHING * (endpoints.full - endpoints.empty)
    while left:
        step = yield from pick(composite, left[: rule.window], pasted[-1][1], rule.per_step, shortlist, quiet)
        for segment, score in step:
            composite.paste(segment)
            left.remove(segment)
            pasted.append((segment, score))
    return pasted[1:]


def pick(
    composite: Composite,
    candidates: Sequence[int],
    before: float,
    per_step: int,
    shortlist: Shortlist,
    quiet: float = -math.inf,
) -> Search[Steps]:
    """Choose the best candidates, one by default; return them with the score after each was pasted.

    Where the score is `quiet` and stays so with one of the first candidates, that one is taken and the others are not
    measured.
    """
    known: dict[int, float] = {}
    if before <= quiet:
        known = yield from _measure(composite, candidates[:FRONT], before, shortlist)
        still = [(segment, score) for segment, score in known.items() if score <= quiet]
        if still:
            return still[:1]
    rest = shortlist.choose([c for c in candidates if c not in known], less=len(known))
    known |= yield from _measure(composite, rest, before, shortlist)
    first = [segment for segment in candidates if segment in known]  # of equal ones, the first in the seed's order
    chosen = sorted(first, key=lambda segment: -shortlist.sign * known[segment])[:per_step]
    steps = [(chosen[0], known[chosen[0]])]
    if len(chosen) > 1:
        more = yield Measure(composite, [chosen[: i + 1] for i in range(1, len(chosen))])
        steps.extend(zip(chosen[1:], more.tolist(), strict=True))
    return steps


def _measure(
    composite: Composite, candidates: Sequence[int], before: float, shortlist: Shortlist
) -> Search[dict[int, float]]:
    """Return the score with each of the candidates."""
    if not candidates:
        return {}
    scores = (yield Measure(composite, [[candidate] for candidate in candidates])).tolist()
    shortlist.learn(candidates, scores, before)
    return dict(zip(candidates, scores, strict=True))


def released_length(inserted: Steps, count: int, rule: Rule) -> int:
    """Return how many insertions the released program keeps.

    It looks for the first recorded probability of at least tau, not scaled; and where the search ended among the last
    `window` segments, it writes its end mark that many places too early.
    """
    length = next((i + 1 for i, (_, score) in enumerate(inserted) if score >= rule.tau), len(inserted))
    tail = count - min(rule.window, count)
    return min(length, len(inserted) - tail) if len(inserted) > tail else length


# ---- how many candidates are measured --------------------------------------------------------------------------------


def insertion_size(count: int, done: int, rule: Rule) -> int:
    """Return how many candidates an insertion step measures after `done` segments of `count`.

    In a fast search it is three in four at first, where the order matters most and gains change much, and one in four
    where insertion has used up a quarter of the segments.
    """
    if not rule.fast:
        return rule.window
    return max(rule.per_step, rule.window * (3 if done < count / 4 else 1) // 4)


def deletion_size(count: int, inserted: int, rule: Rule) -> int:
    """Return how many candidates a deletion step measures: in a fast search as many as its share of passes allows.

    In a lazy search it is how many are measured again.
    """
    if rule.lazy:
        return _lazy_size(count, inserted, rule)
    if not rule.fast:
        return rule.window
    exact = replace(rule, fast=False)
    allowed = SHARE * (insertion_cost(count, inserted, exact) + steps_cost(count - inserted, rule, rule.window))
    left = allowed - insertion_cost(count, inserted, rule)
    least = min(max(FRONT + 1, rule.per_step), rule.window)
    sizes = range(rule.window, least, -1)
    return next((size for size in sizes if steps_cost(count - inserted, rule, size) <= left), least)


def insertion_pace(rule: Rule) -> Pace:
    """Return how much a lazy insertion measures; its segments come first, so none go in blocks."""
    return Pace(rule.window, max(AGAIN, rule.per_step), rule.per_step)


def deletion_pace(rule: Rule, again: int) -> Pace:
    """Return how much a lazy deletion measures."""
    return Pace(rule.window, again, rule.per_step, PARTS)


def _lazy_size(count: int, inserted: int, rule: Rule) -> int:
    """Return how many candidates a lazy deletion measures again, so that the search keeps to its share of passes."""
    exact = replace(rule, lazy=False, per_step=1)
    allowed = LAZY_SHARE * (insertion_cost(count, inserted, exact) + steps_cost(count - inserted, exact, rule.window))
    left = allowed - insertion_cost(count, inserted, rule) - inserted  # which the curve at the end measures once more
    sizes = range(rule.window, AGAIN, -1)
    cost = {size: lazy_cost(count - inserted, count - inserted, deletion_pace(rule, size)) for size in sizes}
    return next((size for size in sizes if cost[size] <= left), min(AGAIN, rule.window))


def insertion_cost(count: int, stop: int, rule: Rule) -> int:
    """Return the passes it takes to insert `stop` of `count` segments."""
    if rule.lazy:
        return lazy_cost(count, stop, insertion_pace(rule))
    return sum(
        _step_cost(count, done, rule, insertion_size(count, done, rule)) for done in range(0, stop, rule.per_step)
    )


def steps_cost(count: int, rule: Rule, size: int) -> int:
    """Return the passes it takes to place `count` segments when each step measures `size` candidates."""
    return sum(_step_cost(count, done, rule, size) for done in range(0, count, rule.per_step))


def _step_cost(count: int, done: int, rule: Rule, size: int) -> int:
    """Return the passes of one step; the first measures all of its candidates, since none of them is known yet."""
    shown = min(rule.window, count - done)
    newcomers = shown if done == 0 else min(rule.per_step, shown)
    return max(newcomers, min(size, shown)) + min(rule.per_step, count - done) - 1


def most_passes(count: int, rule: Rule) -> int:
    """Return the passes that a search among `count` segments takes at most, however far insertion goes."""
    if rule.joint:
        return most_together(count)
    if rule.cut_short:  # all but one of the insertions may be dropped again
        return insertion_cost(count, count, rule) + steps_cost(count, rule, rule.window)
    stops = {0.0: [0], 1.0: [count]}.get(rule.tau, list(range(1, count + 1)))
    return max(passes(count, stop, rule) for stop in stops)


def passes(count: int, stop: int, rule: Rule) -> int:
    """Return the passes of a search that inserts `stop` segments; the curve at its end measures these once more.

    Of a fast search and of a joint one, it is the most they take.
    """
    if rule.joint:
        return most_together(count)
    size = deletion_size(count, stop, rule)
    if rule.lazy:
        deletion = lazy_cost(count - stop, count - stop, deletion_pace(rule, size))
    else:
        deletion = steps_cost(count - stop, rule, size)
    return insertion_cost(count, stop, rule) + deletion + stop
