"""The thousand classes of ImageNet: synsets in alphabetical order, which is the order of every model's output."""

from __future__ import annotations

from functools import cache
from pathlib import Path

__all__ = ["class_of_synset", "synsets"]


@cache
def synsets() -> tuple[str, ...]:
    """Return the synset (``n01440764``) of each class."""
    text = (Path(__file__).parent / "imagenet_synsets.txt").read_text(encoding="ascii")
    return tuple(text.split())


@cache
def _classes() -> dict[str, int]:
    return {synset: index for index, synset in enumerate(synsets())}


def class_of_synset(synset: str) -> int | None:
    """Return the class of a synset, None where it is not one of the thousand.

    >>> class_of_synset("n01443537")
    1
    """
    return _classes().get(synset)
