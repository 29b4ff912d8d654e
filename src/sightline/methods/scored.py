"""The `score` option: the class of a target, read as a logit, a probability or a log-probability."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from sightline.models.adapter import Adapter
from sightline.targets.tasks import Box, Region
from sightline.targets.words import Word
from sightline.types import Logit, LogProbability, PerImage, Probability, Target

Score = Literal["logit", "probability", "log_probability"]


def scored(target: Target, score: Score | None, model: Adapter) -> Target:
    """Return the target with its class read as `score`; None, or a target that is no single class, leaves it alone.

    Probabilities are those of the model's output, `model.link`, unless the target brings its own link.
    """
    if isinstance(target, PerImage):
        return PerImage(tuple(scored(each, score, model) for each in target.targets))
    if isinstance(target, Box | Region | Word) and score is not None:
        return replace(target, score=score)
    if score is None or not isinstance(target, Logit | Probability | LogProbability):
        return target
    if score == "logit":
        return Logit(target.index)
    link = getattr(target, "link", None) or model.link
    return Probability(target.index, link) if score == "probability" else LogProbability(target.index, link)


def score_cells(logits: Tensor, target: Target) -> Tensor:
    """Read a target from the logits of every cell: (batch, cell, class) -> (batch, cell)."""
    batch, cells = logits.shape[:2]
    rows = torch.arange(batch).repeat_interleave(cells).tolist()
    return target.take(rows)(logits.flatten(0, 1)).view(batch, cells)


def score_blank(logits: Tensor, target: Target, batch: int) -> Tensor:
    """Read a target from the logits of one blank image, (1, class), for each image: (batch,)."""
    return target.take(range(batch))(logits.expand(batch, -1))


def target_derivative(target: Target, logits: Tensor) -> Tensor:
    """Return the derivative of a target by the logits, (batch, class): one for a logit itself."""
    with torch.inference_mode(False), torch.enable_grad():
        leaf = logits.detach().clone().requires_grad_()
        (derivative,) = torch.autograd.grad(target(leaf).sum(), leaf)
    return derivative
