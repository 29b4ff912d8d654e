"""How far maps agree: Spearman's rank correlation, over the part of the photograph that both models see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.stats import rankdata

from sightline.audit.seen import Box

__all__ = ["agreements", "spearman"]

SIDE = 64  # cells per side of the grid on which maps of different models are compared

Numbers = NDArray[Any]


def agreements(maps: Sequence[tuple[Numbers, Box | None]]) -> list[list[float]]:
    """Return the rank correlation of every two maps, each given with its box in the photograph.

    Where a box is unknown it is taken to be the other's.
    """
    return [[1.0 if one is other else _agreement(one, other) for other in maps] for one in maps]


def spearman(one: Numbers, other: Numbers) -> float:
    """Return Spearman's rank correlation, equal values sharing a rank; NaN where a map is constant."""
    ranks = [rankdata(values, axis=None) for values in (one, other)]
    centred = [rank - rank.mean() for rank in ranks]
    length = float(np.sqrt(np.square(centred[0]).sum() * np.square(centred[1]).sum()))
    return float((centred[0] * centred[1]).sum()) / length if length else float("nan")


def _agreement(one: tuple[Numbers, Box | None], other: tuple[Numbers, Box | None]) -> float:
    if one[0].shape == other[0].shape and one[1] == other[1]:
        return spearman(one[0], other[0])
    shared = _overlap(one[1] or other[1], other[1] or one[1])
    if shared is None:
        return spearman(_cut(one[0], None, None), _cut(other[0], None, None))
    if shared[0] >= shared[2] or shared[1] >= shared[3]:
        return float("nan")
    return spearman(_cut(one[0], one[1] or other[1], shared), _cut(other[0], other[1] or one[1], shared))


def _overlap(one: Box | None, other: Box | None) -> Box | None:
    if one is None or other is None:
        return None
    return max(one[0], other[0]), max(one[1], other[1]), min(one[2], other[2]), min(one[3], other[3])


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
