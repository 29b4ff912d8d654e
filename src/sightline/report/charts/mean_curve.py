"""Mean response curves with 95 % confidence bands over images, as inline SVG."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sightline.report.charts.curve import Area, axis_number, nice_range, svg, tick_label

__all__ = [
    "MeanCurve",
    "Series",
    "group_insertion_deletion",
    "is_insertion_or_deletion",
    "mean_curve",
    "mean_curve_chart",
    "y_range",
]

Floats = npt.NDArray[np.float64]
POINTS = 41  # of a curve as it is drawn: one per 2.5 %
SIZE = (240, 138)


@dataclass(frozen=True, eq=False)
class MeanCurve:
    """The mean of response curves over images, with the bounds of its 95 % confidence interval at each point.

    Attributes:
        count: how many images it is the mean of.
    """

    mean: Floats
    low: Floats
    high: Floats
    count: int


@dataclass(frozen=True, eq=False)
class Series:
    """A curve of a chart and its colour: 1 to 8, or 0 for a control, drawn grey and without its band."""

    curve: MeanCurve
    colour: int


def mean_curve(curves: Iterable[Sequence[float] | Floats | None], points: int = POINTS) -> MeanCurve | None:
    """Average curves after resampling each to `points`; None where no curve is complete.

    .. math:: \\bar{y} \\pm t_{n-1}\\, s / \\sqrt{n}
    """
    from scipy.stats import t

    grid = np.linspace(0, 1, points)
    resampled = [_resample(curve, grid) for curve in curves if curve is not None and len(curve) > 1]
    complete = [curve for curve in resampled if np.isfinite(curve).all()]
    if not complete:
        return None
    stack = np.stack(complete)
    mean = stack.mean(axis=0)
    if len(stack) == 1:
        return MeanCurve(mean, mean, mean, 1)
    half_width = t.ppf(0.975, len(stack) - 1) * stack.std(axis=0, ddof=1) / np.sqrt(len(stack))
    return MeanCurve(mean, mean - half_width, mean + half_width, len(stack))


def _resample(curve: Any, grid: Floats) -> Floats:
    values = np.asarray(curve, dtype=np.float64)
    return np.asarray(np.interp(grid, np.linspace(0, 1, len(values)), values), dtype=np.float64)


def is_insertion_or_deletion(metric: str) -> bool:
    """Tell whether a metric's curve is the response to pixels inserted, or deleted, step by step."""
    name = metric.partition("(")[0]
    return ("insertion" in name) != ("deletion" in name)


def group_insertion_deletion(metrics: Iterable[str]) -> dict[str, list[str]]:
    """Group each insertion metric with the deletion metric of the same kind and options.

    >>> group_insertion_deletion(["insertion", "deletion", "iou", "insertion_mda"])
    {'insertion and deletion': ['insertion', 'deletion'], 'insertion_mda': ['insertion_mda']}
    """
    groups: dict[str, list[str]] = {}
    for metric in filter(is_insertion_or_deletion, metrics):
        name, _, options = metric.partition("(")
        groups.setdefault(f"{name.replace('insertion', '*').replace('deletion', '*')}({options}", []).append(metric)
    return {" and ".join(group): group for group in groups.values()}


def y_range(curves: Iterable[MeanCurve]) -> tuple[float, float]:
    """Return the range of the y axis: 0 to 1 where all curves lie within, otherwise what they need."""
    extremes = [float(value) for curve in curves for value in (curve.mean.min(), curve.mean.max())]
    within = extremes and min(extremes) >= -1e-9 and max(extremes) <= 1 + 1e-9
    return (0.0, 1.0) if within else nice_range(extremes)


def mean_curve_chart(
    series: Mapping[str, Series], *, title: str, span: tuple[float, float] = (0.0, 1.0), identifier: str = "band"
) -> str:
    """Return a small chart of a few mean curves with their confidence bands as one SVG element."""
    area = Area(34, 8, 232, 118, *span)
    ends = {name: (drawn.curve.mean[0], drawn.curve.mean[-1]) for name, drawn in series.items()}
    return svg(
        "".join(
            (
                _axes(area),
                *(_band(drawn, area) for drawn in series.values() if drawn.colour),
                *(_line(drawn, area) for drawn in sorted(series.values(), key=lambda drawn: drawn.colour > 0)),
            )
        ),
        size=SIZE,
        title=title,
        description="; ".join(f"{name} from {first:.2f} to {last:.2f}" for name, (first, last) in ends.items()),
        identifier=identifier,
        font_size=11,
    )


def _axes(area: Area) -> str:
    parts = []
    for value in (area.low, (area.low + area.high) / 2, area.high):
        y = area.y(value)
        parts.append(area.horizontal(y, 0.35 if value == area.low else 0.12))
        parts.append(area.y_tick(y, axis_number(round(value, 2)), gap=5))
    for fraction, anchor in ((0, "start"), (0.5, "middle"), (1, "end")):
        parts.append(tick_label(area.x(fraction), 133, f"{fraction:.0%}", anchor))
    return "".join(parts)


def _band(series: Series, area: Area) -> str:
    curve = series.curve
    if not np.any(curve.high > curve.low):
        return ""
    upper = _points(curve.high, area)
    lower = list(reversed(_points(curve.low, area)))
    return f'<path d="M{"L".join([*upper, *lower])}Z" style="fill:var(--series-{series.colour});opacity:.22"/>'


def _line(series: Series, area: Area) -> str:
    colour = f"var(--series-{series.colour})" if series.colour else "var(--series-muted)"
    dash = "" if series.colour else ";stroke-dasharray:3 3"
    width = 2 if series.colour else 1.3
    path = "L".join(_points(series.curve.mean, area))
    return f'<path d="M{path}" style="fill:none;stroke:{colour};stroke-width:{width}{dash}" stroke-linejoin="round"/>'


def _points(values: Floats, area: Area) -> list[str]:
    last = len(values) - 1
    return [f"{area.x(index / last):.1f} {area.y(float(value)):.1f}" for index, value in enumerate(values)]
