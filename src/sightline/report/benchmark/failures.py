"""Failures and flags of a run: what could not be computed or scored, how often, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["FAILED", "failed_maps", "failure_table"]

FAILED = "failed: "
EXAMPLES = 3
MOST = 300  # rows of the table; a run where everything failed must still make a page that opens


def failure_table(rows: Any, left_out: Mapping[str, Sequence[tuple[str, str]]] | None = None) -> dict[str, Any]:
    """Return the flags of a run counted by model, recipe and reason: failures first, then the most frequent.

    Args:
        rows: the frame of a store.
        left_out: by model, what was never run on it, and why.
    """
    flagged = rows[rows["flag"].fillna("") != ""]
    counted = [
        _flag_row(model, recipe, flag, group)
        for (model, recipe, flag), group in flagged.groupby(["model", "recipe", "flag"], sort=True)
    ]
    counted.sort(key=lambda row: (not row["failed"], -row["count"]))
    never_run = [
        _left_out_row(model, name, reason) for model, pairs in (left_out or {}).items() for name, reason in pairs
    ]
    table = [*never_run, *counted]
    return {"rows": table[:MOST], "summary": _summary(flagged, len(never_run), len(table) - MOST)}


def failed_maps(rows: Any) -> int:
    """Return how many maps of a frame of rows could not be computed or scored."""
    failed = rows[rows["flag"].fillna("").str.startswith(FAILED)]
    return len(failed.drop_duplicates(["model", "recipe", "image"]))


def _flag_row(model: str, recipe: str, flag: str, group: Any) -> dict[str, Any]:
    images = list(dict.fromkeys(group["image"]))
    more = f" and {len(images) - EXAMPLES} more" if len(images) > EXAMPLES else ""
    failed = flag.startswith(FAILED)
    return {
        "model": model,
        "recipe": recipe,
        "flag": flag,
        "failed": failed,
        "count": len(images),
        "metrics": "all" if failed else ", ".join(dict.fromkeys(group["metric"])),
        "images": ", ".join(images[:EXAMPLES]) + more,
    }


def _left_out_row(model: str, name: str, reason: str) -> dict[str, Any]:
    return {
        "model": model,
        "recipe": name,
        "flag": f"not run: {reason}",
        "failed": True,
        "count": 0,
        "metrics": "",
        "images": "",
    }


def _summary(flagged: Any, never_run: int, hidden: int) -> str:
    maps = failed_maps(flagged)
    others = flagged[~flagged["flag"].str.startswith(FAILED)]
    undefined = int(others["value"].isna().sum())
    remarks = len(others) - undefined
    parts = [
        f"{never_run:,} left out before the run" if never_run else "",
        f"{maps:,} map{'' if maps == 1 else 's'} could not be made or scored" if maps else "",
        f"{undefined:,} score{' is' if undefined == 1 else 's are'} undefined" if undefined else "",
        f"{remarks:,} score{' has' if remarks == 1 else 's have'} a remark" if remarks else "",
        f"{hidden:,} lines are not shown" if hidden > 0 else "",
    ]
    return f"{'; '.join(filter(None, parts))}. Images that a method could not score count for the others only."
