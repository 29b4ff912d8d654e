"""Quality against passes: what a method reaches and what it asks of the model, as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from sightline.report.charts.axis import Area, axis_number, nice_range, nice_ticks, power_ticks

__all__ = ["Point", "cost_chart", "front"]

_LETTER, _LINE = 6.4, 14.0  # width and height of a letter at size 12, for keeping labels apart without measuring
_RADIUS = 8.5
_GRID = "stroke:currentColor;stroke-opacity:"

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Point:
    """One method on one metric.

    Attributes:
        name: its recipe.
        mark: what stands in the marker: its rank.
        passes: forward and backward passes per image; 0 for maps that ask the model nothing.
    """

    name: str
    mark: str
    passes: float
    value: float
    low: float
    high: float
    control: bool = False


@dataclass(frozen=True)
class _Placed:
    point: Point
    x: float
    y: float
    low: float
    high: float

    @property
    def box(self) -> Box:
        return self.x - _RADIUS, self.y - _RADIUS, self.x + _RADIUS, self.y + _RADIUS

    @property
    def whisker(self) -> Box:
        return self.x - 2, self.high, self.x + 2, self.low


@dataclass(frozen=True)
class _Scale:
    """The logarithmic axis, with a place of its own for maps that cost nothing."""

    first: float
    last: float
    zero: bool

    @classmethod
    def of(cls, passes: Sequence[float]) -> _Scale:
        paid = [value for value in passes if value > 0]
        low, high = (min(paid), max(paid)) if paid else (1.0, 10.0)
        if high / low < 4:
            low, high = low / 2, high * 2
        return cls(low / 1.25, high * 1.25, any(value <= 0 for value in passes))

    @property
    def start(self) -> float:
        return 0.16 if self.zero else 0.0

    def share(self, passes: float) -> float:
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
    """Return the chart as one SVG element: a numbered marker and an interval per method, names where there is room.

    The passes are on a logarithmic axis; methods at the same place are set side by side so that each interval can be
    seen. The line joins the methods that no cheaper one beats.
    """
    sound = [point for point in points if math.isfinite(point.value)]
    if not sound:
        return ""
    low, high = nice_range([end for point in sound for end in (point.value, point.low, point.high)])
    area = Area(56, 30, size[0] - 18, size[1] - 46, low, high)
    scale = _Scale.of([point.passes for point in sound])
    placed = _spread(sound, area, scale)
    key = escape(identifier)
    return "".join(
        (
            f'<svg class="chart" role="img" viewBox="0 0 {size[0]:g} {size[1]:g}" width="100%" '
            f'aria-labelledby="{key}-t {key}-d" font-size="12" fill="currentColor">',
            f'<title id="{key}-t">{escape(title)}</title>',
            f'<desc id="{key}-d">{escape(_words(sound, y_label))}</desc>',
            _axes(area, scale, y_label, higher),
            _front_line(placed, higher),
            *(_whisker(one) for one in placed),
            *(_marker(one) for one in placed),
            _labels(placed, area) if names else "",
            "</svg>",
        )
    )


def front(points: Sequence[Point], *, higher: bool) -> list[Point]:
    """Return the methods that none with as few passes beats, the cheapest first; controls are no methods."""
    best: list[Point] = []
    sign = 1 if higher else -1
    methods = [point for point in points if not point.control and math.isfinite(point.value)]
    for point in sorted(methods, key=lambda one: (one.passes, -sign * one.value)):
        if not best or sign * point.value > sign * best[-1].value:
            best.append(point)
    return best


def _words(points: Sequence[Point], y_label: str) -> str:
    told = "; ".join(f"{p.name} {p.value:.3f} at {axis_number(p.passes)} passes" for p in points)
    return f"{y_label} against passes per image. {told}."


def _spread(points: Sequence[Point], area: Area, scale: _Scale) -> list[_Placed]:
    """Put each marker at its place, or as near beside it as leaves every marker and interval visible."""
    placed: list[_Placed] = []
    shifts = sorted((side * step for step in range(0, 64, 4) for side in (1, -1)), key=abs)
    for point in sorted(points, key=lambda one: (one.passes, -one.value)):
        x, y = area.x(scale.share(point.passes)), area.y(point.value)
        low, high = area.y(point.low), area.y(point.high)
        tries = (_Placed(point, x + shift, y, low, high) for shift in shifts)
        free = (one for one in tries if not any(_crowded(one, other) for other in placed))
        placed.append(next(free, _Placed(point, x, y, low, high)))
    return placed


def _crowded(one: _Placed, other: _Placed) -> bool:
    near = abs(one.x - other.x)
    if near < 2 * _RADIUS and abs(one.y - other.y) < 2 * _RADIUS:
        return True
    return near < 5 and min(one.low, other.low) > max(one.high, other.high)


def _axes(area: Area, scale: _Scale, y_label: str, higher: bool) -> str:
    parts = []
    for tick in nice_ticks(area.low, area.high):
        y = area.y(tick)
        parts.append(f'<path d="M{area.left:g} {y:.1f}H{area.right:g}" style="{_GRID}.12"/>')
        parts.append(
            f'<text x="{area.left - 8:g}" y="{y + 4:.1f}" text-anchor="end" opacity=".75">{_number(tick)}</text>'
        )
    places = [(area.x(scale.share(tick)), _number(tick)) for tick in power_ticks(scale.first, scale.last)]
    if scale.zero:
        gap = area.x(scale.start * 0.8)
        parts.append(f'<path d="M{gap:.1f} {area.top:g}V{area.bottom:g}" style="{_GRID}.3;stroke-dasharray:2 4"/>')
        places.insert(0, (area.x(scale.share(0)), "none"))
    for x, text in places:
        parts.append(f'<path d="M{x:.1f} {area.bottom:g}v4" style="{_GRID}.35"/>')
        parts.append(f'<text x="{x:.1f}" y="{area.bottom + 18:g}" text-anchor="middle" opacity=".75">{text}</text>')
    parts.append(f'<path d="M{area.left:g} {area.bottom:g}H{area.right:g}" style="{_GRID}.35"/>')
    better = "higher is better" if higher else "lower is better"
    parts.append(f'<text x="{area.left - 8:g}" y="16" font-weight="600">{escape(y_label)}, {better}</text>')
    parts.append(
        f'<text x="{area.right:g}" y="{area.bottom + 38:g}" text-anchor="end" opacity=".75">'
        "passes per image, forward + backward</text>"
    )
    return "".join(parts)


def _number(value: float) -> str:
    return axis_number(value)


def _front_line(placed: Sequence[_Placed], higher: bool) -> str:
    best = {id(point) for point in front([one.point for one in placed], higher=higher)}
    ends = sorted((one for one in placed if id(one.point) in best), key=lambda one: one.x)
    path = "".join(f"{'M' if place == 0 else 'L'}{one.x:.1f} {one.y:.1f}" for place, one in enumerate(ends))
    return f'<path d="{path}" class="front"/>' if len(ends) > 1 else ""


def _whisker(one: _Placed) -> str:
    if not (math.isfinite(one.point.low) and math.isfinite(one.point.high)):
        return ""
    kind = "whisk muted" if one.point.control else "whisk"
    caps = "".join(f"M{one.x - 3:.1f} {y:.1f}h6" for y in (one.low, one.high))
    return f'<path d="M{one.x:.1f} {one.low:.1f}V{one.high:.1f}{caps}" class="{kind}"/>'


def _marker(one: _Placed) -> str:
    x, y, r = one.x, one.y, _RADIUS
    shape = (
        f'<rect x="{x - r + 0.5:.1f}" y="{y - r + 0.5:.1f}" width="{2 * r - 1:g}" height="{2 * r - 1:g}" rx="2"/>'
        if one.point.control
        else f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:g}"/>'
    )
    told = f"{one.point.name}: {one.point.value:.3f} at {axis_number(one.point.passes)} passes"
    return (
        f'<g class="point{" muted" if one.point.control else ""}"><title>{escape(told)}</title>{shape}'
        f'<text x="{x:.1f}" y="{y + 3.6:.1f}" text-anchor="middle" font-size="10.5">{escape(one.point.mark)}</text></g>'
    )


def _labels(placed: Sequence[_Placed], area: Area) -> str:
    """Write the names that fit without covering a marker, an interval or another name; the best ones choose first."""
    taken: list[Box] = [box for one in placed for box in (one.box, one.whisker)]
    parts = []
    for one in sorted(placed, key=lambda one: (one.point.control, _order(one.point.mark))):
        shown = one.point.name if len(one.point.name) <= 34 else f"{one.point.name[:20]}…{one.point.name[-13:]}"
        width = _LETTER * len(shown)
        for anchor, x, y in _seats(one):
            left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
            box = (left - 2, y - _LINE + 3, left + width + 2, y + 3)
            inside = (
                area.left <= box[0] and box[2] <= area.right + 16 and area.top - 6 <= box[1] and box[3] <= area.bottom
            )
            if inside and not any(_meet(box, other) for other in taken):
                taken.append(box)
                muted = ' class="muted"' if one.point.control else ""
                parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{muted}>{escape(shown)}</text>')
                break
    return "".join(parts)


def _order(mark: str) -> float:
    return float(mark) if mark.replace(".", "", 1).isdigit() else math.inf


def _seats(one: _Placed) -> list[tuple[str, float, float]]:
    """Return where a name may stand, the dearest place first."""
    beside = [("start", one.x + 13, one.y + shift) for shift in (4, -3, 11, -9, 17)]
    before = [("end", one.x - 13, one.y + shift) for shift in (4, -3, 11, -9, 17)]
    ends = [
        ("middle", one.x, min(one.high, one.y - _RADIUS) - 5),
        ("middle", one.x, max(one.low, one.y + _RADIUS) + 14),
    ]
    return [*beside[:1], *before[:1], *beside[1:], *before[1:], *ends]


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
