"""Which candidates of a greedy search are worth measuring, judged by how much they changed the score last time."""

from __future__ import annotations

import math
from collections.abc import Sequence


class Shortlist:
    """Remembers how much each candidate changed the score when it was last measured, and names the promising ones.

    Measured on photographs, the best of 28 candidates was among the four that had been best one step before in nine
    steps of ten. Gains go stale, so some candidates are measured again because they have waited longest.

    Attributes:
        size: how many to name; newcomers are named in any case.
        sign: 1 where a high score is wanted, -1 where a low one is.
    """

    def __init__(self, size: int, sign: int) -> None:
        self.size = size
        self.sign = sign
        self._gain: dict[int, float] = {}
        self._seen: dict[int, int] = {}
        self._step = 0

    def choose(self, candidates: Sequence[int], less: int = 0) -> list[int]:
        """Return the promising ones, `less` fewer where some were measured already, in the order in which they came."""
        known = [candidate for candidate in candidates if candidate in self._gain]
        chosen = set(candidates) - set(known)
        room = max(self.size - less - len(chosen), 0)
        waiting = min(self.size // 4, room)
        chosen.update(sorted(known, key=lambda c: -self._gain[c])[: room - waiting])
        longest = sorted((c for c in known if c not in chosen), key=lambda c: self._seen[c])
        chosen.update(longest[:waiting])
        return [candidate for candidate in candidates if candidate in chosen]

    def unknown(self, candidates: Sequence[int]) -> list[int]:
        """Return those that were never measured."""
        return [candidate for candidate in candidates if candidate not in self._gain]

    def best(self, candidates: Sequence[int], count: int) -> list[int]:
        """Return those that were best when last measured, the best first; of equal ones, the first that came."""
        known = [candidate for candidate in candidates if candidate in self._gain]
        return sorted(known, key=lambda candidate: -self._gain[candidate])[:count]

    def learn(self, candidates: Sequence[int], scores: Sequence[float], before: float) -> None:
        """Remember the scores that came of pasting each candidate, given the score without it."""
        for candidate, score in zip(candidates, scores, strict=True):
            self._gain[candidate] = self.sign * _change(before, score)
            self._seen[candidate] = self._step
        self._step += 1


def _change(before: float, after: float) -> float:
    """Return the change of a score; of a probability in log odds, which keep their meaning from 1e-5 to nearly one."""
    if 0 < before < 1 and 0 < after < 1:
        return math.log(after / (1 - after)) - math.log(before / (1 - before))
    return after - before
