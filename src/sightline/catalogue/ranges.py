"""Ranges of numeric options: what a number may be, declared once for every option of a name.

An option means the same wherever it appears, so that its range stands in one table (`COMMON`). A field that needs
another says so itself, ``tau: Annotated[float, Range(0, 2)] = 0.1``. The upper ends leave room for every use that
finishes within a day and within the memory of one machine. Numbers of options that nobody declares have to be finite
(`ANY`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

__all__ = ["ANY", "COMMON", "SHARE", "Range", "range_of"]


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers from `least` to `most`, both included; NaN and infinity are never among them."""

    least: float
    most: float

    def __str__(self) -> str:
        return f"between {_written(self.least)} and {_written(self.most)}"


ANY = Range(-1e9, 1e9)
SHARE = Range(0, 1)

_PIXELS = Range(1, 10_000)  # a length in the image
_LAYER = Range(-10_000, 10_000)  # an index; the model says which of them it has
_STRENGTH = Range(0, 1e6)  # a factor, a standard deviation in the units of the normalised image

COMMON: dict[str, Range] = {
    # how often something is done
    "steps": Range(1, 10_000),
    "samples": Range(1, 100_000),
    "count": Range(1, 100_000),
    "limit": Range(1, 1_000_000_000),
    "per_class": Range(1, 1_000_000_000),
    "per_step": Range(1, 10_000),
    "step": Range(1, 100_000_000),
    "levels": Range(2, 1000),
    "stages": Range(0, 1000),
    # random numbers
    "seed": Range(0, 2**63 - 1),
    # lengths in pixels and patches
    "blur": Range(1e-3, 1000),
    "cells": Range(1, 1000),
    "crop": _PIXELS,
    "radius": Range(0, 1000),
    "resize": _PIXELS,
    "side": _PIXELS,
    "sigma": Range(1e-3, 1000),
    "size": _PIXELS,
    "smallest": Range(1, 100_000_000),
    "stride": Range(0, 10_000),
    "window": Range(0, 10_000),
    # layers and classes
    "first": _LAYER,
    "last": _LAYER,
    "layer": _LAYER,
    "layers": _LAYER,
    "start": _LAYER,
    "classes": Range(0, 10_000_000),
    "other": Range(0, 10_000_000),
    # shares
    "area": SHARE,
    "areas": SHARE,
    "confidence": SHARE,
    "distance": SHARE,
    "fraction": SHARE,
    "fractions": SHARE,
    "gamma": SHARE,
    "kappa": SHARE,
    "least": SHARE,
    "minimum": SHARE,
    "percentiles": Range(0, 100),
    "ratio": SHARE,
    "share": SHARE,
    "smooth": SHARE,
    "tau": SHARE,
    "thresholds": SHARE,
    # strengths and values
    "alpha": _STRENGTH,
    "blank": Range(-1e6, 1e6),
    "factor": _STRENGTH,
    "noise": _STRENGTH,
    "temperatures": Range(1e-6, 1e6),
    "segments": Range(-100_000, 100_000),  # labels may be negative; how many there are is checked with them
    "threshold": ANY,  # in the units of a map
    "width": Range(1e-6, 1e6),
}


def range_of(option: str, hint: Any) -> Range:
    """Return the range of an option: that of its annotation, else that of its name, else `ANY`."""
    return next(_declared(hint), COMMON.get(option, ANY))


def _declared(hint: Any) -> Iterator[Range]:
    if get_origin(hint) is Annotated:
        yield from (each for each in hint.__metadata__ if isinstance(each, Range))
    for part in get_args(hint):
        yield from _declared(part)


def _written(number: float) -> str:
    return str(int(number)) if number == int(number) else f"{number:g}"
