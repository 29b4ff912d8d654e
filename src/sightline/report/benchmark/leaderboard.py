"""The leaderboards of a page: the lines of a table in order, with the geometry of their intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sightline.registry import METRICS
from sightline.report.charts.axis import nice_range
from sightline.report.charts.cost import Point, cost_chart
from sightline.report.numbers import chance, count, figure, finite, interval, seconds, share, signed

if TYPE_CHECKING:
    from sightline.bench.columns import TableRow

__all__ = ["ALPHA", "beats_control", "board", "findings", "overview", "ranked"]

ALPHA = 0.05


def ranked(lines: Iterable[TableRow]) -> list[TableRow]:
    """Put the lines of one metric in order: the best first, those without a value last."""
    return sorted(lines, key=lambda line: (_rank(line), line.control, line.recipe))


def beats_control(line: TableRow) -> bool:
    """Tell whether a method is better than the best control by more than chance explains."""
    margin, p = finite(line.margin), finite(line.p_control)
    return not line.control and margin is not None and margin > 0 and p is not None and p < ALPHA


def board(lines: Sequence[TableRow], anchor: str) -> dict[str, Any]:
    """Gather what the template needs to know of one metric of one model."""
    rows = ranked(lines)
    metric = rows[0].metric
    span = nice_range([end for line in rows for end in (line.low, line.high, line.mean)], share=0.04)
    controls = [line for line in rows if line.control and finite(line.mean) is not None]
    return {
        "metric": metric,
        "higher": rows[0].direction != "lower",
        "summary": METRICS[name].summary if (name := metric.partition("(")[0]) in METRICS else "",
        "rows": [_row(line, span) for line in rows],
        "control": _place(controls[0].mean, span) if controls else None,
        "control_name": controls[0].recipe if controls else "",
        "finding": _finding(rows),
        **_charts(rows, anchor),
    }


def overview(boards: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Put all metrics of a model side by side: one row per recipe, in the order of their mean rank."""
    recipes: dict[str, dict[str, Any]] = {}
    for place, one in enumerate(boards):
        for row in one["rows"]:
            line = row["line"]
            kept = recipes.setdefault(line.recipe, {"line": line, "row": row, "cells": [None] * len(boards)})
            kept["cells"][place] = {**row, "shade": _shade(line, one)}
    for kept in recipes.values():
        ranks = [_rank(cell["line"]) for cell in kept["cells"] if cell and not _is_sanity(cell["line"].metric)]
        kept["mean_rank"] = finite(sum(ranks) / len(ranks)) if ranks else None
    order = sorted(recipes.values(), key=lambda one: math.inf if one["mean_rank"] is None else one["mean_rank"])
    return {"heads": [{"metric": one["metric"], "higher": one["higher"]} for one in boards], "rows": order}


