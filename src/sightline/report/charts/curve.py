"""Response curves as inline SVG, without scripts, fonts or other files, and the axes that every chart has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2s
from html import escape

from sightline.formatting import minus_sign

__all__ = [
    "SERIES",
    "Area",
    "axis_number",
    "line_chart",
    "log_ticks",
    "nice_range",
    "nice_ticks",
    "shorten",
    "svg",
    "tick_label",
]

# ---- axes -----------------------------------------------------------------------------------------------------------


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


# ---- curves ---------------------------------------------------------------------------------------------------------


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
