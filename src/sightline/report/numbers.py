"""Write numbers for people: three digits, a real minus sign, a dash where there is none."""

from __future__ import annotations

import math

__all__ = ["NONE", "chance", "count", "figure", "finite", "interval", "seconds", "share", "signed"]

NONE = "\N{EN DASH}"
_MINUS = "\N{MINUS SIGN}"


def finite(value: float | None) -> float | None:
    """Return a number, or None for one that is missing, NaN or infinite."""
    return None if value is None or not math.isfinite(value) else float(value)


def figure(value: float | None) -> str:
    """Write a score: three digits after the point, fewer for large numbers, more for tiny ones."""
    number = finite(value)
    if number is None:
        return NONE
    size = abs(number)
    if 0 < size < 0.0005:
        return f"{number:.1e}".replace("-", _MINUS)
    digits = 3 if size < 10 else 2 if size < 100 else 1
    return f"{round(number, digits) + 0.0:,.{digits}f}".replace("-", _MINUS)


def signed(value: float | None) -> str:
    """Write a difference, with its sign."""
    number = finite(value)
    return NONE if number is None else f"{'+' if number > 0 else ''}{figure(number)}"


def interval(low: float | None, high: float | None) -> str:
    """Write the two ends of an interval."""
    return NONE if finite(low) is None or finite(high) is None else f"{figure(low)} to {figure(high)}"


def count(value: float | None) -> str:
    """Write a count of passes, with one digit where a part of the model ran: 3, 12.5, 4,000."""
    number = finite(value)
    if number is None:
        return NONE
    return f"{number:,.0f}" if number == round(number) or number >= 100 else f"{number:.1f}"


def seconds(value: float | None) -> str:
    """Write a time: 0.004, 1.20, 35."""
    number = finite(value)
    if number is None:
        return NONE
    return f"{number:.3f}" if number < 0.1 else f"{number:.2f}" if number < 10 else f"{number:,.0f}"


def share(value: float | None) -> str:
    """Write a share in per cent."""
    number = finite(value)
    return NONE if number is None else f"{100 * number:.0f} %"


def chance(value: float | None) -> str:
    """Write a p value."""
    number = finite(value)
    if number is None:
        return NONE
    return "p < 0.001" if number < 0.001 else f"p = {number:.3f}"
