"""How far a metric can be trusted, in a sentence: from figures measured on `shapes`, where the truth is known.

``metric_trust.json`` holds them; ``experiments/metric_trust.py`` measures them and says how.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["measured_trust", "sentence", "trust_of"]

FILE = Path(__file__).with_name("metric_trust.json")


@cache
def measured_trust() -> dict[str, Any]:
    """Return the figures as they were written."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def trust_of(name: str) -> str:
    """Return what was measured of a metric in a sentence, empty where nothing was."""
    whole = measured_trust()
    figures = {recipe.partition("(")[0]: (recipe, found) for recipe, found in whole["metrics"].items()}
    if name not in figures:
        return ""
    recipe, found = figures[name]
    place = f"on {whole['images']} images of shapes with {whole['model'].rpartition('/')[2]}"
    asked = "" if recipe == name else f", as {recipe}"
    return f"{place}{asked}: {sentence(found)}"


def sentence(found: dict[str, Any]) -> str:
    """Say in words how well a metric ordered the methods, and whether it told maps from their shuffles.

    >>> sentence({"agreement": 0.7, "low": 0.2, "high": 0.9, "wins": 0.5, "wins_low": 0.45, "wins_high": 0.55})
    'its order of methods agrees with the true one by 0.70 (0.20 to 0.90); it cannot tell a map from its shuffle (50 %)'
    """
    agreed = f"its order of methods agrees with the true one by {found['agreement']:.2f} "
    agreed += f"({found['low']:.2f} to {found['high']:.2f})"
    if found.get("wins") is None:
        return agreed
    share = f"{100 * found['wins']:.0f} %"
    if found["wins_low"] > 0.5:
        return f"{agreed}; it prefers a map to its shuffle in {share} of cases"
    if found["wins_high"] < 0.5:
        return f"{agreed}; it prefers the shuffle to the map, in all but {share} of cases"
    return f"{agreed}; it cannot tell a map from its shuffle ({share})"
