"""Score against model passes, the cost of a method, as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from sightline.report.charts.curve import Area, axis_number, log_ticks, nice_range, nice_ticks, shorten, svg, tick_label

__all__ = ["Point", "cost_chart", "pareto_front"]

_LETTER, _LINE = 6.4, 14.0  # width and height of a letter at size 12, for keeping labels apart without measuring
_RADIUS = 8.5

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Point:
    """One method on one metric: its score with a confidence interval, and its cost.

    Attributes:
        name: its recipe.
        rank: the text inside the marker.
        passes: forward and backward passes per image; 0 for maps that never run the model.
    """

    name: str
    rank: str
    passes: float
    value: float
    low: float
    high: float
    control: bool = False


@dataclass(frozen=True)
class _Marker:
    """A point with its coordinates; `low` and `high` are those of its interval."""

    point: Point
    x: float
    y: float
    low: float
    high: float

    @property
    def box(self) -> Box:
        return self.x - _RADIUS, self.y - _RADIUS, self.x + _RADIUS, self.y + _RADIUS

    @property
    def interval_box(self) -> Box:
        return self.x - 2, self.high, self.x + 2, self.low


@dataclass(frozen=True)
class _LogScale:
    """The logarithmic x axis, with a separate position for maps without any pass."""

    first: float
    last: float
    zero: bool

    @classmethod
    def of(cls, passes: Sequence[float]) -> _LogScale:
        positive = [value for value in passes if value > 0]
        low, high = (min(positive), max(positive)) if positive else (1.0, 10.0)
        if high / low < 4:
            low, high = low / 2, high * 2
        return cls(low / 1.25, high * 1.25, any(value <= 0 for value in passes))

    @property
    def start(self) -> float:
        return 0.16 if self.zero else 0.0

    def fraction(self, passes: float) -> float:
        if passes <= 0:
            return self.start / 2.6
        span = math.log(self.last / self.first)
        return self.start + (1 - self.start) * math.log(passes / self.first) / span


def cost_chart(
    points: Sequence[Point],
    *,
    title: str,
    y_label: str,
    higher: bool,
    size: tuple[float, float] = (760, 400),
    names: bool = True,
    identifier: str = "cost",
) -> str:
    """Return a scatter plot of score against passes as one SVG element, with an interval per method.

    The passes are on a logarithmic axis; methods at the same position are set side by side so that each interval can be
    seen. Names are written where there is room. The line is the Pareto front: methods that no cheaper one beats.
    """
    scored = [point for point in points if math.isfinite(point.value)]
    if not scored:
        return ""
    low, high = nice_range([value for point in scored for value in (point.value, point.low, point.high)])
    area = Area(56, 30, size[0] - 18, size[1] - 46, low, high)
    scale = _LogScale.of([point.passes for point in scored])
    markers = _place_markers(scored, area, scale)
    return svg(
        "".join(
            (
                _axes(area, scale, y_label, higher),
                _front_line(markers, higher),
                *map(_interval, markers),
                *map(_marker, markers),
                _labels(markers, area) if names else "",
            )
        ),
        size=size,
        title=title,
        description=_description(scored, y_label),
        identifier=identifier,
    )


def pareto_front(points: Sequence[Point], *, higher: bool) -> list[Point]:
    """Return the methods that none with as few passes beats, the cheapest first; controls do not count."""
    front: list[Point] = []
    sign = 1 if higher else -1
    methods = [point for point in points if not point.control and math.isfinite(point.value)]
    for point in sorted(methods, key=lambda point: (point.passes, -sign * point.value)):
        if not front or sign * point.value > sign * front[-1].value:
            front.append(point)
    return front


def _description(points: Sequence[Point], y_label: str) -> str:
    return f"{y_label} against passes per image. {'; '.join(map(_tooltip, points))}."


def _tooltip(point: Point) -> str:
    return f"{point.name}: {point.value:.3f} at {axis_number(point.passes)} passes"


def _place_markers(points: Sequence[Point], area: Area, scale: _LogScale) -> list[_Marker]:
    """Place each marker, shifted sideways as little as keeps every marker and interval visible."""
    markers: list[_Marker] = []
    shifts = sorted((side * step for step in range(0, 64, 4) for side in (1, -1)), key=abs)
    for point in sorted(points, key=lambda point: (point.passes, -point.value)):
        x, y = area.x(scale.fraction(point.passes)), area.y(point.value)
        low, high = area.y(point.low), area.y(point.high)
        candidates = (_Marker(point, x + shift, y, low, high) for shift in shifts)
        free = (marker for marker in candidates if not any(_collide(marker, other) for other in markers))
        markers.append(next(free, _Marker(point, x, y, low, high)))
    return markers


def _collide(marker: _Marker, other: _Marker) -> bool:
    distance = abs(marker.x - other.x)
    if distance < 2 * _RADIUS and abs(marker.y - other.y) < 2 * _RADIUS:
        return True
    return distance < 5 and min(marker.low, other.low) > max(marker.high, other.high)


def _axes(area: Area, scale: _LogScale, y_label: str, higher: bool) -> str:
    parts = []
    for tick in nice_ticks(area.low, area.high):
        y = area.y(tick)
        parts += [area.horizontal(y, 0.12), area.y_tick(y, axis_number(tick))]
    ticks = [(area.x(scale.fraction(tick)), axis_number(tick)) for tick in log_ticks(scale.first, scale.last)]
    if scale.zero:
        parts.append(area.vertical(area.x(scale.start * 0.8), 0.3, "2 4"))
        ticks.insert(0, (area.x(scale.fraction(0)), "none"))
    parts += [area.x_tick(x, text) for x, text in ticks]
    parts.append(area.horizontal(area.bottom, 0.35))
    better = "higher is better" if higher else "lower is better"
    parts.append(f'<text x="{area.left - 8:g}" y="16" font-weight="600">{escape(y_label)}, {better}</text>')
    parts.append(tick_label(area.right, area.bottom + 38, "passes per image, forward + backward", "end"))
    return "".join(parts)


def _front_line(markers: Sequence[_Marker], higher: bool) -> str:
    front = {id(point) for point in pareto_front([marker.point for marker in markers], higher=higher)}
    joined = sorted((marker for marker in markers if id(marker.point) in front), key=lambda marker: marker.x)
    path = "L".join(f"{marker.x:.1f} {marker.y:.1f}" for marker in joined)
    return f'<path d="M{path}" class="front"/>' if len(joined) > 1 else ""


def _interval(marker: _Marker) -> str:
    if not (math.isfinite(marker.point.low) and math.isfinite(marker.point.high)):
        return ""
    css = "error-bar muted" if marker.point.control else "error-bar"
    caps = "".join(f"M{marker.x - 3:.1f} {y:.1f}h6" for y in (marker.low, marker.high))
    return f'<path d="M{marker.x:.1f} {marker.low:.1f}V{marker.high:.1f}{caps}" class="{css}"/>'


def _marker(marker: _Marker) -> str:
    x, y, r, point = marker.x, marker.y, _RADIUS, marker.point
    shape = (
        f'<rect x="{x - r + 0.5:.1f}" y="{y - r + 0.5:.1f}" width="{2 * r - 1:g}" height="{2 * r - 1:g}" rx="2"/>'
        if point.control
        else f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:g}"/>'
    )
    return (
        f'<g class="point{" muted" if point.control else ""}"><title>{escape(_tooltip(point))}</title>{shape}'
        f'<text x="{x:.1f}" y="{y + 3.6:.1f}" text-anchor="middle" font-size="10.5">{escape(point.rank)}</text></g>'
    )


def _labels(markers: Sequence[_Marker], area: Area) -> str:
    """Write the names that fit without covering a marker, an interval or another name, the best methods first."""
    occupied: list[Box] = [box for marker in markers for box in (marker.box, marker.interval_box)]
    parts = []
    for marker in sorted(markers, key=lambda marker: (marker.point.control, _rank_order(marker.point.rank))):
        shown = shorten(marker.point.name, 34)
        width = _LETTER * len(shown)
        for anchor, x, y in _label_positions(marker):
            left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
            box = (left - 2, y - _LINE + 3, left + width + 2, y + 3)
            inside = (
                area.left <= box[0] and box[2] <= area.right + 16 and area.top - 6 <= box[1] and box[3] <= area.bottom
            )
            if inside and not any(_overlap(box, other) for other in occupied):
                occupied.append(box)
                muted = ' class="muted"' if marker.point.control else ""
                parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{muted}>{escape(shown)}</text>')
                break
    return "".join(parts)


def _rank_order(rank: str) -> float:
    return float(rank) if rank.replace(".", "", 1).isdigit() else math.inf


def _label_positions(marker: _Marker) -> list[tuple[str, float, float]]:
    """Return the anchor and coordinates where a name may be written, the preferred ones first."""
    right = [("start", marker.x + 13, marker.y + shift) for shift in (4, -3, 11, -9, 17)]
    left = [("end", marker.x - 13, marker.y + shift) for shift in (4, -3, 11, -9, 17)]
    ends = [
        ("middle", marker.x, min(marker.high, marker.y - _RADIUS) - 5),
        ("middle", marker.x, max(marker.low, marker.y + _RADIUS) + 14),
    ]
    return [*right[:1], *left[:1], *right[1:], *left[1:], *ends]


def _overlap(box: Box, other: Box) -> bool:
    return box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]
