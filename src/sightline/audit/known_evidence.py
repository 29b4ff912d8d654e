"""Judge maps where the evidence is known: on the synthetic shapes, and on a watermark that a model learned to trust."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.table import Table
from torch import Tensor

from sightline import api
from sightline.audit.panel import is_control
from sightline.audit.ranking import metric_step
from sightline.cli.tables import percent, score
from sightline.data.shapes import SHORTCUT_CLASS, Batch
from sightline.errors import SightlineWarning
from sightline.models.adapter import Adapter
from sightline.recipe import parse
from sightline.types import Attribution

__all__ = ["Caught", "Judged", "caught", "judged", "margins_table", "shares_table"]

LOCATED = ("average_precision", "energy_pointing_game")


@dataclass(frozen=True)
class Judged:
    """A method's mean scores over several images; higher is better for each."""

    recipe: str
    control: bool
    faithfulness: float
    precision: float
    energy: float


@dataclass(frozen=True)
class Caught:
    """What the maps of watermarked images say: the mean share of positive attribution on the watermark, by recipe."""

    fooled: int
    count: int
    area: float
    shares: dict[str, float]


def judged(model: Adapter, batch: Batch, recipe: str) -> Judged:
    """Explain each image's own class, and compare the maps with the model's answers and with the evidence."""
    images = model.normalise(batch.images)
    step = metric_step(images)
    attribution = _explain(model, images, recipe, batch.labels)
    metric = f"ins_del(step={step})"
    scores = api.evaluate(model, images, attribution, [metric, *LOCATED], batch.labels, masks=batch.evidence)
    means = [float(scores[name].nanmean()) for name in (metric, *LOCATED)]
    return Judged(recipe, is_control(parse(recipe)), *means)


def caught(model: Adapter, batch: Batch, recipes: Sequence[str]) -> Caught:
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
    return Caught(int(fooled.sum()), len(fooled), float(marks.float().mean()), shares)


def margins_table(rows: Sequence[Judged], title: str) -> Table:
    """Return the mean scores, each with its margin over the best control."""
    table = Table(title=title, title_justify="left", caption_justify="left", box=None, pad_edge=False)
    table.caption = "Means over the images; in brackets the margin over the best control, blind to the model."
    for name in ("map", "insertion − deletion", "average precision", "energy on evidence"):
        table.add_column(name, justify="left" if name == "map" else "right")
    table.add_column("")
    names = ("faithfulness", "precision", "energy")
    best = {name: max(getattr(row, name) for row in rows if row.control) for name in names}
    for row in sorted(rows, key=lambda row: -row.faithfulness):
        cells = [f"{score(getattr(row, name))} ({_signed(getattr(row, name) - best[name])})" for name in names]
        table.add_row(row.recipe, *cells, "control" if row.control else "", style="dim" if row.control else "")
    return table


def shares_table(found: Sequence[tuple[str, Caught]], title: str) -> Table:
    """Return how much of each map lies on the watermark, beside the watermark's share of the image."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("model", "fooled", "map", "on the watermark", "its area", "times its area"):
        table.add_column(name, justify="left" if name in ("model", "map") else "right")
    for model, one in found:
        for place, (recipe, share) in enumerate(sorted(one.shares.items(), key=lambda pair: -pair[1])):
            first = (model, f"{one.fooled} of {one.count}") if place == 0 else ("", "")
            table.add_row(*first, recipe, percent(share), percent(one.area), f"{share / one.area:.1f} ×")
    return table


def _explain(model: Adapter, images: Tensor, recipe: str, target: Tensor | int) -> Attribution:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SightlineWarning)  # a constant map scores as badly as it deserves
        return api.explain(model, images, recipe, target)


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")
