"""Numbers written for people: three digits, a real minus sign, a dash where there is none."""

from __future__ import annotations

import math

__all__ = ["MINUS", "NONE", "format_percent", "format_score"]

NONE = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"


def format_score(value: float | None) -> str:
    """Write a score with three digits after the point."""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{round(value, 3) + 0.0:.3f}".replace("-", MINUS)


def format_percent(value: float | None) -> str:
    """Write a probability in per cent."""
    if value is None or not math.isfinite(value):
        return NONE
    return "< 0.1 %" if 0 < value < 0.001 else f"{100 * value:.1f} %"
