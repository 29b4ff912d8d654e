"""Ticks, numbers and plotting areas that the charts of the benchmark page share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Area", "axis_number", "nice_range", "nice_ticks", "power_ticks"]


@dataclass(frozen=True)
class Area:
    """Where a plot lies inside its drawing, in SVG units, and the values at its lower and upper edge."""

    left: float
    top: float
    right: float
    bottom: float
    low: float = 0.0
    high: float = 1.0

    def x(self, share: float) -> float:
        """Return the place of a share of the width, 0 to 1."""
        return self.left + share * (self.right - self.left)

    def y(self, value: float) -> float:
        """Return the height of a value; what lies outside the range is put on its edge."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.bottom - share * (self.bottom - self.top)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round numbers between two others.

    >>> nice_ticks(0.0, 1.0)
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    span = high - low
    raw = span / max(count - 1, 1)
    unit = 10.0 ** math.floor(math.log10(raw))
    step = unit * min((factor for factor in (1, 2, 2.5, 5, 10)), key=lambda factor: abs(factor * unit - raw))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(place * step, 12) + 0.0 for place in range(first, last + 1)]


def nice_range(values: Sequence[float], *, share: float = 0.06) -> tuple[float, float]:
    """Return a range with some room around finite values; 0 to 1 where there are none, never an empty one."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return 0.0, 1.0
    low, high = min(finite), max(finite)
    room = share * (high - low) or 0.5 * max(abs(high), 1e-3)
    return low - room, high + room


def power_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Return round numbers for a logarithmic axis: 1, 2, 5, 10 … where few powers of ten fit, powers of ten else."""
    start, stop = math.floor(math.log10(low)), math.ceil(math.log10(high))
    found: list[float] = []
    for factors in ((1, 2, 5), (1, 3), (1,)):
        every = [factor * 10.0**power for power in range(start, stop + 1) for factor in factors]
        found = [value for value in every if low * 0.999 <= value <= high * 1.001]
        if len(found) <= most:
            break
    return found


def axis_number(value: float) -> str:
    """Write a number at an axis: 0.25, 20, 5,000."""
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return text.replace("-", "\N{MINUS SIGN}")
