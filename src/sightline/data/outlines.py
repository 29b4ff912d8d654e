"""Outlines of the shapes: signed distances, negative inside, in units of the radius; x points right and y down."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["DISTRACTORS", "EVIDENCE", "EXTENT", "Distance", "Floats"]

Floats = NDArray[Any]  # float32 throughout
Distance = Callable[[Floats, Floats], Floats]


def _circle(x: Floats, y: Floats) -> Floats:
    return np.hypot(x, y) - 0.88


def _ring(x: Floats, y: Floats) -> Floats:
    return np.abs(np.hypot(x, y) - 0.72) - 0.24


def _square(x: Floats, y: Floats) -> Floats:
    return np.maximum(np.abs(x), np.abs(y)) - 0.78


def _triangle(x: Floats, y: Floats) -> Floats:
    y = y - 0.15
    return np.maximum(np.abs(x) * 0.866 - y * 0.5, y) - 0.53


def _star(x: Floats, y: Floats) -> Floats:
    # fold the plane onto one of ten equal sectors; there the star is one edge, from the tip to the notch
    sector = math.pi / 5
    angle = np.abs((np.arctan2(x, -y) + sector) % (2 * sector) - sector)
    radius = np.hypot(x, y)
    tip, notch_x, notch_y = 1.06, 0.44 * math.cos(sector), 0.44 * math.sin(sector)
    edge_x, edge_y = notch_x - tip, notch_y
    across = (radius * np.sin(angle)) * edge_x - (radius * np.cos(angle) - tip) * edge_y
    return -across / math.hypot(edge_x, edge_y)


def _cross(x: Floats, y: Floats) -> Floats:
    x, y = np.abs(x), np.abs(y)
    return np.minimum(np.maximum(x - 0.95, y - 0.31), np.maximum(y - 0.95, x - 0.31))


def _heart(x: Floats, y: Floats) -> Floats:
    # a square on its corner with a disc on each of its upper sides
    side = 0.52
    u, v = (x - y + 0.1) * 0.7071, (-x - y + 0.1) * 0.7071
    diamond = np.maximum(np.abs(u), np.abs(v)) - side
    discs = np.minimum(np.hypot(u - side, v), np.hypot(u, v - side)) - side
    return np.minimum(diamond, discs)


def _crescent(x: Floats, y: Floats) -> Floats:
    return np.maximum(np.hypot(x + 0.1, y) - 0.95, 0.72 - np.hypot(x - 0.42, y))


def _bar(x: Floats, y: Floats) -> Floats:
    return np.maximum(np.abs(x) - 1.05, np.abs(y) - 0.27)


def _ellipse(x: Floats, y: Floats) -> Floats:
    return (np.hypot(x * 0.42, y) - 0.44) * 0.9


def _zigzag(x: Floats, y: Floats) -> Floats:
    wave = np.abs((x * 1.5 + 0.75) % 2 - 1) - 0.5
    return np.maximum(np.abs(y - wave) * 0.6 - 0.2, np.abs(x) - 1.05)


def _chevron(x: Floats, y: Floats) -> Floats:
    x = np.abs(x)
    return np.maximum(np.abs(y - x + 0.4) * 0.7071 - 0.22, x - 0.95)


def _dumbbell(x: Floats, y: Floats) -> Floats:
    x, y = np.abs(x), np.abs(y)
    return np.minimum(np.hypot(x - 0.68, y) - 0.36, np.maximum(x - 0.68, y - 0.13))


EVIDENCE: dict[str, Distance] = {
    "circle": _circle,
    "ring": _ring,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "cross": _cross,
    "heart": _heart,
    "crescent": _crescent,
}
DISTRACTORS: tuple[Distance, ...] = (_bar, _ellipse, _zigzag, _chevron, _dumbbell)
EXTENT = 1.13  # no shape reaches further from its centre than this, in radii
