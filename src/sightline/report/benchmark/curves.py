"""The curves of a run: every method's mean curve in one chart, and each with its band beside the best control's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sightline.report.charts.band import Band, Stroke, band_of, band_panel, value_range, walks
from sightline.report.charts.curve import line_chart

__all__ = ["curve_groups"]


def curve_groups(
    rows: Any,
    order: Mapping[str, Sequence[str]],
    shown: Mapping[str, Sequence[str]],
    controls: set[str],
    best: Mapping[str, str],
) -> list[Any]:
    """Gather what the template needs to know of the curves.

    Args:
        rows: the frame of a store.
        order: model -> its recipes, the best first.
        shown: model -> its metrics, in the order of the page.
        controls: the recipes that are controls.
        best: model -> its best control; missing where there is none.
    """
    groups: list[Any] = []
    walked = rows[rows["curve"].notna()]
    for model, recipes in order.items():
        of_model = walked[walked["model"] == model]
        known = set(of_model["metric"])
        for name, metrics in walks(metric for metric in shown[model] if metric in known).items():
            bands = {metric: _bands(of_model[of_model["metric"] == metric], recipes) for metric in metrics}
            if any(bands.values()):
                groups.append(_group(model, name, bands, controls, best.get(model, ""), f"curves-{len(groups)}"))
    return groups


def _bands(rows: Any, recipes: Sequence[str]) -> dict[str, Band]:
    found = {recipe: band_of(group["curve"]) for recipe, group in rows.groupby("recipe", sort=False)}
    return {recipe: band for recipe in recipes if (band := found.get(recipe)) is not None}


def _group(
    model: str, name: str, bands: dict[str, dict[str, Band]], controls: set[str], best: str, key: str
) -> dict[str, Any]:
    span = value_range(band for every in bands.values() for band in every.values())
    recipes = list(dict.fromkeys(recipe for every in bands.values() for recipe in every))
    return {
        "model": model,
        "name": name,
        "charts": _charts(bands, controls, key) if span == (0.0, 1.0) else [],
        "strands": [{"name": metric, "slot": slot} for slot, metric in enumerate(bands, 1)],
        "control": best,
        "panels": [
            {
                "recipe": recipe,
                "control": recipe in controls,
                "chart": band_panel(
                    _strokes(recipe, bands, best),
                    title=f"{recipe}: {name}",
                    span=span,
                    identifier=f"{key}-{place}",
                ),
            }
            for place, recipe in enumerate(recipes)
        ],
    }


def _strokes(recipe: str, bands: dict[str, dict[str, Band]], best: str) -> dict[str, Stroke]:
    own = {
        metric: Stroke(every[recipe], slot) for slot, (metric, every) in enumerate(bands.items(), 1) if recipe in every
    }
    if best == recipe:
        return own
    beside = {f"{metric} of {best}": Stroke(every[best], 0) for metric, every in bands.items() if best in every}
    return {**beside, **own}


def _charts(bands: dict[str, dict[str, Band]], controls: set[str], key: str) -> list[tuple[str, str]]:
    """Draw the mean curves of all methods, once for a wide window and once for a narrow one."""
    charts = []
    for place, (metric, every) in enumerate(bands.items()):
        shown = "removed" if "deletion" in metric.partition("(")[0] else "shown"
        told: dict[str, Any] = {
            "curves": {recipe: band.mean.tolist() for recipe, band in every.items()},
            "x_label": f"share {shown}, most important first",
            "title": metric,
            "muted": [recipe for recipe in every if recipe in controls],
        }
        wide = line_chart(**told, y_label="mean response", size=(560, 240), identifier=f"{key}-{place}-wide")
        narrow = line_chart(**told, y_label="", size=(340, 190), identifier=f"{key}-{place}-narrow")
        charts.append((wide, narrow))
    return charts
