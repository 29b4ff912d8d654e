"""Format numbers for people: three digits, a minus sign instead of a hyphen, a dash where a value is missing."""

from __future__ import annotations

import math

__all__ = [
    "MISSING",
    "finite",
    "format_count",
    "format_difference",
    "format_interval",
    "format_p",
    "format_percent",
    "format_probability",
    "format_score",
    "format_seconds",
    "minus_sign",
    "sort_key",
]

MISSING = "\N{EN DASH}"


def finite(value: float | None) -> float | None:
    """Return a number as a float, or None if it is missing, NaN or infinite."""
    return None if value is None or not math.isfinite(value) else float(value)


def sort_key(value: float | None) -> str:
    """Return the text by which the page's script sorts a number; empty where it is missing."""
    number = finite(value)
    return "" if number is None else repr(number)


def minus_sign(text: str) -> str:
    """Replace hyphens by minus signs."""
    return text.replace("-", "\N{MINUS SIGN}")


def format_score(value: float | None) -> str:
    """Format a score with three decimals, fewer for large values and exponent notation for tiny ones."""
    number = finite(value)
    if number is None:
        return MISSING
    size = abs(number)
    if 0 < size < 0.0005:
        return minus_sign(f"{number:.1e}")
    digits = 3 if size < 10 else 2 if size < 100 else 1
    return minus_sign(f"{round(number, digits) + 0.0:,.{digits}f}")


def format_difference(value: float | None) -> str:
    """Format a difference between scores, with its sign."""
    number = finite(value)
    return MISSING if number is None else f"{'+' if number > 0 else ''}{format_score(number)}"


def format_interval(low: float | None, high: float | None) -> str:
    """Format the bounds of an interval, as in ``0.100 to 0.250``."""
    return MISSING if finite(low) is None or finite(high) is None else f"{format_score(low)} to {format_score(high)}"


def format_count(value: float | None) -> str:
    """Format a number of passes or a rank, with one decimal for a fraction of a pass: 3, 12.5, 4,000."""
    number = finite(value)
    if number is None:
        return MISSING
    return f"{number:,.0f}" if number == round(number) or number >= 100 else f"{number:.1f}"


def format_seconds(value: float | None) -> str:
    """Format a duration in seconds: 0.004, 1.20, 35."""
    number = finite(value)
    if number is None:
        return MISSING
    return f"{number:.3f}" if number < 0.1 else f"{number:.2f}" if number < 10 else f"{number:,.0f}"


def format_percent(value: float | None) -> str:
    """Format a fraction as a percentage without decimals."""
    number = finite(value)
    return MISSING if number is None else f"{100 * number:.0f} %"


def format_probability(value: float | None) -> str:
    """Format a probability as a percentage with one decimal, and tiny ones as ``< 0.1 %``."""
    number = finite(value)
    if number is None:
        return MISSING
    return "< 0.1 %" if 0 < number < 0.001 else f"{100 * number:.1f} %"


def format_p(value: float | None) -> str:
    """Format a p-value, as in ``p = 0.012`` or ``p < 0.001``."""
    number = finite(value)
    if number is None:
        return MISSING
    return "p < 0.001" if number < 0.001 else f"p = {number:.3f}"
