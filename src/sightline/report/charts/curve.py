"""Response curves as inline SVG, without scripts, fonts or other files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2s
from html import escape

from sightline.report.charts.axis import Area, shorten, svg

__all__ = ["SERIES", "line_chart"]

# Eight hues after Okabe and Ito, moved to a lightness that can be read on white and on near-black alike. A page may
# override each by the CSS variable --series-1 … --series-8.
SERIES = ("#0a78b8", "#d55e00", "#0b9268", "#b8559a", "#b07d00", "#5b6ee1", "#8a6d5a", "#6f7d1f")
_DASHES = ("", "7 4", "2 3", "9 3 2 3")
_LETTER = 6.6  # the average width of a letter at size 12, for laying out the legend without measuring text
_MARGIN = 14  # right of the plot


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
    """Return a line chart of response curves as one SVG element for an HTML page.

    Each curve spans the whole x axis, 0 to 100 %, in equal steps; the y axis is 0 to 1, and values outside are drawn on
    its edge. A NaN breaks the line. Names in `muted` are drawn in grey: the controls. `identifier` must differ
    between two equal charts of one page; without it the ids come from the content. `size` is the width of the drawing
    and the height of its plot.
    """
    width, plot_height = size
    top = 34 if title else 10
    area = Area(60 if y_label else 40, top, width - _MARGIN, top + plot_height)
    styles = _styles(list(curves), muted)
    legend, height = _legend(styles, area, width)
    heading = f'<text x="{area.left:g}" y="17" font-size="13" font-weight="600">{escape(title)}</text>'
    lines = "".join(_curve(values, styles[name], area) for name, values in curves.items())
    return svg(
        f"{heading}{_axes(area, width, x_label, y_label)}{lines}{legend}",
        size=(width, height),
        title=title or " and ".join(curves),
        description=_description(curves, x_label, y_label),
        identifier=identifier or _digest((title, x_label, y_label, dict(curves))),
    )


def _digest(content: object) -> str:
    return "chart-" + blake2s(repr(content).encode(errors="replace"), digest_size=6).hexdigest()


def _styles(names: Sequence[str], muted: Sequence[str]) -> dict[str, str]:
    """Give each curve a colour and a dash pattern; no pair repeats before all are used."""
    styles, coloured, grey = {}, 0, 0
    for name in names:
        if name in muted:
            dash, stroke, width, grey = _DASHES[1 + grey % 3], "var(--series-muted, #8b919c)", 1.5, grey + 1
        else:
            hue = coloured % len(SERIES)
            # A second round through the colours takes the next dash; neighbours alternate for those who see no hue.
            dash = _DASHES[(coloured // len(SERIES) * 2 + coloured % 2) % len(_DASHES)]
            stroke, width, coloured = f"var(--series-{hue + 1}, {SERIES[hue]})", 2.2, coloured + 1
        styles[name] = f"fill:none;stroke:{stroke};stroke-width:{width};stroke-dasharray:{dash or 'none'}"
    return styles


def _axes(area: Area, width: float, x_label: str, y_label: str) -> str:
    """Draw the grid, its numbers and the two axis labels."""
    parts = []
    for tick in (0.0, 0.5, 1.0) if width < 360 else (0.0, 0.25, 0.5, 0.75, 1.0):
        y = area.y(tick)
        parts += [
            area.horizontal(y, 0.35 if tick == 0 else 0.12),
            area.y_tick(y, f"{tick:g}"),
            area.x_tick(area.x(tick), f"{tick:.0%}", "end" if tick == 1 else "middle"),
        ]
    middle, centre = (area.top + area.bottom) / 2, area.x(0.5)
    labels = {f"translate({centre:g} {area.bottom + 36:g})": x_label, f"translate(14 {middle:g}) rotate(-90)": y_label}
    parts += [
        f'<text transform="{transform}" text-anchor="middle" opacity=".75">{escape(label)}</text>'
        for transform, label in labels.items()
        if label
    ]
    return "".join(parts)


def _curve(values: Sequence[float], style: str, area: Area) -> str:
    """Draw one curve; a single value becomes a horizontal line."""
    numbers = [float(value) for value in values]
    if len(numbers) == 1:
        numbers *= 2
    path, command = [], "M"
    for index, value in enumerate(numbers):
        if math.isnan(value):
            command = "M"
            continue
        path.append(f"{command}{area.x(index / (len(numbers) - 1)):.1f} {area.y(value):.1f}")
        command = "L"
    return f'<path d="{"".join(path)}" stroke-linejoin="round" style="{style}"/>' if path else ""


def _legend(styles: Mapping[str, str], area: Area, width: float) -> tuple[str, float]:
    """Draw the legend in as many rows as needed; return it with the height of the whole drawing."""
    parts, x, y = [], area.left, area.bottom + 60
    for name, style in styles.items():
        shown = shorten(name, 44)
        needed = 36 + _LETTER * len(shown) + 14
        if x > area.left and x + needed > width:
            x, y = area.left, y + 20
        parts.append(
            f'<path d="M{x:g} {y - 4:g}h26" style="{style}"/><text x="{x + 33:g}" y="{y:g}">{escape(shown)}</text>'
        )
        x += needed
    return "".join(parts), (y + 10 if styles else area.bottom + 46)


def _description(curves: Mapping[str, Sequence[float]], x_label: str, y_label: str) -> str:
    """Describe the chart in words, for screen readers."""
    lines = [f"{name} from {values[0]:.2f} to {values[-1]:.2f}" for name, values in curves.items() if len(values)]
    return f"{y_label or 'Curves'} against {x_label or 'steps'}. {'; '.join(lines) or 'No curves'}."
