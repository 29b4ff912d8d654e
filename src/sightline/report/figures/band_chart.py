"""Curves with 95 % confidence bands over images, several charts side by side, as one SVG file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from sightline.errors import InputError
from sightline.report.charts.curve import SERIES, Area, axis_number, nice_range, nice_ticks, shorten, svg, tick_label
from sightline.report.charts.mean_curve import MeanCurve, mean_curve
from sightline.report.layout import INK, PAPER

__all__ = ["Band", "Chart", "charts_document", "document"]

_WIDE, _HIGH = 320, 250
_LETTER, _LEGEND = 6.6, 20


@dataclass(frozen=True, eq=False)
class Band:
    """One curve of a chart.

    Attributes:
        name: in the legend.
        values: (image, point); rows with NaN are left out of the mean.
        colour: which of the eight colours, from 0.
        dashed: draw the line dashed.
    """

    name: str
    values: npt.NDArray[np.float64]
    colour: int = 0
    dashed: bool = False

    @property
    def mean(self) -> MeanCurve:
        """The mean over images and its 95 % confidence interval at each point."""
        found = mean_curve(list(self.values), points=self.values.shape[1])
        if found is None:
            raise InputError(f"{self.name} has no image with a number at every point, so there is no mean to draw")
        return found


@dataclass(frozen=True, eq=False)
class Chart:
    """A chart of curves over the same points.

    Attributes:
        title: above the chart.
        bands: the curves.
        ticks: what each point of the x axis is called.
        points: draw dots with whiskers instead of lines with bands, for points that have no order.
    """

    title: str
    bands: Sequence[Band]
    ticks: Sequence[str]
    points: bool = False


def charts_document(charts: Sequence[Chart], *, title: str, x_label: str, columns: int = 2) -> str:
    """Return charts side by side with one legend, as the text of an SVG file."""
    if not charts or not all(chart.bands for chart in charts):
        raise InputError("got no curve for a chart; give every chart one at least")
    columns = min(columns, len(charts))
    parts = [f'<text x="20" y="28" font-size="17">{escape(title)}</text>']
    for index, chart in enumerate(charts):
        place = (index % columns * _WIDE, 40 + index // columns * _HIGH)
        parts.append(f'<g transform="translate({place[0]} {place[1]})">{_chart(chart, x_label)}</g>')
    upper = 40 + -(-len(charts) // columns) * _HIGH + 10
    names = {band.name: band for chart in charts for band in chart.bands}
    legend, lower = _legend(list(names.values()), columns * _WIDE, upper)
    spoken = "; ".join(f"{chart.title}: {_spoken(band)}" for chart in charts for band in chart.bands)
    return document("".join(parts) + legend, (columns * _WIDE, lower), title or charts[0].title, spoken)


def document(content: str, size: tuple[float, float], title: str, description: str) -> str:
    """Return the text of an SVG file: dark on white, whatever shows it."""
    ground = f'<rect width="{size[0]:g}" height="{size[1]:g}" style="fill:{PAPER}"/>'
    text = svg(ground + content, size=size, title=title, description=description, identifier="figure")
    head = f'<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" color="{INK}"'
    return text.replace('<svg class="chart"', head, 1).replace('width="100%"', f'width="{size[0]:g}"', 1)


def colour_of(index: int) -> str:
    """Return one of the eight colours of charts, the first again after the last."""
    return SERIES[index % len(SERIES)]


def _chart(chart: Chart, x_label: str) -> str:
    """Draw one chart into a box of _WIDE by _HIGH."""
    means = [(band, band.mean) for band in chart.bands]
    ends = [float(value) for _, mean in means for value in (mean.low.min(), mean.high.max())]
    low, high = nice_range(ends)
    area = Area(52, 26, _WIDE - 26, _HIGH - 50, low, high)
    parts = [f'<text x="{area.left:g}" y="14" font-size="13">{escape(chart.title)}</text>']
    for tick in nice_ticks(low, high):
        parts += [area.horizontal(area.y(tick), 0.12), area.y_tick(area.y(tick), axis_number(tick))]
    parts += [area.x_tick(x, name) for x, name in zip(_places(chart, area), chart.ticks, strict=True) if name]
    parts.append(tick_label(area.x(0.5), area.bottom + 36, x_label, "middle"))
    draw = _dots if chart.points else _line
    parts += [draw(band, mean, _places(chart, area), area) for band, mean in means]
    return "".join(parts)


def _places(chart: Chart, area: Area) -> list[float]:
    """Return the x coordinate of each point; dots keep away from the edges."""
    count = len(chart.ticks)
    if chart.points:
        return [area.x((point + 0.5) / count) for point in range(count)]
    return [area.x(point / max(count - 1, 1)) for point in range(count)]


def _line(band: Band, mean: MeanCurve, places: Sequence[float], area: Area) -> str:
    ink, dash = colour_of(band.colour), ";stroke-dasharray:6 4" if band.dashed else ""
    upper, lower = _path(places, mean.high, area), _path(places, mean.low, area)[::-1]
    band_path = f'<path d="M{"L".join([*upper, *lower])}Z" style="fill:{ink};opacity:.18"/>' if mean.count > 1 else ""
    line = "L".join(_path(places, mean.mean, area))
    return f'{band_path}<path d="M{line}" style="fill:none;stroke:{ink};stroke-width:2{dash}"/>'


def _dots(band: Band, mean: MeanCurve, places: Sequence[float], area: Area) -> str:
    ink = colour_of(band.colour)
    return "".join(
        f'<path d="M{x:.1f} {area.y(float(low)):.1f}V{area.y(float(high)):.1f}" style="stroke:{ink};stroke-width:1.5"/>'
        f'<circle cx="{x:.1f}" cy="{area.y(float(middle)):.1f}" r="4" style="fill:{ink}"/>'
        for x, middle, low, high in zip(places, mean.mean, mean.low, mean.high, strict=True)
    )


def _path(places: Sequence[float], values: Any, area: Area) -> list[str]:
    return [f"{x:.1f} {area.y(float(value)):.1f}" for x, value in zip(places, values, strict=True)]


def _legend(bands: Sequence[Band], width: float, upper: float) -> tuple[str, float]:
    """Draw the names of the curves in rows; return them with the height of the whole drawing."""
    parts, x, y = [], 20.0, upper
    for band in bands:
        name = shorten(band.name, 60)
        needed = 34 + _LETTER * len(name) + 16
        if x > 20 and x + needed > width:
            x, y = 20.0, y + _LEGEND
        dash = ";stroke-dasharray:6 4" if band.dashed else ""
        style = f"fill:none;stroke:{colour_of(band.colour)};stroke-width:2.5{dash}"
        parts.append(
            f'<path d="M{x:g} {y - 4:g}h26" style="{style}"/><text x="{x + 32:g}" y="{y:g}">{escape(name)}</text>'
        )
        x += needed
    return "".join(parts), y + 20


def _spoken(band: Band) -> str:
    mean = band.mean
    return f"{band.name} from {mean.mean[0]:.2f} to {mean.mean[-1]:.2f}, {mean.count} images"
