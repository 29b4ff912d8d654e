"""Sanity checks of a run: the verdicts of ``sightline sanity`` from the rows of a benchmark, and their table.

A method passes if its map depends on the model and on the class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sightline.audit.sanity_verdict import DOUBTFUL, FAILS, NO_VERDICT, PASSES, SanityScores, sanity_verdict
from sightline.bench.tables.traits import traits_of
from sightline.formatting import format_score, sort_key

__all__ = ["SanityResult", "sanity_results", "sanity_tables"]

SPEARMAN = "randomisation_spearman"
METRICS = (SPEARMAN, "randomisation_pearson", "randomisation_cosine", "randomisation_ssim", "random_logit")
_ORDER = (PASSES, DOUBTFUL, FAILS, NO_VERDICT)


@dataclass(frozen=True)
class SanityResult:
    """The verdict of the sanity metrics on one method with one model.

    Attributes:
        verdict: passes, doubtful, fails, or no verdict.
        reason: one sentence.
        similarities: metric -> mean over images.
    """

    model: str
    recipe: str
    verdict: str
    reason: str
    control: bool = False
    agnostic: bool = False
    similarities: Mapping[str, float] = field(default_factory=dict)


def sanity_results(rows: Any) -> list[SanityResult]:
    """Judge every recipe of a run by its rows of ``randomisation_…`` and ``random_logit``; empty without them."""
    sanity_rows = rows[rows["metric"].map(_metric_name).isin(METRICS)]
    groups = sanity_rows.groupby(["model", "recipe"], sort=True)
    return [_judge(model, recipe, group) for (model, recipe), group in groups]


def _judge(model: str, recipe: str, rows: Any) -> SanityResult:
    control, agnostic = traits_of(recipe)
    means = {metric: _mean(group["value"]) for metric, group in rows.groupby("metric", sort=False)}
    word, reason = _verdict(rows, means, agnostic)
    return SanityResult(model, recipe, word, reason, control=control, agnostic=agnostic, similarities=means)


def _verdict(rows: Any, means: Mapping[str, float], agnostic: bool) -> tuple[str, str]:
    """Return the verdict of ``sightline sanity`` and its reason; none without rank correlations."""
    similarity = {name: _first(means, name) for name in METRICS}
    spearman = rows[rows["metric"].map(_metric_name) == SPEARMAN]
    of_absolute_values = spearman["metric"].str.contains("absolute=True", regex=False)
    absolute = _mean_curve(spearman[of_absolute_values]["curve"])
    curve = _mean_curve(spearman[~of_absolute_values]["curve"]) or absolute
    if not curve:
        return NO_VERDICT, f"Verdicts rest on {SPEARMAN}, which was not run or gave no number."
    scores = SanityScores(
        curve=curve,
        absolute=absolute[-1] if absolute else math.nan,
        pearson=similarity["randomisation_pearson"],
        cosine=similarity["randomisation_cosine"],
        ssim=similarity["randomisation_ssim"],
        other_class=similarity["random_logit"],
        other_image=math.nan,
    )
    judged = sanity_verdict(scores, agnostic=agnostic)
    return judged.word, judged.sentence


def _metric_name(metric: str) -> str:
    return metric.partition("(")[0]


def _first(means: Mapping[str, float], name: str) -> float:
    return next((value for metric, value in means.items() if _metric_name(metric) == name), math.nan)


def _mean_curve(curves: Any) -> tuple[float, ...]:
    """Average the similarity at each stage of randomisation over images."""
    arrays = [np.asarray(curve, dtype=np.float64) for curve in curves if curve is not None and len(curve) > 1]
    complete = [curve for curve in arrays if np.isfinite(curve).all()]
    if not complete:
        return ()
    stages = min(len(curve) for curve in complete)
    return tuple(np.mean([curve[:stages] for curve in complete], axis=0).tolist())


def _mean(values: Any) -> float:
    defined = values.dropna()
    return float(defined.mean()) if len(defined) else math.nan


def sanity_tables(results: Sequence[SanityResult], models: Sequence[str]) -> list[dict[str, Any]]:
    """Return one table per model, in the order given, the methods that pass first."""
    by_model = {model: [result for result in results if result.model == model] for model in models}
    return [_table(model, of_model) for model, of_model in by_model.items() if of_model]


def _table(model: str, results: Sequence[SanityResult]) -> dict[str, Any]:
    metrics = list(dict.fromkeys(metric for result in results for metric in result.similarities))
    rows = [
        {
            "recipe": result.recipe,
            "control": result.control,
            "agnostic": result.agnostic,
            "verdict": result.verdict,
            "order": _ORDER.index(result.verdict) if result.verdict in _ORDER else len(_ORDER),
            "reason": result.reason,
            "cells": [_cell(result.similarities.get(metric)) for metric in metrics],
        }
        for result in results
    ]
    return {"model": model, "metrics": metrics, "rows": sorted(rows, key=lambda row: (row["control"], row["order"]))}


def _cell(value: float | None) -> dict[str, str]:
    return {"text": format_score(value), "value": sort_key(value)}
