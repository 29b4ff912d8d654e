"""Axes of the SVG charts: the plotting area, ticks, axis numbers, and the SVG element around a chart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from sightline.formatting import minus_sign

__all__ = ["Area", "axis_number", "log_ticks", "nice_range", "nice_ticks", "shorten", "svg", "tick_label"]


@dataclass(frozen=True)
class Area:
    """The plotting area of a chart in SVG units, and the values at its lower and upper edge."""

    left: float
    top: float
    right: float
    bottom: float
    low: float = 0.0
    high: float = 1.0

    def x(self, fraction: float) -> float:
        """Return the x coordinate of a fraction of the width, 0 to 1."""
        return self.left + fraction * (self.right - self.left)

    def y(self, value: float) -> float:
        """Return the y coordinate of a value, clipped to the range of the axis."""
        fraction = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.bottom - fraction * (self.bottom - self.top)

    def horizontal(self, y: float, opacity: float) -> str:
        """Return a horizontal grid line across the area."""
        return f'<path d="M{self.left:g} {y:.1f}H{self.right:g}" style="{_line_style(opacity)}"/>'

    def vertical(self, x: float, opacity: float, dash: str) -> str:
        """Return a dashed vertical line across the area."""
        style = f"{_line_style(opacity)};stroke-dasharray:{dash}"
        return f'<path d="M{x:.1f} {self.top:g}V{self.bottom:g}" style="{style}"/>'

    def x_tick(self, x: float, text: str, anchor: str = "middle") -> str:
        """Return a tick below the area, and its label."""
        tick = f'<path d="M{x:.1f} {self.bottom:g}v4" style="{_line_style(0.35)}"/>'
        return tick + tick_label(x, self.bottom + 18, text, anchor)

    def y_tick(self, y: float, text: str, gap: float = 8) -> str:
        """Return the label of a tick to the left of the area."""
        return tick_label(self.left - gap, y + 4, text, "end")


def svg(
    content: str,
    *,
    size: tuple[float, float],
    title: str,
    description: str,
    identifier: str,
    font_size: int = 12,
) -> str:
    """Return an SVG element with the title and the description that screen readers read out."""
    key = escape(identifier)
    return (
        f'<svg class="chart" role="img" viewBox="0 0 {size[0]:g} {size[1]:g}" width="100%" '
        f'aria-labelledby="{key}-t {key}-d" font-size="{font_size}" fill="currentColor">'
        f'<title id="{key}-t">{escape(title)}</title><desc id="{key}-d">{escape(description)}</desc>'
        f"{content}</svg>"
    )


def tick_label(x: float, y: float, text: str, anchor: str) -> str:
    """Return a text in the muted colour of axes."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" opacity=".75">{escape(text)}</text>'


def shorten(name: str, most: int) -> str:
    """Shorten a name to `most` characters by leaving out its middle: recipes differ at both ends."""
    first = round(0.6 * (most - 1))
    return name if len(name) <= most else f"{name[:first]}…{name[first + 1 - most :]}"


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round numbers between two others.

    >>> nice_ticks(0.0, 1.0)
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    raw = (high - low) / max(count - 1, 1)
    unit = 10.0 ** math.floor(math.log10(raw))
    step = unit * min((1, 2, 2.5, 5, 10), key=lambda factor: abs(factor * unit - raw))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(index * step, 12) + 0.0 for index in range(first, last + 1)]


def nice_range(values: Sequence[float], *, margin: float = 0.06) -> tuple[float, float]:
    """Return an axis range with a margin around the finite values; 0 to 1 where there are none."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return 0.0, 1.0
    low, high = min(finite), max(finite)
    room = margin * (high - low) or 0.5 * max(abs(high), 1e-3)
    return low - room, high + room


def log_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Return the ticks of a logarithmic axis: 1, 2, 5, 10 … where they are few, otherwise powers of ten."""
    start, stop = math.floor(math.log10(low)), math.ceil(math.log10(high))
    ticks: list[float] = []
    for factors in ((1, 2, 5), (1, 3), (1,)):
        every = [factor * 10.0**power for power in range(start, stop + 1) for factor in factors]
        ticks = [value for value in every if low * 0.999 <= value <= high * 1.001]
        if len(ticks) <= most:
            break
    return ticks


def axis_number(value: float) -> str:
    """Format the number of a tick: 0.25, 20, 5,000."""
    return minus_sign(f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}")


def _line_style(opacity: float) -> str:
    return f"stroke:currentColor;stroke-opacity:{opacity:g}"
