"""How far maps agree: Spearman's rank correlation, over the part of the photograph that both models see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from sightline.metrics.similarity import spearman
from sightline.models.inputs import Box

__all__ = ["agreements"]

SIDE = 64  # cells per side of the grid on which maps of different models are compared

Numbers = NDArray[Any]
Located = tuple[Numbers, Box | None]  # a map, and its box in the photograph


def agreements(maps: Sequence[Located]) -> list[list[float]]:
    """Return the rank correlation of every two maps, each given with its box in the photograph.

    Where a box is unknown it is taken to be the other's.
    """
    return [[1.0 if first is second else _agreement(first, second) for second in maps] for first in maps]


def _agreement(first: Located, second: Located) -> float:
    if first[0].shape == second[0].shape and first[1] == second[1]:
        return _correlation(first[0], second[0])
    boxes = first[1] or second[1], second[1] or first[1]
    shared = _overlap(*boxes)
    if shared is None:
        return _correlation(_cut(first[0], None, None), _cut(second[0], None, None))
    if shared[0] >= shared[2] or shared[1] >= shared[3]:
        return float("nan")
    return _correlation(_cut(first[0], boxes[0], shared), _cut(second[0], boxes[1], shared))


def _correlation(first: Numbers, second: Numbers) -> float:
    maps = (torch.from_numpy(np.ascontiguousarray(map, dtype=np.float64))[None] for map in (first, second))
    return float(spearman(*maps)[0])


def _overlap(first: Box | None, second: Box | None) -> Box | None:
    if first is None or second is None:
        return None
    return max(first[0], second[0]), max(first[1], second[1]), min(first[2], second[2]), min(first[3], second[3])


def _cut(values: Numbers, box: Box | None, shared: Box | None) -> Numbers:
    """Return the part of a map that lies in the shared box, on a grid of SIDE × SIDE."""
    height, width = values.shape
    part: Box = (0.0, 0.0, float(width), float(height))
    if box is not None and shared is not None:
        across, down = width / (box[2] - box[0]), height / (box[3] - box[1])
        part = (
            (shared[0] - box[0]) * across,
            (shared[1] - box[1]) * down,
            (shared[2] - box[0]) * across,
            (shared[3] - box[1]) * down,
        )
    picture = Image.fromarray(np.ascontiguousarray(values, dtype=np.float32))
    return np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=part))
