"""Processor time of jobs that run in turn in one process, and ratios of it with intervals."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

Job = Callable[[], object]
RESAMPLES = 1000
LEAST = 0.05  # seconds: a shorter job is called several times in a row


class Ratio(NamedTuple):
    """The median of the rounds' ratios, and the 95 % interval of a bootstrap over rounds."""

    median: float
    low: float
    high: float


def processor_seconds(work: Job, calls: int = 1) -> float:
    """Return the seconds of processor time that a call takes; other programs disturb them less than the clock's."""
    begun = time.process_time()
    for _ in range(calls):
        work()
    return (time.process_time() - begun) / calls


def in_turn(jobs: Mapping[str, Job], rounds: int, budget: float = float("inf")) -> dict[str, list[float]]:
    """Return the processor seconds of every job in every round; each round runs them all, every second one backwards.

    A round before the first warms up and says how often a short job is called. After `budget` seconds of processor time
    no other round begins, once there are three.
    """
    calls = {name: 1 + int(LEAST / max(processor_seconds(job), 1e-6)) for name, job in jobs.items()}
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    begun = time.process_time()
    for done in range(rounds):
        if done >= 3 and time.process_time() - begun > budget:
            break
        for name in list(jobs) if done % 2 else reversed(list(jobs)):
            taken[name].append(processor_seconds(jobs[name], calls[name]))
    return taken


def ratio(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """Return how many times as long one job took as the other, round by round.

    >>> ratio([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    Ratio(median=2.0, low=2.0, high=2.0)
    """
    each = [one / other for one, other in zip(above, below, strict=True)]
    drawn = random.Random(0)
    medians = sorted(statistics.median(drawn.choices(each, k=len(each))) for _ in range(RESAMPLES))
    low, high = medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1]
    return Ratio(statistics.median(each), low, high)
