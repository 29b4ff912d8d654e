"""Colour maps: from signed, unscaled values to colours.

Two palettes, each a table of 256 colours interpolated between a few anchor colours in Oklab, a space in which equal
steps look equal:

* ``DIVERGING`` for signed maps: blue is evidence against the target, orange and red for it, grey is zero. Blue and
  orange stay distinct for every common kind of colour blindness.
* ``SEQUENTIAL`` for maps without negative values: from dark (zero) to bright (most), lighter at every step.

Maps are scaled only here, and the array that comes in is never changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["DIVERGING", "SEQUENTIAL", "Palette", "colour", "css_gradient", "limit_of", "palette_for", "scaled"]

Numbers = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]

_PERCENTILE = 99.5  # one pixel in two hundred may saturate, so that a single outlier does not dim all others
_FLAT = 1e-6  # a spread below this share of the largest value is rounding, not a map
_CENTRE = 128  # the neutral entry of a diverging table: 127 steps lead from it to each end

# Linear sRGB -> cone response, and cube root of that -> Oklab (Ottosson 2020).
_TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


@dataclass(frozen=True, eq=False)
class Palette:
    """A colour map: a named table of 256 colours.

    Attributes:
        table: shape (256, 3), uint8, read-only.
        signed: whether zero is the middle of the table, and not its start.
    """

    name: str
    table: Bytes
    signed: bool

    @property
    def neutral(self) -> tuple[int, int, int]:
        """Return the colour of zero."""
        red, green, blue = self.table[_CENTRE if self.signed else 0].tolist()
        return red, green, blue


def limit_of(values: Numbers) -> float:
    """Return the magnitude that gets the full colour; 0 for a constant map.

    It is the 99.5th percentile of the magnitudes, or their maximum where that percentile is 0. NaN and infinity do not
    count.
    """
    array = np.asarray(values, dtype=np.float64)
    magnitudes = np.abs(array[np.isfinite(array)])
    peak = float(magnitudes.max(initial=0.0))
    if peak == 0.0 or _is_flat(array, peak):
        return 0.0
    return float(np.percentile(magnitudes, _PERCENTILE)) or peak


def scaled(values: Numbers, limit: float | None = None) -> Floats:
    """Return a copy scaled to -1…1, with zero kept at zero.

    Without a `limit` the map's own is used. NaN becomes 0 and a limit of 0 gives zeros, so nothing undefined is shown.
    """
    array = np.nan_to_num(np.asarray(values, dtype=np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)
    bound = limit_of(values) if limit is None else float(limit)
    if not 0.0 < bound < np.inf:
        return np.zeros(array.shape)
    return np.asarray(np.clip(array, -bound, bound) / bound, dtype=np.float64)


def palette_for(values: Numbers) -> Palette:
    """Return the diverging palette if any value is negative, else the sequential one."""
    return DIVERGING if bool(np.any(np.asarray(values) < 0)) else SEQUENTIAL


def colour(values: Numbers, palette: Palette, limit: float | None = None) -> Bytes:
    """Return the colour of each value, shape `values.shape` + (3,)."""
    fractions = scaled(values, limit)
    index = _CENTRE + 127 * fractions if palette.signed else 255 * np.clip(fractions, 0, None)
    return palette.table[np.rint(index).astype(np.intp)]


def css_gradient(palette: Palette, stops: int = 13) -> str:
    """Return the palette as a CSS ``linear-gradient``, for a legend."""
    first = 1 if palette.signed else 0
    rows = palette.table[np.linspace(first, 255, stops).round().astype(np.intp)]
    return f"linear-gradient(90deg, {', '.join(_hex(row.tolist()) for row in rows)})"


def _is_flat(array: Floats, peak: float) -> bool:
    finite = array[np.isfinite(array)] / peak
    return finite.size == array.size and bool(np.ptp(finite) <= _FLAT)


def _hex(rgb: Sequence[int]) -> str:
    return "#" + "".join(f"{channel:02x}" for channel in rgb)


def _to_oklab(anchors: Sequence[str]) -> Floats:
    """Convert ``#rrggbb`` texts to Oklab, one row each."""
    srgb = np.array([[int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)] for text in anchors])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    return np.asarray(np.cbrt(linear @ _TO_CONES.T) @ _TO_LAB.T, dtype=np.float64)


def _from_oklab(lab: Floats) -> Bytes:
    """Convert Oklab rows to sRGB bytes; out-of-gamut colours are clipped."""
    cones = (lab @ np.linalg.inv(_TO_LAB).T) ** 3
    linear = np.clip(cones @ np.linalg.inv(_TO_CONES).T, 0, 1)
    srgb = np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.asarray(np.rint(srgb * 255), dtype=np.uint8)


def _interpolate(anchors: Sequence[str], positions: Floats) -> Bytes:
    """Interpolate between evenly spaced anchor colours at `positions`, 0 to 1."""
    lab = _to_oklab(anchors)
    knots = np.linspace(0, 1, len(anchors))
    table = _from_oklab(np.stack([np.interp(positions, knots, lab[:, axis]) for axis in range(3)], axis=1))
    table.flags.writeable = False
    return table


DIVERGING = Palette(
    "diverging",
    _interpolate(
        ["#0a3a8c", "#2f78d0", "#92bdea", "#ececea", "#f7b489", "#ee6a2c", "#b5121b"],
        np.clip((np.arange(256) - _CENTRE) / 254 + 0.5, 0, 1),
    ),
    signed=True,
)
SEQUENTIAL = Palette(
    "sequential",
    _interpolate(["#12091f", "#3b1763", "#862373", "#d04a5f", "#f58b3c", "#fbcf5a", "#fdfbdc"], np.linspace(0, 1, 256)),
    signed=False,
)
