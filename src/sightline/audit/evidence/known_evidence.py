"""Score maps where the evidence is known: on the synthetic shapes, and on a watermark that a model learned to trust."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline import api
from sightline.audit.panel import is_control, metric_step, without_warnings
from sightline.data.shapes import SHORTCUT_CLASS, Batch
from sightline.models.adapter import Adapter
from sightline.recipe import parse
from sightline.types import Attribution

__all__ = ["EvidenceScores", "ShortcutScores", "score_on_evidence", "score_on_shortcut"]

LOCATED = ("average_precision", "energy_pointing_game")


@dataclass(frozen=True)
class EvidenceScores:
    """A method's mean scores over several images; higher is better for each."""

    recipe: str
    control: bool
    faithfulness: float
    precision: float
    energy: float


@dataclass(frozen=True)
class ShortcutScores:
    """How much of each map lies on the watermark: the mean share of positive attribution there, by recipe."""

    fooled: int
    count: int
    area: float
    shares: dict[str, float]


def score_on_evidence(model: Adapter, batch: Batch, recipe: str) -> EvidenceScores:
    """Explain each image's own class, and compare the maps with the model's answers and with the evidence."""
    images = model.normalise(batch.images)
    step = metric_step(images)
    attribution = _explain(model, images, recipe, batch.labels)
    metric = f"ins_del(step={step})"
    scores = api.evaluate(model, images, attribution, [metric, *LOCATED], batch.labels, masks=batch.evidence)
    means = [float(scores[name].nanmean()) for name in (metric, *LOCATED)]
    return EvidenceScores(recipe, is_control(parse(recipe)), *means)


def score_on_shortcut(model: Adapter, batch: Batch, recipes: Sequence[str]) -> ShortcutScores:
    """Explain the class of the watermark on the images where it fools the model, or on all where it fools it never."""
    images = model.normalise(batch.images)
    fooled = model.predict(images).argmax(dim=1) == SHORTCUT_CLASS
    rows = fooled if fooled.any() else torch.ones_like(fooled)
    images, marks = images[rows], batch.shortcut[rows]
    shares = {}
    for recipe in recipes:
        attribution = _explain(model, images, recipe, SHORTCUT_CLASS)
        scores = api.evaluate(model, images, attribution, LOCATED[1], SHORTCUT_CLASS, masks=marks)
        shares[recipe] = float(scores[LOCATED[1]].nanmean())
    return ShortcutScores(int(fooled.sum()), len(fooled), float(marks.float().mean()), shares)


def _explain(model: Adapter, images: Tensor, recipe: str, target: Tensor | int) -> Attribution:
    with without_warnings():  # a constant map scores as badly as it deserves
        return api.explain(model, images, recipe, target)
