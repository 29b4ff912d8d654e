"""The `score` option: the class of a target, read as a logit, a probability or a log-probability."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from sightline.types import Logit, LogProbability, PerImage, Probability, Target

Score = Literal["logit", "probability", "log_probability"]
_TARGETS: dict[str, type[Logit | Probability | LogProbability]] = {
    "logit": Logit,
    "probability": Probability,
    "log_probability": LogProbability,
}


def scored(target: Target, score: Score | None) -> Target:
    """Return the target with its class read as `score`; None, or a target that is no single class, leaves it alone."""
    if score is None:
        return target
    if isinstance(target, Logit | Probability | LogProbability):
        return _TARGETS[score](target.index)
    if isinstance(target, PerImage):
        return PerImage(tuple(scored(one, score) for one in target.targets))
    return target


def score_cells(logits: Tensor, target: Target) -> Tensor:
    """Read a target from the logits of every cell: (batch, cell, class) -> (batch, cell)."""
    batch, cells = logits.shape[:2]
    rows = torch.arange(batch).repeat_interleave(cells).tolist()
    return target.take(rows)(logits.flatten(0, 1)).view(batch, cells)


def score_blank(logits: Tensor, target: Target, batch: int) -> Tensor:
    """Read a target from the logits of one blank image, (1, class), for each image: (batch,)."""
    return target.take(range(batch))(logits.expand(batch, -1))
