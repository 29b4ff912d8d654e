"""Mean curves with their bands: what is known of a curve from the images it was measured on, as inline SVG."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from sightline.report.charts.axis import Area, axis_number, nice_range

__all__ = ["Band", "Stroke", "band_of", "band_panel", "is_walk", "walks"]

Floats = npt.NDArray[np.float64]
POINTS = 41  # of a curve as it is drawn: one per 2.5 %


@dataclass(frozen=True, eq=False)
class Band:
    """A mean curve over 0 to 100 %, with a 95 % interval of the mean at each point.

    Attributes:
        count: how many images it is the mean of.
    """

    mean: Floats
    low: Floats
    high: Floats
    count: int


@dataclass(frozen=True, eq=False)
class Stroke:
    """A band of a panel: `slot` is its colour, 1 to 8, or 0 for the grey of a control, drawn without its band."""

    band: Band
    slot: int


def band_of(curves: Iterable[Sequence[float] | Floats | None], points: int = POINTS) -> Band | None:
    """Average curves, each spread over 0 to 100 %; None where no curve is whole.

    .. math:: \\bar{y} \\pm t_{n-1}\\, s / \\sqrt{n}
    """
    from scipy.stats import t

    grid = np.linspace(0, 1, points)
    each = [_spread(curve, grid) for curve in curves if curve is not None and len(curve) > 1]
    whole = [curve for curve in each if np.isfinite(curve).all()]
    if not whole:
        return None
    stack = np.stack(whole)
    mean = stack.mean(axis=0)
    if len(stack) == 1:
        return Band(mean, mean, mean, 1)
    half = t.ppf(0.975, len(stack) - 1) * stack.std(axis=0, ddof=1) / np.sqrt(len(stack))
    return Band(mean, mean - half, mean + half, len(stack))


def _spread(curve: Any, grid: Floats) -> Floats:
    values = np.asarray(curve, dtype=np.float64)
    return np.asarray(np.interp(grid, np.linspace(0, 1, len(values)), values), dtype=np.float64)


def is_walk(metric: str) -> bool:
    """Tell whether a metric's curve is a response to pixels shown or removed step by step, of one kind."""
    name = metric.partition("(")[0]
    return ("insertion" in name) != ("deletion" in name)


def walks(metrics: Iterable[str]) -> dict[str, list[str]]:
    """Group the metrics that walk from blank to image and from image to blank in the same way.

    >>> walks(["insertion", "deletion", "iou", "insertion_mda"])
    {'insertion and deletion': ['insertion', 'deletion'], 'insertion_mda': ['insertion_mda']}
    """
    groups: dict[str, list[str]] = {}
    for metric in filter(is_walk, metrics):
        name, _, options = metric.partition("(")
        groups.setdefault(f"{name.replace('insertion', '*').replace('deletion', '*')}({options}", []).append(metric)
    return {" and ".join(group): group for group in groups.values()}


def value_range(bands: Iterable[Band]) -> tuple[float, float]:
    """Return the range of the y axis: 0 to 1 where all curves lie within, else what they need."""
    ends = [float(end) for band in bands for end in (band.mean.min(), band.mean.max())]
    return (0.0, 1.0) if ends and min(ends) >= -1e-9 and max(ends) <= 1 + 1e-9 else nice_range(ends)


def band_panel(
    strokes: Mapping[str, Stroke], *, title: str, span: tuple[float, float] = (0.0, 1.0), identifier: str = "band"
) -> str:
    """Return a small chart of a few mean curves with their bands as one SVG element."""
    area = Area(34, 8, 232, 118, *span)
    key = escape(identifier)
    told = "; ".join(f"{name} from {s.band.mean[0]:.2f} to {s.band.mean[-1]:.2f}" for name, s in strokes.items())
    return "".join(
        (
            f'<svg class="chart" role="img" viewBox="0 0 240 138" width="100%" aria-labelledby="{key}-t {key}-d" '
            'font-size="11" fill="currentColor">',
            f'<title id="{key}-t">{escape(title)}</title><desc id="{key}-d">{escape(told)}</desc>',
            _axes(area),
            *(_ribbon(stroke, area) for stroke in strokes.values() if stroke.slot),
            *(_line(stroke, area) for stroke in sorted(strokes.values(), key=lambda stroke: stroke.slot > 0)),
            "</svg>",
        )
    )


def _axes(area: Area) -> str:
    parts = []
    for value in (area.low, (area.low + area.high) / 2, area.high):
        y, strength = area.y(value), 0.35 if value == area.low else 0.12
        parts.append(
            f'<path d="M{area.left:g} {y:.1f}H{area.right:g}" style="stroke:currentColor;stroke-opacity:{strength}"/>'
        )
        number = axis_number(round(value, 2))
        parts.append(f'<text x="{area.left - 5:g}" y="{y + 4:.1f}" text-anchor="end" opacity=".7">{number}</text>')
    for share, anchor in ((0, "start"), (0.5, "middle"), (1, "end")):
        x = area.x(share)
        parts.append(f'<text x="{x:g}" y="133" text-anchor="{anchor}" opacity=".7">{share:.0%}</text>')
    return "".join(parts)


def _ribbon(stroke: Stroke, area: Area) -> str:
    band = stroke.band
    if not np.any(band.high > band.low):
        return ""
    upper = _points(band.high, area)
    lower = list(reversed(_points(band.low, area)))
    return f'<path d="M{"L".join([*upper, *lower])}Z" style="fill:var(--series-{stroke.slot});opacity:.22"/>'


def _line(stroke: Stroke, area: Area) -> str:
    colour = f"var(--series-{stroke.slot})" if stroke.slot else "var(--series-muted)"
    dash = "" if stroke.slot else ";stroke-dasharray:3 3"
    width = 2 if stroke.slot else 1.3
    path = "L".join(_points(stroke.band.mean, area))
    return f'<path d="M{path}" style="fill:none;stroke:{colour};stroke-width:{width}{dash}" stroke-linejoin="round"/>'


def _points(values: Floats, area: Area) -> list[str]:
    last = len(values) - 1
    return [f"{area.x(place / last):.1f} {area.y(float(value)):.1f}" for place, value in enumerate(values)]
