"""Failures and flags: what could not be made or scored, how often, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["FAILED", "trouble"]

FAILED = "failed: "
EXAMPLES = 3
MOST = 300  # lines of the table; a run where everything failed must still make a page that opens


def trouble(rows: Any, left_out: Mapping[str, Sequence[tuple[str, str]]] | None = None) -> dict[str, Any]:
    """Count the flags of a run by model, recipe and reason: failures first, then the most frequent.

    Args:
        rows: the frame of a store.
        left_out: by model, what was never run on it, and why.
    """
    flagged = rows[rows["flag"].fillna("") != ""]
    found = [
        _line(model, recipe, flag, group)
        for (model, recipe, flag), group in flagged.groupby(["model", "recipe", "flag"], sort=True)
    ]
    never = [_never(model, name, reason) for model, pairs in (left_out or {}).items() for name, reason in pairs]
    found.sort(key=lambda line: (not line["failed"], -line["count"]))
    every = [*never, *found]
    return {"rows": every[:MOST], "told": _told(flagged, len(never), len(every) - MOST)}


def _line(model: str, recipe: str, flag: str, group: Any) -> dict[str, Any]:
    images = list(dict.fromkeys(group["image"]))
    more = f" and {len(images) - EXAMPLES} more" if len(images) > EXAMPLES else ""
    metrics = list(dict.fromkeys(group["metric"]))
    return {
        "model": model,
        "recipe": recipe,
        "flag": flag,
        "failed": flag.startswith(FAILED),
        "count": len(images),
        "metrics": "all" if flag.startswith(FAILED) else ", ".join(metrics),
        "images": ", ".join(images[:EXAMPLES]) + more,
    }


def _never(model: str, name: str, reason: str) -> dict[str, Any]:
    return {
        "model": model,
        "recipe": name,
        "flag": f"not run: {reason}",
        "failed": True,
        "count": 0,
        "metrics": "",
        "images": "",
    }


def _told(flagged: Any, never: int, hidden: int) -> str:
    failed = flagged["flag"].str.startswith(FAILED)
    maps = len(flagged[failed].drop_duplicates(["model", "recipe", "image"]))
    scores = int((~failed & flagged["value"].isna()).sum())
    remarks = int((~failed & flagged["value"].notna()).sum())
    parts = [
        f"{never:,} left out before the run" if never else "",
        f"{maps:,} map{'' if maps == 1 else 's'} could not be made or scored" if maps else "",
        f"{scores:,} score{' is' if scores == 1 else 's are'} undefined" if scores else "",
        f"{remarks:,} score{' has' if remarks == 1 else 's have'} a remark" if remarks else "",
        f"{hidden:,} lines are not shown" if hidden > 0 else "",
    ]
    return f"{'; '.join(filter(None, parts))}. Images that a method could not score count for none on that metric."
