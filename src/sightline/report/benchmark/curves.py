"""Response curves of a run: the mean curves of all methods in one chart, and each with its confidence band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sightline.report.charts.curve import line_chart
from sightline.report.charts.mean_curve import (
    MeanCurve,
    Series,
    group_insertion_deletion,
    mean_curve,
    mean_curve_chart,
    y_range,
)

__all__ = ["curve_groups"]

ByMetric = dict[str, dict[str, MeanCurve]]  # metric -> recipe -> curve


def curve_groups(
    rows: Any,
    recipes: Mapping[str, Sequence[str]],
    metrics: Mapping[str, Sequence[str]],
    controls: set[str],
    best_controls: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Return the charts of insertion and deletion curves, one group per model and pair of metrics.

    Args:
        rows: the frame of a store.
        recipes: model -> its recipes, the best first.
        metrics: model -> its metrics, in the order of the page.
        controls: the recipes that are controls.
        best_controls: model -> its best control; missing or empty where there is none.
    """
    groups: list[dict[str, Any]] = []
    with_curves = rows[rows["curve"].notna()]
    for model, ordered in recipes.items():
        of_model = with_curves[with_curves["model"] == model]
        known = set(of_model["metric"])
        pairs = group_insertion_deletion(metric for metric in metrics[model] if metric in known)
        for name, pair in pairs.items():
            curves = {metric: _mean_curves(of_model[of_model["metric"] == metric], ordered) for metric in pair}
            if any(curves.values()):
                control = best_controls.get(model, "")
                groups.append(_group(model, name, curves, controls, control, f"curves-{len(groups)}"))
    return groups


def _mean_curves(rows: Any, recipes: Sequence[str]) -> dict[str, MeanCurve]:
    means = {recipe: mean_curve(group["curve"]) for recipe, group in rows.groupby("recipe", sort=False)}
    return {recipe: curve for recipe in recipes if (curve := means.get(recipe)) is not None}


def _group(model: str, name: str, curves: ByMetric, controls: set[str], control: str, key: str) -> dict[str, Any]:
    span = y_range(curve for by_recipe in curves.values() for curve in by_recipe.values())
    recipes = list(dict.fromkeys(recipe for by_recipe in curves.values() for recipe in by_recipe))
    return {
        "model": model,
        "name": name,
        "charts": _charts(curves, controls, key) if span == (0.0, 1.0) else [],
        "legend": [{"name": metric, "colour": colour} for colour, metric in enumerate(curves, 1)],
        "control": control,
        "panels": [
            {
                "recipe": recipe,
                "control": recipe in controls,
                "chart": mean_curve_chart(
                    _series(recipe, curves, control),
                    title=f"{recipe}: {name}",
                    span=span,
                    identifier=f"{key}-{index}",
                ),
            }
            for index, recipe in enumerate(recipes)
        ],
    }


def _series(recipe: str, curves: ByMetric, control: str) -> dict[str, Series]:
    """Return the curves of one recipe, one colour per metric, and those of the best control in grey."""
    own = {
        metric: Series(by_recipe[recipe], colour)
        for colour, (metric, by_recipe) in enumerate(curves.items(), 1)
        if recipe in by_recipe
    }
    if control == recipe:
        return own
    grey = {
        f"{metric} of {control}": Series(by_recipe[control], 0)
        for metric, by_recipe in curves.items()
        if control in by_recipe
    }
    return {**grey, **own}


def _charts(curves: ByMetric, controls: set[str], key: str) -> list[tuple[str, str]]:
    """Draw the mean curves of all methods, once for a wide window and once for a narrow one."""
    charts = []
    for index, (metric, by_recipe) in enumerate(curves.items()):
        changed = "removed" if "deletion" in metric.partition("(")[0] else "shown"
        options: dict[str, Any] = {
            "curves": {recipe: curve.mean.tolist() for recipe, curve in by_recipe.items()},
            "x_label": f"share {changed}, most important first",
            "title": metric,
            "muted": [recipe for recipe in by_recipe if recipe in controls],
        }
        wide = line_chart(**options, y_label="mean response", size=(560, 240), identifier=f"{key}-{index}-wide")
        narrow = line_chart(**options, y_label="", size=(340, 190), identifier=f"{key}-{index}-narrow")
        charts.append((wide, narrow))
    return charts
