"""Similarity of maps to those of ever more random copies of the model, stage by stage and image by image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sightline import api
from sightline.audit.figures.class_maps import operated
from sightline.metrics.judge import Scores
from sightline.metrics.similarity import SIMILARITIES
from sightline.models.inputs import adapt, as_batch
from sightline.recipe import parse_metric, text
from sightline.types import Enlarge

__all__ = ["RandomisationCurves", "randomisation_curves"]


@dataclass(frozen=True, eq=False)
class RandomisationCurves:
    """The curves of one recipe.

    Attributes:
        recipe: what was checked.
        method: the method inside the operator; the recipe itself without one.
        shares: of the layers that are random at each stage, 0 first.
        curves: per similarity (spearman, pearson, cosine, ssim), (image, stage); 1 at the first stage.
    """

    recipe: str
    method: str
    shares: tuple[float, ...]
    curves: Mapping[str, npt.NDArray[np.float64]]


def randomisation_curves(
    model: Any,
    images: Any,
    methods: Sequence[str],
    target: Any = None,
    *,
    operator: str = "",
    classes: Any = None,
    stages: int = 5,
    seed: int = 0,
    enlarge: Enlarge | None = None,
) -> list[RandomisationCurves]:
    """Randomise a copy of the model from the output to the input, and compare each method's maps at every stage.

    Args:
        model: as for `explain`.
        images: as for `explain`.
        methods: recipes.
        target: as for `explain`.
        operator: each method is followed by itself inside this operator, as in `class_maps`; ``var`` contrasts the
            classes that are given, or the two most probable ones and the least probable.
        classes: the classes that the pictures show, as for `explain`.
        stages: how many randomised models, from the last layers to all.
        seed: of the random weights.
        enlarge: as for `explain`.
    """
    adapter = adapt(model)
    batch = as_batch(adapter, images)
    rivals = "top2" if classes is None else "picture"
    found = []
    for method in methods:
        for recipe in (method, *([operated(operator, method, rivals)] * bool(operator))):
            maps = api.explain(adapter, batch, recipe, target, classes=classes, enlarge=enlarge)
            metrics = {name: f"randomisation_{name}(stages={stages}, seed={seed})" for name in SIMILARITIES}
            scores = api.evaluate(adapter, batch, maps, list(metrics.values()))
            curves = {name: _curve(scores, metric) for name, metric in metrics.items()}
            shares = tuple(stage / stages for stage in range(stages + 1))
            found.append(RandomisationCurves(recipe, method, shares, curves))
    return found


def _curve(scores: Scores, metric: str) -> npt.NDArray[np.float64]:
    """Return the curves of a metric, (image, stage)."""
    curve: npt.NDArray[np.float64] = scores.curves[text(parse_metric(metric))].double().cpu().numpy()
    return curve
