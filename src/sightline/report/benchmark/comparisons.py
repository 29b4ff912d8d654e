"""Pairs of methods and pairs of metrics, as small tables of coloured cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sightline.report.numbers import NONE, chance, count, figure, finite, interval, signed

if TYPE_CHECKING:
    from sightline.bench.columns import TableRow
    from sightline.bench.stats.agreement import Agreement
    from sightline.bench.table_rows import Comparison

__all__ = ["agreement_table", "significance"]

_SELF = {"kind": "self", "sign": "", "told": ""}
_UNKNOWN = {"kind": "", "sign": NONE, "told": "not compared"}


def significance(lines: Sequence[TableRow], comparisons: Sequence[Comparison], *, higher: bool) -> dict[str, Any]:
    """Lay out all pairs of recipes of one metric: is the row better than the column, and beyond chance?"""
    pairs = {(one.a, one.b): one for one in comparisons}
    ranked = [line for line in lines if line.rank is not None]
    if not pairs or len(ranked) < 2:
        return {}
    heads = [{"recipe": line.recipe, "mark": count(line.rank)} for line in ranked]
    rows = [
        {**head, "cells": [_cell(head["recipe"], other["recipe"], pairs, higher) for other in heads]} for head in heads
    ]
    return {"heads": heads, "rows": rows}


def _cell(row: str, column: str, pairs: Mapping[tuple[str, str], Comparison], higher: bool) -> dict[str, str]:
    if row == column:
        return _SELF
    found, sign = pairs.get((row, column)), 1
    if found is None:
        found, sign = pairs.get((column, row)), -1
    if found is None or finite(found.difference) is None:
        return _UNKNOWN
    ends = sorted((sign * found.low, sign * found.high))
    told = f"{row} − {column}: {signed(sign * found.difference)} ({interval(*ends)}), {chance(found.p_holm)}"
    if not found.different:
        return {"kind": "", "sign": "·", "told": told}
    better = (sign * found.difference > 0) == higher
    return {"kind": "up" if better else "down", "sign": "▲" if better else "▼", "told": told}


def agreement_table(model: str, found: Sequence[Agreement], metrics: Sequence[str]) -> dict[str, Any]:
    """Lay out how far each two metrics of a model agree on the order of the methods; nothing for a single metric."""
    taus = {(one.one, one.other): one for one in found if one.model == model}
    if not taus:
        return {}
    rows = [{"metric": one, "cells": [_tau(one, other, taus) for other in metrics]} for one in metrics]
    return {"model": model, "metrics": list(metrics), "rows": rows}


def _tau(one: str, other: str, taus: Mapping[tuple[str, str], Agreement]) -> dict[str, Any]:
    found = taus.get((one, other), taus.get((other, one)))
    value = None if found is None else finite(found.tau)
    if found is None or value is None:
        return {"self": True, "text": "" if one == other else NONE, "shade": "0", "tone": "accent", "told": ""}
    return {
        "self": False,
        "text": f"{round(value, 2) + 0.0:.2f}".replace("-", "\N{MINUS SIGN}"),
        "shade": f"{abs(value):.3f}",
        "tone": "accent" if value >= 0 else "warn",
        "told": f"{one} and {other}: τ {figure(value)} over {found.recipes} methods; "
        f"image by image {figure(found.image_tau)}",
    }
