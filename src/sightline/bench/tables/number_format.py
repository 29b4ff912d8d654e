"""Numbers as text, for people: four significant digits, and a dash for what is unknown.

Before they are cut they are rounded to twelve digits, so that a difference in the last bit does not show.
"""

from __future__ import annotations

import math

__all__ = ["UNKNOWN", "interval", "number", "p_value", "percent"]

DIGITS = 4
UNKNOWN = "–"


def number(value: float | None, digits: int = DIGITS) -> str:
    """Write a number with some significant digits, trailing zeros among them.

    >>> number(0.5), number(-0.00012345), number(12345.6), number(0.0), number(float("nan"))
    ('0.5000', '-0.0001234', '12346', '0', '–')
    """
    if value is None or math.isnan(value):
        return UNKNOWN
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    snapped = float(f"{value:.12g}") + 0.0
    if snapped == 0:
        return "0"
    if abs(snapped) >= 10**digits:
        return f"{snapped:.0f}" if abs(snapped) < 1e15 else f"{snapped:.{digits - 1}e}"
    text = f"{snapped:#.{digits}g}"
    return text.rstrip(".")


def p_value(value: float) -> str:
    """Write a p-value with two digits, very small ones as a bound."""
    if math.isnan(value):
        return UNKNOWN
    return "< 0.0001" if value < 0.0001 else f"{float(f'{value:.12g}'):.2g}"


def interval(low: float, high: float) -> str:
    """Write both ends of an interval."""
    return UNKNOWN if math.isnan(low) else f"[{number(low)}, {number(high)}]"


def percent(share: float) -> str:
    """Write a share in per cent, without the sign.

    >>> percent(0.95)
    '95'
    """
    return f"{100 * share:.6g}"
