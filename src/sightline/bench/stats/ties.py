"""Ties: which recipes cannot be told apart, and which ranks they may hold."""

from __future__ import annotations

from string import ascii_letters

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]


def letters(different: Flags) -> list[str]:
    """Return a compact letter display: two recipes share a letter exactly if they are not different.

    The letters are found by insert and absorb :cite:p:`piepho2004`: all recipes start under one letter; each pair that
    differs splits the letters that hold both; a letter whose recipes all stand under another goes.

    Args:
        different: symmetric, (recipe, recipe), recipes from the best to the worst. The best has the letter a.

    >>> letters(np.array([[0, 0, 1], [0, 0, 0], [1, 0, 0]], dtype=bool))
    ['a', 'ab', 'b']
    """
    groups: list[frozenset[int]] = [frozenset(range(len(different)))]
    for first, second in np.argwhere(np.triu(different, k=1)).tolist():
        split = [group - {gone} for group in groups if {first, second} <= group for gone in (first, second)]
        groups = _without_subsets([group for group in groups if not {first, second} <= group] + split)
    kept = sorted(_without_redundant(groups), key=sorted)
    return [
        "".join(_letter(index) for index, group in enumerate(kept) if recipe in group)
        for recipe in range(len(different))
    ]


def _without_subsets(groups: list[frozenset[int]]) -> list[frozenset[int]]:
    distinct = list(dict.fromkeys(groups))
    return [group for group in distinct if not any(group < other for other in distinct)]


def _without_redundant(groups: list[frozenset[int]]) -> list[frozenset[int]]:
    """Leave out groups whose every pair, and every member, stands in another one too."""
    kept = sorted(groups, key=lambda group: (len(group), sorted(group)))
    for group in list(kept):
        others = [other for other in kept if other != group]
        if all(any({first, second} <= other for other in others) for first in group for second in group):
            kept = others
    return kept


def _letter(index: int) -> str:
    """Return a to z, A to Z, then numbers in brackets."""
    return ascii_letters[index] if index < len(ascii_letters) else f"({index + 1})"


def rank_intervals(ahead: Flags) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the lowest and the highest rank each recipe may hold.

    The lowest is one more than the number of recipes significantly better, the highest the number of recipes less those
    significantly worse. With Holm's correction all these intervals hold at once, with the confidence of the tests.
    (Resampling ranks would be narrower and wrong where it matters: between recipes that are equally good, the bootstrap
    of a rank does not settle, however many images there are :cite:p:`hall2009`.)

    Args:
        ahead: whether the row's recipe is significantly better than the column's, (recipe, recipe).
    """
    return 1 + ahead.sum(axis=0), len(ahead) - ahead.sum(axis=1)
