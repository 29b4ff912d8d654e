"""Smoothing of maps for the eye: a map of single pixels is shown blurred, since scattered points are hardly seen.

Before the blur, magnitudes are cut at a percentile, so that a few extreme pixels do not leave the rest without colour.

Only pictures are drawn from the smoothed map. The values that are read, saved and scored are the map's own, and
wherever a smoothed map is shown the page says so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter

__all__ = ["TRUNCATE", "shown_map", "smoothing_note", "smoothing_of"]

ROUGH = 0.25  # roughness from which a map is one of single pixels: 1 for white noise, near 0 for enlarged cells
WIDTH = 1 / 64  # standard deviation of the blur, in the longer side of the map
PERCENTILE = 98.0  # of the magnitudes, at which a map is cut before it is blurred
TRUNCATE = 3.0  # standard deviations after which the blur ends

Numbers = npt.NDArray[Any]


def smoothing_of(values: Numbers) -> float:
    """Return the standard deviation, in pixels, of the blur that a map is shown with; 0 for a map shown as it is.

    >>> smoothing_of(np.random.default_rng(0).normal(size=(64, 64)))
    1.0
    >>> smoothing_of(np.kron(np.random.default_rng(0).normal(size=(8, 8)), np.ones((8, 8))))
    0.0
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or min(array.shape) < 2 or not np.isfinite(array).all():
        return 0.0
    return max(array.shape) * WIDTH if _roughness(np.abs(array)) > ROUGH else 0.0


def shown_map(values: Numbers) -> Numbers:
    """Return the map as it is shown: cut and blurred where `smoothing_of` says so, else as it is."""
    sigma = smoothing_of(values)
    if not sigma:
        return values
    array = np.asarray(values, dtype=np.float64)
    magnitudes = np.abs(array)
    limit = float(np.percentile(magnitudes, PERCENTILE)) or float(magnitudes.max())
    blurred: Numbers = gaussian_filter(array.clip(-limit, limit), sigma, mode="nearest", truncate=TRUNCATE)
    return blurred


def smoothing_note(values: Numbers) -> str:
    """Say in a few words how a map is shown; nothing for one that is shown as it is."""
    return "shown smoothed" if smoothing_of(values) else ""


def _roughness(values: Numbers) -> float:
    """Return how much neighbours differ beside how much all pixels do: 1 where they have nothing in common."""
    spread = float(values.var())
    if spread == 0.0:
        return 0.0
    steps = [np.diff(values, axis=axis) for axis in (0, 1)]
    return float(sum((step**2).mean() for step in steps) / len(steps) / (2 * spread))
