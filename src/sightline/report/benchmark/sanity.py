"""Sanity verdicts on the page: does a method's map depend on the model, and on the class?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sightline.report.numbers import figure, finite

__all__ = ["Soundness", "sanity_groups"]

_ORDER = ("passes", "doubtful", "fails", "no verdict", "")


@dataclass(frozen=True)
class Soundness:
    """What the sanity metrics say of one method on one model.

    Attributes:
        word: passes, doubtful, fails, no verdict.
        sentence: the reason.
        similarities: metric -> mean over images.
    """

    model: str
    recipe: str
    word: str
    sentence: str
    control: bool = False
    agnostic: bool = False
    similarities: Mapping[str, float] = field(default_factory=dict)


def sanity_groups(found: Sequence[Soundness], models: Sequence[str]) -> list[dict[str, Any]]:
    """Gather verdicts by model, in the order given, the sound methods first."""
    groups = {model: [one for one in found if one.model == model] for model in models}
    return [_group(model, ours) for model, ours in groups.items() if ours]


def _group(model: str, found: Sequence[Soundness]) -> dict[str, Any]:
    metrics = list(dict.fromkeys(metric for one in found for metric in one.similarities))
    rows = [
        {
            "recipe": one.recipe,
            "control": one.control,
            "agnostic": one.agnostic,
            "word": one.word,
            "order": _ORDER.index(one.word) if one.word in _ORDER else len(_ORDER),
            "sentence": one.sentence,
            "cells": [_cell(one.similarities.get(metric)) for metric in metrics],
        }
        for one in found
    ]
    return {"model": model, "metrics": metrics, "rows": sorted(rows, key=lambda row: (row["control"], row["order"]))}


def _cell(value: float | None) -> dict[str, str]:
    number = finite(value)
    return {"text": figure(number), "value": "" if number is None else repr(number)}
