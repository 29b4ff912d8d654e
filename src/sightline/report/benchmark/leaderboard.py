"""Leaderboards: the rows of a table in order of rank, formatted, with the coordinates of their intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sightline.formatting import (
    finite,
    format_count,
    format_difference,
    format_interval,
    format_p,
    format_percent,
    format_score,
    format_seconds,
    sort_key,
)
from sightline.registry import METRICS
from sightline.report.charts.cost import Point, cost_chart
from sightline.report.charts.curve import nice_range

if TYPE_CHECKING:
    from sightline.bench.tables.columns import TableRow

__all__ = ["ALPHA", "beats_control", "findings", "leaderboard", "overview", "ranked"]

ALPHA = 0.05
_SORTED_BY = ("rank", "rank_low", "mean", "low", "wins", "margin", "forward", "backward", "seconds", "count")


def ranked(rows: Iterable[TableRow]) -> list[TableRow]:
    """Sort the rows of one metric by rank; those without a value come last."""
    return sorted(rows, key=lambda row: (_rank(row), row.control, row.recipe))


def beats_control(row: TableRow) -> bool:
    """Tell whether a method is significantly better than the best control."""
    margin, p = finite(row.margin), finite(row.p_control)
    return not row.control and margin is not None and margin > 0 and p is not None and p < ALPHA


def leaderboard(rows: Sequence[TableRow], anchor: str) -> dict[str, Any]:
    """Return the leaderboard of one metric of one model, as the template reads it."""
    rows = ranked(rows)
    metric = rows[0].metric
    span = nice_range([value for row in rows for value in (row.low, row.high, row.mean)], margin=0.04)
    controls = [row for row in rows if row.control and finite(row.mean) is not None]
    return {
        "metric": metric,
        "higher": rows[0].direction != "lower",
        "summary": METRICS[name].summary if (name := metric.partition("(")[0]) in METRICS else "",
        "entries": [_entry(row, span) for row in rows],
        "control": _percent_of(controls[0].mean, span) if controls else None,
        "control_name": controls[0].recipe if controls else "",
        "finding": _finding(rows),
        **_cost_charts(rows, anchor),
    }


def overview(boards: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return all metrics of a model side by side: one entry per recipe, in the order of its mean rank."""
    recipes: dict[str, dict[str, Any]] = {}
    for index, board in enumerate(boards):
        for entry in board["entries"]:
            row = entry["row"]
            merged = recipes.setdefault(row.recipe, {"row": row, "entry": entry, "cells": [None] * len(boards)})
            merged["cells"][index] = {**entry, "shade": _shade(row, board)}
    for merged in recipes.values():
        ranks = [_rank(cell["row"]) for cell in merged["cells"] if cell and not _is_sanity(cell["row"].metric)]
        merged["mean_rank"] = finite(sum(ranks) / len(ranks)) if ranks else None
    by_rank = sorted(recipes.values(), key=lambda merged: merged["mean_rank"] or math.inf)
    return {
        "heads": [{"metric": board["metric"], "higher": board["higher"]} for board in boards],
        "entries": by_rank,
    }


