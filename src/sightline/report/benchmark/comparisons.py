"""Matrices of pairwise comparisons: methods by a paired permutation test, metrics by Kendall's tau."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sightline.formatting import (
    MISSING,
    finite,
    format_count,
    format_difference,
    format_interval,
    format_p,
    format_score,
    minus_sign,
)

if TYPE_CHECKING:
    from sightline.bench.stats.agreement import Agreement
    from sightline.bench.tables.columns import TableRow
    from sightline.bench.tables.table_rows import Comparison

__all__ = ["agreement_matrix", "significance_matrix"]

_DIAGONAL = {"css": "self", "sign": "", "tooltip": ""}
_NOT_COMPARED = {"css": "", "sign": MISSING, "tooltip": "not compared"}


def significance_matrix(rows: Sequence[TableRow], comparisons: Sequence[Comparison], *, higher: bool) -> dict[str, Any]:
    """Return the matrix of all pairs of recipes of one metric: is the row significantly better than the column?"""
    pairs = {(pair.a, pair.b): pair for pair in comparisons}
    ranked = [row for row in rows if row.rank is not None]
    if not pairs or len(ranked) < 2:
        return {}
    heads = [{"recipe": row.recipe, "rank": format_count(row.rank)} for row in ranked]
    matrix = [
        {**head, "cells": [_cell(head["recipe"], other["recipe"], pairs, higher) for other in heads]} for head in heads
    ]
    return {"heads": heads, "rows": matrix}


def _cell(row: str, column: str, pairs: Mapping[tuple[str, str], Comparison], higher: bool) -> dict[str, str]:
    if row == column:
        return _DIAGONAL
    pair, sign = pairs.get((row, column)), 1
    if pair is None:
        pair, sign = pairs.get((column, row)), -1
    if pair is None or finite(pair.difference) is None:
        return _NOT_COMPARED
    difference = format_difference(sign * pair.difference)
    bounds = format_interval(*sorted((sign * pair.low, sign * pair.high)))
    tooltip = f"{row} − {column}: {difference} ({bounds}), {format_p(pair.p_holm)}"
    if not pair.different:
        return {"css": "", "sign": "·", "tooltip": tooltip}
    better = (sign * pair.difference > 0) == higher
    return {"css": "up" if better else "down", "sign": "▲" if better else "▼", "tooltip": tooltip}


def agreement_matrix(model: str, agreements: Sequence[Agreement], metrics: Sequence[str]) -> dict[str, Any]:
    """Return the matrix of rank correlations between a model's metrics; nothing for a single metric."""
    taus = {(pair.one, pair.other): pair for pair in agreements if pair.model == model}
    if not taus:
        return {}
    rows = [{"metric": metric, "cells": [_tau(metric, other, taus) for other in metrics]} for metric in metrics]
    return {"model": model, "metrics": list(metrics), "rows": rows}


def _tau(metric: str, other: str, taus: Mapping[tuple[str, str], Agreement]) -> dict[str, Any]:
    pair = taus.get((metric, other), taus.get((other, metric)))
    value = None if pair is None else finite(pair.tau)
    if pair is None or value is None:
        text = "" if metric == other else MISSING
        return {"self": True, "text": text, "shade": "0", "tone": "accent", "tooltip": ""}
    return {
        "self": False,
        "text": minus_sign(f"{round(value, 2) + 0.0:.2f}"),
        "shade": f"{abs(value):.3f}",
        "tone": "accent" if value >= 0 else "warn",
        "tooltip": f"{metric} and {other}: τ {format_score(value)} over {pair.recipes} methods; "
        f"image by image {format_score(pair.image_tau)}",
    }
