"""Charts of scores over the settings of a method, and a radar chart of methods over metrics, as SVG files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

from sightline.audit.figures.option_sweep import Sweep
from sightline.errors import InputError
from sightline.report.charts.curve import shorten
from sightline.report.figures.band_chart import Band, Chart, charts_document, colour_of, document

__all__ = ["radar_chart", "sweep_chart"]

_RADIUS, _CENTRE, _WORST = 150.0, (350.0, 220.0), 0.15


def sweep_chart(found: Sweep, *, title: str = "", x_label: str = "", ordered: bool = False) -> str:
    """Return a chart per metric: the mean score of every setting with its 95 % confidence interval over images.

    Args:
        found: what `sweep` returned.
        title: of the figure.
        x_label: what is varied.
        ordered: whether the settings have an order, as layers do; then they are joined by a line.
    """
    charts = [
        Chart(
            f"{metric} ({found.direction(metric)} is better)",
            [Band(metric, values, k)],
            list(found.recipes),
            not ordered,
        )
        for k, (metric, values) in enumerate(found.scores.items())
    ]
    return charts_document(charts, title=title, x_label=x_label, columns=min(3, len(charts)))


def radar_chart(found: Sweep, *, title: str = "") -> str:
    """Return a radar chart: an axis per metric, a polygon per recipe, further out being better.

    The best of the recipes lies on the rim of an axis and the worst near the centre; their numbers stand at the axis.

    Args:
        found: what `sweep` returned for several recipes and three metrics or more.
        title: of the figure.
    """
    means = found.means()
    if len(means) < 3:
        raise InputError(f"got {len(means)} metrics; a radar chart needs three axes at least")
    spokes = [_point(axis, 1.0, len(means)) for axis in range(len(means))]
    parts = [f'<text x="20" y="28" font-size="17">{escape(title)}</text>']
    for ring in (0.25, 0.5, 0.75, 1.0):
        path = "L".join(_text(_point(axis, ring, len(means))) for axis in range(len(means)))
        parts.append(f'<path d="M{path}Z" style="fill:none;stroke:currentColor;stroke-opacity:.15"/>')
    for (metric, values), (x, y) in zip(means.items(), spokes, strict=True):
        parts.append(_axis(metric, values, found.direction(metric), x, y))
    for k, name in enumerate(found.recipes):
        shares = [_share(values, name, found.direction(metric)) for metric, values in means.items()]
        path = "L".join(_text(_point(axis, share, len(means))) for axis, share in enumerate(shares))
        ink = colour_of(k)
        parts.append(f'<path d="M{path}Z" style="fill:{ink};fill-opacity:.12;stroke:{ink};stroke-width:2"/>')
        y = 430 + 20 * k
        parts.append(f'<path d="M20 {y - 4}h26" style="stroke:{ink};stroke-width:2.5"/>')
        parts.append(f'<text x="52" y="{y}">{escape(shorten(name, 60))}</text>')
    spoken = "; ".join(
        f"{metric}: {', '.join(f'{name} {value:.3f}' for name, value in values.items())}"
        for metric, values in means.items()
    )
    return document("".join(parts), (700, 440 + 20 * len(found.recipes)), title or "radar chart", spoken)


def _share(values: Mapping[str, float], name: str, direction: str) -> float:
    """Return how far out a recipe lies: 1 for the best; undefined scores count as the worst."""
    known = [value for value in values.values() if math.isfinite(value)]
    if not known or not math.isfinite(values[name]):
        return _WORST
    low, high = min(known), max(known)
    if high == low:
        return 1.0
    share = (values[name] - low) / (high - low)
    return _WORST + (1 - _WORST) * (1 - share if direction == "lower" else share)


def _axis(metric: str, values: Mapping[str, float], direction: str, x: float, y: float) -> str:
    """Draw an axis with the name of its metric and the worst and the best score."""
    known = sorted((value for value in values.values() if math.isfinite(value)), reverse=direction == "lower")
    span = f"{known[0]:.3g} to {known[-1]:.3g}" if known else "undefined"
    away = (_CENTRE[0] + (x - _CENTRE[0]) * 1.12, _CENTRE[1] + (y - _CENTRE[1]) * 1.14)
    anchor = "middle" if abs(x - _CENTRE[0]) < 20 else "start" if x > _CENTRE[0] else "end"
    line = f"M{_CENTRE[0]:g} {_CENTRE[1]:g}L{x:.1f} {y:.1f}"
    return (
        f'<path d="{line}" style="stroke:currentColor;stroke-opacity:.3"/>'
        f'<text x="{away[0]:.1f}" y="{away[1]:.1f}" text-anchor="{anchor}">{escape(shorten(metric, 26))}'
        f'<tspan x="{away[0]:.1f}" dy="14" font-size="10" opacity=".75">{escape(span)}</tspan></text>'
    )


def _point(axis: int, share: float, count: int) -> tuple[float, float]:
    angle = 2 * math.pi * axis / count - math.pi / 2
    return _CENTRE[0] + share * _RADIUS * math.cos(angle), _CENTRE[1] + share * _RADIUS * math.sin(angle)


def _text(point: tuple[float, float]) -> str:
    return f"{point[0]:.1f} {point[1]:.1f}"
