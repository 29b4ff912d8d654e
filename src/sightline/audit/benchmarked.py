"""The verdicts of ``sightline sanity`` from the rows of a benchmark that ran its metrics."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sightline.audit.sanity_verdict import Evidence, verdict
from sightline.bench.traits import traits_of
from sightline.report.benchmark.sanity import Soundness

__all__ = ["soundness"]

_CASCADES = ("randomisation_spearman", "randomisation_pearson", "randomisation_cosine", "randomisation_ssim")


def soundness(rows: Any) -> list[Soundness]:
    """Judge every recipe of a run by its rows of ``randomisation_…`` and ``random_logit``; nothing without them."""
    names = rows["metric"].str.partition("(")[0]
    ours = rows[names.isin((*_CASCADES, "random_logit"))]
    return [_judge(model, recipe, group) for (model, recipe), group in ours.groupby(["model", "recipe"], sort=True)]


def _judge(model: str, recipe: str, rows: Any) -> Soundness:
    control, agnostic = traits_of(recipe)
    means = {metric: _mean(group["value"]) for metric, group in rows.groupby("metric", sort=False)}
    word, sentence = _verdict(rows, means, agnostic)
    return Soundness(model, recipe, word, sentence, control=control, agnostic=agnostic, similarities=means)


def _verdict(rows: Any, means: dict[str, float], agnostic: bool) -> tuple[str, str]:
    """Give the verdict of ``sightline sanity`` where there are rank correlations for it to rest on."""
    found = {name: _first(means, name) for name in (*_CASCADES, "random_logit")}
    spearman = rows[rows["metric"].str.partition("(")[0] == _CASCADES[0]]
    plain = spearman[~spearman["metric"].str.contains("absolute=True", regex=False)]
    sizes = spearman[spearman["metric"].str.contains("absolute=True", regex=False)]
    curve = _curve(plain["curve"]) or _curve(sizes["curve"])
    if not curve:
        return "no verdict", "Verdicts rest on randomisation_spearman, which was not run or gave no number."
    last = _curve(sizes["curve"])
    evidence = Evidence(
        curve=curve,
        absolute=last[-1] if last else math.nan,
        pearson=found["randomisation_pearson"],
        cosine=found["randomisation_cosine"],
        ssim=found["randomisation_ssim"],
        other_class=found["random_logit"],
        other_image=math.nan,
    )
    judged = verdict(evidence, agnostic=agnostic)
    return judged.word, judged.sentence


def _first(means: dict[str, float], name: str) -> float:
    return next((value for metric, value in means.items() if metric.partition("(")[0] == name), math.nan)


def _curve(curves: Any) -> tuple[float, ...]:
    """Average the similarity at each stage over images."""
    sound = [np.asarray(curve, dtype=np.float64) for curve in curves if curve is not None and len(curve) > 1]
    whole = [curve for curve in sound if np.isfinite(curve).all()]
    if not whole:
        return ()
    points = min(len(curve) for curve in whole)
    return tuple(np.mean([curve[:points] for curve in whole], axis=0).tolist())


def _mean(values: Any) -> float:
    sound = values.dropna()
    return float(sound.mean()) if len(sound) else math.nan
