"""Draw a map: the colours of signed values, the map alone, and over the photograph.

Two palettes, each a table of 256 colours interpolated between a few anchor colours in Oklab, a space in which equal
steps look equal:

* ``DIVERGING`` for signed maps: blue is evidence against the target, orange and red for it, grey is zero. Blue and
  orange stay distinct for every common kind of colour blindness.
* ``SEQUENTIAL`` for maps without negative values: from dark (zero) to bright (most), lighter at every step.

Maps are scaled only here, and the array that comes in is never changed. A map of single pixels is shown cut at a
percentile and blurred, since scattered points are hardly seen; wherever it is, the page says so, and the values that
are read, saved and scored are the map's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy.ndimage import gaussian_filter

from sightline.errors import InputError, ShapeError

__all__ = [
    "DIVERGING",
    "SEQUENTIAL",
    "TRUNCATE",
    "Palette",
    "colour",
    "css_gradient",
    "draw_map",
    "heat",
    "limit_of",
    "overlay",
    "palette_for",
    "scaled",
    "shown_map",
    "smoothing_note",
    "smoothing_of",
]

# ---- colours --------------------------------------------------------------------------------------------------------


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


# ---- maps of single pixels ------------------------------------------------------------------------------------------

ROUGH = 0.25  # roughness from which a map is one of single pixels: 1 for white noise, near 0 for enlarged cells
WIDTH = 1 / 64  # standard deviation of the blur, in the longer side of the map
PERCENTILE = 98.0  # of the magnitudes, at which a map is cut before it is blurred
TRUNCATE = 3.0  # standard deviations after which the blur ends


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


# ---- pictures -------------------------------------------------------------------------------------------------------


def heat(
    map: Numbers, size: tuple[int, int], *, palette: Palette | None = None, limit: float | None = None
) -> Image.Image:
    """Draw a map alone, at `size` (width, height).

    Without a `palette`, a map with negative values gets the diverging one and any other the sequential one. `limit` is
    the value of the full colour, for maps that share a scale; without it the map's own.
    """
    chosen = palette or palette_for(map)
    return Image.fromarray(colour(_shares(map, size, limit), chosen, limit=1.0))


def overlay(
    image: Image.Image,
    map: Numbers,
    *,
    opacity: float = 0.78,
    fade: float = 0.7,
    palette: Palette = DIVERGING,
    limit: float | None = None,
) -> Image.Image:
    """Draw a map over its photograph: the stronger the value, the more it covers.

    Where the map is zero nothing is covered; where it is strongest the colour covers `opacity` of the photograph. The
    photograph's own colours are drawn back by `fade`, for else a blue sky reads as evidence against the target and a
    red cup hides the evidence for it. The palette is diverging also for maps without negative values, so that red
    means the same thing in every overlay. `limit` is the value of the full colour, for maps that share a scale;
    without it the map's own.
    """
    for name, share in {"opacity": opacity, "fade": fade}.items():
        if not 0 <= share <= 1:
            raise InputError(f"{name} {share} is outside 0 to 1; leave it out for the usual one")
    ground = np.asarray(_faded(image.convert("RGB"), fade), dtype=np.float64)
    shares = _shares(map, image.size, limit)
    cover = (opacity * np.abs(shares))[..., None]
    mixed = ground * (1 - cover) + colour(shares, palette, limit=1.0) * cover
    return Image.fromarray(np.rint(mixed).astype(np.uint8))


def draw_map(image: Image.Image, values: Numbers) -> tuple[Image.Image, Image.Image, str]:
    """Draw a map as it is shown, over its photograph and alone at the same size; say how it is shown."""
    map = shown_map(values)
    return overlay(image, map), heat(map, image.size), smoothing_note(values)


def _faded(photograph: Image.Image, fade: float) -> Image.Image:
    return Image.blend(photograph, photograph.convert("L").convert("RGB"), fade)


def _shares(map: Numbers, size: tuple[int, int], limit: float | None = None) -> Floats:
    """Scale a map to -1…1 and stretch it to `size`; in this order, so that stretching does not move the limit."""
    values = np.asarray(map)
    if values.ndim != 2 or 0 in values.shape:
        raise ShapeError(f"a map of shape {values.shape} came; a picture needs (height, width), one map at a time")
    shares = Image.fromarray(scaled(values, limit).astype(np.float32))
    return np.asarray(shares.resize(size, Image.Resampling.BILINEAR), dtype=np.float64)
