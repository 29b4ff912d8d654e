"""Scores of several recipes on the same images: the settings of one method, or several methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sightline import api
from sightline.errors import RecipeError
from sightline.models.inputs import adapt, as_batch
from sightline.operators.refine import MetricDriven
from sightline.recipe import parse, parse_metric, text
from sightline.registry import spec_of
from sightline.types import Enlarge

__all__ = ["MDA_OPTIONS", "Sweep", "caap_settings", "mda_baselines", "mda_settings", "sweep"]

Ablation = Literal["depth", "neighbourhood", "blank"]
MDA_OPTIONS = {
    "gamma": (0.0, 0.25, 0.5, 0.75, 1.0),
    "kappa": (0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    "tau": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
}
BLANKS = ("black", "blurred_noise", "mean", "noise", "white")


@dataclass(frozen=True, eq=False)
class Sweep:
    """Scores of several recipes on the same images.

    Attributes:
        recipes: from the name of a setting to its recipe.
        scores: per metric, (image, setting); NaN where a score is undefined.
    """

    recipes: Mapping[str, str]
    scores: Mapping[str, npt.NDArray[np.float64]]

    def means(self) -> dict[str, dict[str, float]]:
        """Return the mean score over images, by metric and setting; NaN is left out."""
        return {
            metric: {
                name: float(np.nanmean(column)) if np.isfinite(column).any() else float("nan")
                for name, column in zip(self.recipes, values.T, strict=True)
            }
            for metric, values in self.scores.items()
        }

    def direction(self, metric: str) -> str:
        """Return whether higher or lower values of a metric are better."""
        return str(spec_of(parse_metric(metric)).direction)


def sweep(
    model: Any,
    images: Any,
    recipes: Mapping[str, str] | Sequence[str],
    metrics: Sequence[str] = ("insertion", "deletion"),
    target: Any = None,
    masks: Any = None,
    *,
    enlarge: Enlarge | None = None,
) -> Sweep:
    """Explain images with every recipe, and score every map.

    Args:
        model: as for `explain`.
        images: as for `explain`.
        recipes: from the name of a setting to its recipe; or recipes, which are then their own names.
        metrics: as for `evaluate`.
        target: as for `explain`.
        masks: as for `evaluate`.
        enlarge: as for `explain`.
    """
    named = dict(recipes) if isinstance(recipes, Mapping) else {recipe: recipe for recipe in recipes}
    if not named:
        raise RecipeError("got no recipe to score; give one at least")
    adapter = adapt(model)
    batch = as_batch(adapter, images)
    found = api.explain(adapter, batch, list(named.values()), target, enlarge=enlarge)
    scores = [api.evaluate(adapter, batch, one, metrics, masks=masks) for one in found]
    table = {metric: np.stack([one[metric].double().cpu().numpy() for one in scores], axis=1) for metric in metrics}
    return Sweep(named, table)


def caap_settings(ablation: Ablation, depth: int, method: str = "caap") -> dict[str, str]:
    """Return the recipes of one of CAAP's ablations: the last patched layer, the neighbourhood, or the blank image.

    >>> caap_settings("depth", 3)
    {'1': 'caap(last=1)', '2': 'caap(last=2)', '3': 'caap(last=3)'}
    """
    if ablation == "depth":
        return {str(last): f"{method}(last={last})" for last in range(1, depth + 1)}
    if ablation == "blank":
        return {blank.replace("_", " "): f"{method}(blank='{blank}')" for blank in BLANKS}
    if ablation == "neighbourhood":
        boxes = {"none": 0, "3×3 box": 1, "5×5 box": 2}
        found = {name: f"{method}(radius={radius})" for name, radius in boxes.items()}
        return found | {"diamond": f"{method}(radius=1, shape='manhattan')"}
    raise RecipeError(f"got ablation={ablation!r}; CAAP's are depth, neighbourhood and blank")


def mda_settings(option: str, method: str = "mda", values: Sequence[float] = ()) -> dict[str, str]:
    """Return the recipes of MDA over its density gamma, its threshold kappa (at density 1), or its share tau.

    Densities and thresholds are applied to one search, so that only tau costs a search for each value.

    >>> mda_settings("gamma", values=(0.0, 0.5))
    {'0': 'mda', '0.5': 'mda(gamma=0.5)'}
    """
    if option not in MDA_OPTIONS:
        raise RecipeError(f"got option={option!r}; MDA's are {', '.join(MDA_OPTIONS)}")
    built: Any = parse(method)
    dense = {"gamma": 1.0} if option == "kappa" else {}
    return {f"{value:g}": text(replace(built, **dense, **{option: value})) for value in values or MDA_OPTIONS[option]}


def mda_baselines(method: str = "mda") -> dict[str, str]:
    """Return the recipes of MDA for every goal and baseline: insertion, deletion and both, with zero and with a blur.

    The last one is MDA itself: insertion into a blur and deletion to zero. The order that was searched is kept, also
    where it ends below the seed's.

    >>> list(mda_baselines())  # doctest: +NORMALIZE_WHITESPACE
    ['insertion, zero', 'deletion, zero', 'both, zero', 'insertion, blur', 'deletion, blur', 'both, blur',
     'both, blur and zero']
    """
    built: Any = parse(method)
    if not isinstance(built, MetricDriven):
        raise RecipeError(f"got {method}, which has no baselines of insertion and deletion; give a recipe of mda")
    built = replace(built, search=built.search or "exact")
    goals = {"insertion": 1.0, "deletion": 0.0, "both": built.tau}
    found = {
        f"{goal}, {baseline}": text(replace(built, tau=tau, insertion=baseline, deletion=baseline))
        for baseline in ("zero", "blur")
        for goal, tau in goals.items()
    }
    return found | {"both, blur and zero": text(replace(built, insertion="blur", deletion="zero"))}