def findings(boards: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the finding of each metric: the best method, those tied with it, and how many beat the controls."""
    ordering = [board for board in boards if board["finding"] and not _is_sanity(board["metric"])]
    return [{"metric": board["metric"], "higher": board["higher"], **board["finding"]} for board in ordering]


def _is_sanity(metric: str) -> bool:
    """Tell whether a metric is a sanity check, which methods pass or fail: a lower value is not a better method."""
    name = metric.partition("(")[0]
    return name in METRICS and METRICS[name].family == "sanity"


def _rank(row: TableRow) -> float:
    return math.inf if row.rank is None else float(row.rank)


def _entry(row: TableRow, span: tuple[float, float]) -> dict[str, Any]:
    """Return a row with its numbers formatted for the page."""
    return {
        "row": row,
        "rank": format_count(row.rank),
        "ranks": _rank_interval(row),
        "mean": format_score(row.mean),
        "interval": format_interval(row.low, row.high),
        "error_bar": _error_bar(row, span),
        "wins": format_percent(row.wins),
        "margin": "" if row.control else format_difference(row.margin),
        "margin_interval": "" if row.control else format_interval(row.margin_low, row.margin_high),
        "p": "" if row.control else format_p(row.p_control),
        "beats": beats_control(row),
        "forward": format_count(row.forward),
        "backward": format_count(row.backward),
        "seconds": format_seconds(row.seconds),
        "failures": _failures(row),
        "sort": {name: sort_key(getattr(row, name)) for name in _SORTED_BY},
    }


def _rank_interval(row: TableRow) -> str:
    low, high = format_count(row.rank_low), format_count(row.rank_high)
    return low if low == high else f"{low}\N{EN DASH}{high}"


def _bounds(row: TableRow) -> tuple[float, float]:
    """Return the bounds of the mean's interval; the mean itself where too few images give none."""
    low = row.low if finite(row.low) is not None else row.mean
    high = row.high if finite(row.high) is not None else row.mean
    return low, high


def _error_bar(row: TableRow, span: tuple[float, float]) -> dict[str, str] | None:
    if finite(row.mean) is None:
        return None
    left, right = (_percent_of(bound, span) for bound in _bounds(row))
    dot = _percent_of(row.mean, span)
    return {"left": f"{left:.2f}", "width": f"{max(right - left, 0):.2f}", "dot": f"{dot:.2f}"}


def _percent_of(value: float, span: tuple[float, float]) -> float:
    return 100 * (value - span[0]) / (span[1] - span[0])


def _failures(row: TableRow) -> str:
    counts = [f"{row.failed} failed" if row.failed else "", f"{row.degenerate} undefined" if row.degenerate else ""]
    return ", ".join(filter(None, counts))


def _shade(row: TableRow, board: dict[str, Any]) -> str:
    """Return how good a value is among those of its metric, from 0, the worst, to 1, the best: the cell's shade."""
    means = [entry["row"].mean for entry in board["entries"] if finite(entry["row"].mean) is not None]
    if finite(row.mean) is None or max(means) == min(means):
        return "0"
    fraction = (row.mean - min(means)) / (max(means) - min(means))
    return f"{fraction if board['higher'] else 1 - fraction:.3f}"


def _finding(rows: Sequence[TableRow]) -> dict[str, Any]:
    methods = [row for row in rows if not row.control and finite(row.mean) is not None]
    if not methods:
        return {}
    best = methods[0]
    letters = set(best.group or "")
    controls = [row for row in rows if row.control and finite(row.mean) is not None]
    return {
        "best": best.recipe,
        "mean": format_score(best.mean),
        "interval": format_interval(best.low, best.high),
        "tied": [row.recipe for row in methods[1:] if letters & set(row.group or "")],
        "methods": len(methods),
        "beating": sum(map(beats_control, methods)),
        "control": controls[0].recipe if controls else "",
        "behind_control": rows[0].control,
        "in_doubt": bool(controls) and not beats_control(best),
    }


def _cost_charts(rows: Sequence[TableRow], anchor: str) -> dict[str, Any]:
    """Draw score against passes twice: for a wide window, with names, and for a narrow one, with ranks alone."""
    points = [_point(row) for row in rows if finite(row.mean) is not None]
    if not points:
        return {"cost_wide": "", "cost_narrow": "", "points": []}
    metric, higher = rows[0].metric, rows[0].direction != "lower"
    options: dict[str, Any] = {"title": f"{metric} against passes", "y_label": metric, "higher": higher}
    return {
        "cost_wide": cost_chart(points, **options, identifier=f"{anchor}-wide"),
        "cost_narrow": cost_chart(points, **options, size=(348, 330), names=False, identifier=f"{anchor}-narrow"),
        "points": points,
    }


def _point(row: TableRow) -> Point:
    low, high = _bounds(row)
    passes = (finite(row.forward) or 0.0) + (finite(row.backward) or 0.0)
    return Point(row.recipe, format_count(row.rank), passes, row.mean, low, high, row.control)