def findings(boards: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a sentence per metric: who leads, with whom it is tied, how many beat the controls."""
    told = [one for one in boards if one["finding"] and not _is_sanity(one["metric"])]
    return [{"metric": one["metric"], "higher": one["higher"], **one["finding"]} for one in told]


def _is_sanity(metric: str) -> bool:
    """Tell whether a metric checks a method instead of ordering methods: less than little is no better than little."""
    name = metric.partition("(")[0]
    return name in METRICS and METRICS[name].family == "sanity"


def _rank(line: TableRow) -> float:
    return math.inf if line.rank is None else float(line.rank)


def _row(line: TableRow, span: tuple[float, float]) -> dict[str, Any]:
    return {
        "line": line,
        "rank": count(line.rank),
        "ranks": _ranks(line),
        "mean": figure(line.mean),
        "interval": interval(line.low, line.high),
        "whisker": _whisker(line, span),
        "wins": share(line.wins),
        "margin": "" if line.control else signed(line.margin),
        "margin_interval": "" if line.control else interval(line.margin_low, line.margin_high),
        "p": "" if line.control else chance(line.p_control),
        "beats": beats_control(line),
        "forward": count(line.forward),
        "backward": count(line.backward),
        "seconds": seconds(line.seconds),
        "trouble": _trouble(line),
        "sort": {
            name: _sortable(getattr(line, name))
            for name in ("rank", "rank_low", "mean", "low", "wins", "margin", "forward", "backward", "seconds", "count")
        },
    }


def _sortable(value: float | None) -> str:
    number = finite(value)
    return "" if number is None else repr(number)


def _ranks(line: TableRow) -> str:
    low, high = count(line.rank_low), count(line.rank_high)
    return low if low == high else f"{low}\N{EN DASH}{high}"


def _whisker(line: TableRow, span: tuple[float, float]) -> dict[str, str] | None:
    if finite(line.mean) is None:
        return None
    low = line.low if finite(line.low) is not None else line.mean
    high = line.high if finite(line.high) is not None else line.mean
    left, right = _place(low, span), _place(high, span)
    return {"left": f"{left:.2f}", "width": f"{max(right - left, 0):.2f}", "dot": f"{_place(line.mean, span):.2f}"}


def _place(value: float, span: tuple[float, float]) -> float:
    return 100 * (value - span[0]) / (span[1] - span[0])


def _trouble(line: TableRow) -> str:
    told = [f"{line.failed} failed" if line.failed else "", f"{line.degenerate} undefined" if line.degenerate else ""]
    return ", ".join(filter(None, told))


def _shade(line: TableRow, one: dict[str, Any]) -> str:
    """Return how good a value is among those of its metric, 0 the worst and 1 the best, as a strength of colour."""
    values = [row["line"].mean for row in one["rows"] if finite(row["line"].mean) is not None]
    if finite(line.mean) is None or max(values) == min(values):
        return "0"
    place = (line.mean - min(values)) / (max(values) - min(values))
    return f"{place if one['higher'] else 1 - place:.3f}"


def _finding(rows: Sequence[TableRow]) -> dict[str, Any]:
    methods = [line for line in rows if not line.control and finite(line.mean) is not None]
    if not methods:
        return {}
    lead = methods[0]
    letters = set(lead.group or "")
    tied = [line.recipe for line in methods[1:] if letters & set(line.group or "")]
    controls = [line for line in rows if line.control and finite(line.mean) is not None]
    return {
        "lead": lead.recipe,
        "mean": figure(lead.mean),
        "interval": interval(lead.low, lead.high),
        "tied": tied,
        "methods": len(methods),
        "beating": sum(map(beats_control, methods)),
        "control": controls[0].recipe if controls else "",
        "behind": rows[0].control,
        "doubt": bool(controls) and not beats_control(lead),
    }


def _charts(rows: Sequence[TableRow], anchor: str) -> dict[str, Any]:
    """Draw quality against passes twice: for a wide window, with names, and for a narrow one, with numbers alone."""
    points = [
        Point(
            name=line.recipe,
            mark=count(line.rank),
            passes=(finite(line.forward) or 0.0) + (finite(line.backward) or 0.0),
            value=line.mean,
            low=line.low if finite(line.low) is not None else line.mean,
            high=line.high if finite(line.high) is not None else line.mean,
            control=line.control,
        )
        for line in rows
        if finite(line.mean) is not None
    ]
    if not points:
        return {"cost_wide": "", "cost_narrow": "", "points": []}
    metric, higher = rows[0].metric, rows[0].direction != "lower"
    told: dict[str, Any] = {"title": f"{metric} against passes", "y_label": metric, "higher": higher}
    return {
        "cost_wide": cost_chart(points, **told, identifier=f"{anchor}-wide"),
        "cost_narrow": cost_chart(points, **told, size=(348, 330), names=False, identifier=f"{anchor}-narrow"),
        "points": [{"mark": point.mark, "name": point.name, "control": point.control} for point in points],
    }
