"""Keys of many units as numbers: sixteen bytes each, none of them a Python object, looked up by binary search."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

__all__ = ["KeyTable", "Words", "is_key", "text_of", "words_of", "words_of_characters", "words_of_digests"]

Words = NDArray[np.uint64]  # the two halves of each key, shape (key, 2)

SIZE = 16  # bytes of a key
BLOCK = 65_536  # keys that are turned into texts at a time
_KEY = re.compile(f"[0-9a-f]{{{2 * SIZE}}}")
_VALUES = np.full(256, 255, dtype=np.uint8)
_VALUES[np.frombuffer(b"0123456789abcdef", dtype=np.uint8)] = np.arange(16)


def words_of(keys: Iterable[str]) -> Words:
    """Return keys as numbers; what is no key, such as the name of another file, is left out."""
    return words_of_digests(bytes.fromhex("".join(filter(is_key, keys))))


def words_of_digests(digests: bytes | bytearray) -> Words:
    """Return the keys whose bytes follow one another."""
    return np.frombuffer(digests, dtype=np.uint64).reshape(-1, 2)


def words_of_characters(characters: NDArray[np.uint8]) -> Words:
    """Return the keys whose characters are given, shape (key, 32).

    Raises:
        ValueError: one of them is no hexadecimal digit as keys have them.
    """
    values = _VALUES[characters]
    if (values > 15).any():
        raise ValueError("a key has other characters than hexadecimal digits")
    return np.ascontiguousarray(values[:, 0::2] << 4 | values[:, 1::2]).view(np.uint64)


def text_of(words: Words) -> Iterator[str]:
    """Yield the keys as texts."""
    for start in range(0, len(words), BLOCK):
        text = np.ascontiguousarray(words[start : start + BLOCK]).tobytes().hex()
        yield from (text[place : place + 2 * SIZE] for place in range(0, len(text), 2 * SIZE))


def is_key(text: str) -> bool:
    """Tell whether a text may be the key of a unit."""
    return _KEY.fullmatch(text) is not None


class KeyTable(Collection[str]):
    """Keys that are looked up, one by one or many at a time.

    >>> KeyTable(words_of(["0" * 32, "f" * 32])).find(words_of(["f" * 32, "a" * 32])).tolist()
    [1, -1]
    """

    def __init__(self, words: Words) -> None:
        self.words = words

    def __len__(self) -> int:
        return len(self.words)

    def __iter__(self) -> Iterator[str]:
        return text_of(self.words)

    def __contains__(self, key: object) -> bool:
        return self.place(key) >= 0

    def place(self, key: object) -> int:
        """Return the place of a key, -1 where it is not there."""
        return int(self.find(words_of([key]))[0]) if isinstance(key, str) and is_key(key) else -1

    def find(self, words: Words) -> NDArray[np.intp]:
        """Return the place of each key, the first where it is there several times, -1 where it is not."""
        order, first, second = self._sorted
        found = np.full(len(words), -1, dtype=np.intp)
        asked = np.argsort(words[:, 0])  # looked up in order, neighbours are near each other in memory
        at = np.searchsorted(first, words[asked, 0])
        while len(asked):  # once, unless keys begin with the same half
            inside = at < len(first)
            asked, at = asked[inside], at[inside]
            alike = first[at] == words[asked, 0]
            asked, at = asked[alike], at[alike]
            same = second[at] == words[asked, 1]
            found[asked[same]] = order[at[same]]
            asked, at = asked[~same], at[~same] + 1
        return found

    def is_first(self) -> NDArray[np.bool_]:
        """Tell of each key whether it is the first of several equal ones."""
        _, first, _ = self._sorted
        if not (first[1:] == first[:-1]).any():
            return np.ones(len(self), dtype=bool)
        return np.asarray(self.find(self.words) == np.arange(len(self)))

    @cached_property
    def _sorted(self) -> tuple[NDArray[np.intp], NDArray[np.uint64], NDArray[np.uint64]]:
        """The places of the keys in the order of their first halves, and both halves in that order."""
        order = np.argsort(self.words[:, 0], kind="stable")
        return order, self.words[order, 0], self.words[order, 1]
