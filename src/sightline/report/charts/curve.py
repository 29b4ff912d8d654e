"""Draw response curves as inline SVG: no script, no font, no file besides the text itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2s
from html import escape

__all__ = ["SERIES", "line_chart"]

# Eight hues after Okabe and Ito, moved to a lightness that can be read on white and on near-black alike. A page may
# override each by the CSS variable --series-1 … --series-8.
SERIES = ("#0a78b8", "#d55e00", "#0b9268", "#b8559a", "#b07d00", "#5b6ee1", "#8a6d5a", "#6f7d1f")
_DASHES = ("", "7 4", "2 3", "9 3 2 3")
_LETTER = 6.6  # the average width of a letter at size 12, for laying out the legend without measuring text


@dataclass(frozen=True)
class _Frame:
    """Where the plot lies inside the drawing, in SVG units."""

    width: float
    plot_height: float
    top: float
    left: float
    right: float = 14

    @property
    def ticks(self) -> tuple[float, ...]:
        return (0.0, 0.5, 1.0) if self.width < 360 else (0.0, 0.25, 0.5, 0.75, 1.0)

    @property
    def bottom(self) -> float:
        return self.top + self.plot_height

    def x(self, share: float) -> float:
        return self.left + share * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        return self.bottom - min(max(value, 0.0), 1.0) * self.plot_height


def line_chart(
    curves: Mapping[str, Sequence[float]],
    *,
    x_label: str,
    y_label: str,
    title: str,
    muted: Sequence[str] = (),
    size: tuple[float, float] = (480, 200),
    identifier: str = "",
) -> str:
    """Return the curves as one SVG element to be placed in an HTML page.

    Each curve runs over the whole x axis, 0 to 100 %, in equal steps; the y axis is 0 to 1, and what lies outside is
    drawn on its edge. A NaN breaks the line. Names in `muted` are drawn in grey: the controls. `identifier` must differ
    between two equal charts of one page; without it the ids come from the content. `size` is the width of the drawing
    and the height of its plot.
    """
    frame = _Frame(*size, top=34 if title else 10, left=60 if y_label else 40)
    key = escape(identifier or _digest((title, x_label, y_label, dict(curves))))
    styles = _styles(list(curves), muted)
    legend, height = _legend(styles, frame)
    return "".join(
        (
            f'<svg class="chart" role="img" viewBox="0 0 {frame.width:g} {height:g}" width="100%" '
            f'aria-labelledby="{key}-t {key}-d" font-size="12" fill="currentColor">',
            f'<title id="{key}-t">{escape(title or " and ".join(curves))}</title>',
            f'<desc id="{key}-d">{escape(_description(curves, x_label, y_label))}</desc>',
            f'<text x="{frame.left:g}" y="17" font-size="13" font-weight="600">{escape(title)}</text>',
            _axes(frame, x_label, y_label),
            *(_curve(values, styles[name], frame) for name, values in curves.items()),
            legend,
            "</svg>",
        )
    )


def _digest(content: object) -> str:
    return "chart-" + blake2s(repr(content).encode(errors="replace"), digest_size=6).hexdigest()


def _styles(names: Sequence[str], muted: Sequence[str]) -> dict[str, str]:
    """Give each curve a colour and a dash, so that no two look alike before all pairs are used up."""
    styles, bright, grey = {}, 0, 0
    for name in names:
        if name in muted:
            dash, stroke, width, grey = _DASHES[1 + grey % 3], "var(--series-muted, #8b919c)", 1.5, grey + 1
        else:
            slot = bright % len(SERIES)
            # A second round through the colours takes the next dash; neighbours alternate for those who see no hue.
            dash = _DASHES[(bright // len(SERIES) * 2 + bright % 2) % len(_DASHES)]
            stroke, width, bright = f"var(--series-{slot + 1}, {SERIES[slot]})", 2.2, bright + 1
        styles[name] = f"fill:none;stroke:{stroke};stroke-width:{width};stroke-dasharray:{dash or 'none'}"
    return styles


def _axes(frame: _Frame, x_label: str, y_label: str) -> str:
    """Draw the grid, its numbers and the two labels."""
    line = "stroke:currentColor;stroke-width:1;stroke-opacity:"
    parts = []
    for tick in frame.ticks:
        x, y = frame.x(tick), frame.y(tick)
        anchor, strength = "end" if tick == 1 else "middle", 0.35 if tick == 0 else 0.12
        parts += [
            f'<path d="M{frame.left:g} {y:g}H{frame.width - frame.right:g}" style="{line}{strength}"/>',
            f'<text x="{frame.left - 8:g}" y="{y + 4:g}" text-anchor="end" opacity=".75">{tick:g}</text>',
            f'<path d="M{x:g} {frame.bottom:g}v4" style="{line}0.35"/>',
            f'<text x="{x:g}" y="{frame.bottom + 18:g}" text-anchor="{anchor}" opacity=".75">{tick:.0%}</text>',
        ]
    middle, centre = frame.top + frame.plot_height / 2, frame.x(0.5)
    places = {f"translate({centre:g} {frame.bottom + 36:g})": x_label, f"translate(14 {middle:g}) rotate(-90)": y_label}
    parts += [
        f'<text transform="{place}" text-anchor="middle" opacity=".75">{escape(label)}</text>'
        for place, label in places.items()
        if label
    ]
    return "".join(parts)


def _curve(values: Sequence[float], style: str, frame: _Frame) -> str:
    """Draw one curve; a single value becomes a level line."""
    numbers = [float(value) for value in values]
    if len(numbers) == 1:
        numbers *= 2
    path, pen = [], "M"
    for index, value in enumerate(numbers):
        if math.isnan(value):
            pen = "M"
            continue
        path.append(f"{pen}{frame.x(index / (len(numbers) - 1)):.1f} {frame.y(value):.1f}")
        pen = "L"
    return f'<path d="{"".join(path)}" stroke-linejoin="round" style="{style}"/>' if path else ""


def _legend(styles: Mapping[str, str], frame: _Frame) -> tuple[str, float]:
    """Draw a line and a name per curve in as many rows as needed, and return the height of the whole drawing too."""
    parts, x, y = [], frame.left, frame.bottom + 60
    for name, style in styles.items():
        shown = name if len(name) <= 44 else f"{name[:24]}…{name[-19:]}"
        width = 36 + _LETTER * len(shown) + 14
        if x > frame.left and x + width > frame.width:
            x, y = frame.left, y + 20
        parts.append(
            f'<path d="M{x:g} {y - 4:g}h26" style="{style}"/><text x="{x + 33:g}" y="{y:g}">{escape(shown)}</text>'
        )
        x += width
    return "".join(parts), (y + 10 if styles else frame.bottom + 46)


def _description(curves: Mapping[str, Sequence[float]], x_label: str, y_label: str) -> str:
    """Say the chart in words, for those who hear it."""
    lines = [f"{name} from {values[0]:.2f} to {values[-1]:.2f}" for name, values in curves.items() if len(values)]
    return f"{y_label or 'Curves'} against {x_label or 'steps'}. {'; '.join(lines) or 'No curves'}."
