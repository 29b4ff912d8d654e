"""Draw heat maps: the colours of signed values, a map alone, over the photograph, and side by side in one picture.

Two palettes, each a table of 256 colours interpolated between a few anchor colours in Oklab, a space in which equal
steps look equal:

* ``DIVERGING`` for signed maps: blue is evidence against the target, orange and red for it, grey is zero. Blue and
  orange stay distinct for every common kind of colour blindness.
* ``SEQUENTIAL`` for maps without negative values: from dark (zero) to bright (most), lighter at every step.

Maps are scaled only here, and the array that comes in is never changed.
"""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from sightline.errors import InputError, ShapeError
from sightline.files import write_output

__all__ = [
    "DIVERGING",
    "INK",
    "PAPER",
    "SEQUENTIAL",
    "SOFT",
    "Palette",
    "Tile",
    "colour",
    "css_gradient",
    "fit_text",
    "heat",
    "limit_of",
    "overlay",
    "overlay_and_heat",
    "palette_for",
    "panel",
    "save_png",
    "scaled",
    "stack",
    "with_scale",
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


# ---- pictures -------------------------------------------------------------------------------------------------------


INK, SOFT, PAPER = "#1b1d22", "#5d636e", "#ffffff"
_PLAIN_SIGNS = str.maketrans({"\N{MINUS SIGN}": "-", "\N{EN DASH}": "-", "\N{MULTIPLICATION SIGN}": "x"})


@dataclass(frozen=True, eq=False)
class Tile:
    """One map of a panel, with the line above it and the line below it."""

    title: str
    map: Numbers
    score: str = ""


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


def overlay_and_heat(image: Image.Image, map: Numbers) -> tuple[Image.Image, Image.Image]:
    """Draw a map over its photograph, and alone at the photograph's size."""
    return overlay(image, map), heat(map, image.size)


def panel(
    image: Image.Image,
    tiles: Sequence[Tile],
    *,
    title: str = "",
    line: str = "",
    columns: int | None = None,
    width: int = 224,
    opacity: float = 0.78,
    scale: int = 2,
) -> Image.Image:
    """Draw the photograph and several overlays side by side, with a title, a line below it and a score under each map.

    `width` is that of one picture in points; a point is `scale` pixels, so text and pictures stay sharp on a dense
    screen. Rows break after `columns` pictures, the photograph being the first.
    """
    height = max(1, round(width * image.height / image.width))
    photograph = image.convert("RGB").resize((width * scale, height * scale), Image.Resampling.LANCZOS)
    cells = [("image", photograph, "")]
    cells += [(tile.title, overlay(photograph, tile.map, opacity=opacity), tile.score) for tile in tiles]
    return _Sheet(width, height, min(columns or len(cells), len(cells)), scale).draw(cells, title, line)


def stack(rows: Sequence[Image.Image]) -> Image.Image:
    """Put pictures below each other on white."""
    sheet = Image.new("RGB", (max(row.width for row in rows), sum(row.height for row in rows)), "white")
    upper = 0
    for row in rows:
        sheet.paste(row, (0, upper))
        upper += row.height
    return sheet


def with_scale(picture: Image.Image, limit: float) -> Image.Image:
    """Put the colour scale of an overlay to its right: the largest value for the target, zero, the same against it."""
    width, gap, text = 14, 10, 64
    sheet = Image.new("RGB", (picture.width + gap + width + text, picture.height), PAPER)
    sheet.paste(picture, (0, 0))
    shares = np.linspace(1, -1, picture.height)[:, None].repeat(width, axis=1)
    sheet.paste(Image.fromarray(colour(shares, DIVERGING, limit=1.0)), (picture.width + gap, 0))
    left, size = picture.width + gap + width + 5, 12
    font, draw = ImageFont.load_default(size=size), ImageDraw.Draw(sheet)
    for upper, value in ((0, limit), (picture.height / 2 - size / 2, 0.0), (picture.height - size - 3, -limit)):
        draw.text((left, upper), fit_text(f"{value:.3g}", font, text - 5), fill=SOFT, font=font)
    return sheet


def save_png(image: Image.Image, path: Path | str) -> Path:
    """Write a picture, whole or not at all."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return write_output(path, buffer.getvalue())


def _faded(photograph: Image.Image, fade: float) -> Image.Image:
    return Image.blend(photograph, photograph.convert("L").convert("RGB"), fade)


def _shares(map: Numbers, size: tuple[int, int], limit: float | None = None) -> Floats:
    """Scale a map to -1…1 and stretch it to `size`; in this order, so that stretching does not move the limit."""
    values = np.asarray(map)
    if values.ndim != 2 or 0 in values.shape:
        raise ShapeError(f"a map of shape {values.shape} came; a picture needs (height, width), one map at a time")
    shares = Image.fromarray(scaled(values, limit).astype(np.float32))
    return np.asarray(shares.resize(size, Image.Resampling.BILINEAR), dtype=np.float64)


@dataclass(frozen=True)
class _Sheet:
    """The layout of a panel, in points."""

    width: int
    height: int
    columns: int
    scale: int
    margin: int = 20
    gap: int = 14

    def draw(self, cells: Sequence[tuple[str, Image.Image, str]], title: str, line: str) -> Image.Image:
        top = self.margin + (30 if title else 0) + (22 if line else 0) + (6 if title or line else 0)
        below = 24 if any(score for _, _, score in cells) else 6
        row = 24 + self.height + below
        rows = -(-len(cells) // self.columns)
        width = 2 * self.margin + self.columns * self.width + (self.columns - 1) * self.gap
        height = top + rows * row + (rows - 1) * self.gap + self.margin - 6
        sheet = Image.new("RGB", (width * self.scale, height * self.scale), PAPER)
        room = width - 2 * self.margin
        self._write(sheet, (self.margin, self.margin - 4), title, 20, INK, room)
        self._write(sheet, (self.margin, self.margin - 4 + (30 if title else 0)), line, 13, SOFT, room)
        for index, (name, picture, score) in enumerate(cells):
            left = self.margin + index % self.columns * (self.width + self.gap)
            upper = top + index // self.columns * (row + self.gap)
            self._write(sheet, (left, upper), name, 14, INK, self.width)
            sheet.paste(picture, (left * self.scale, (upper + 24) * self.scale))
            self._write(sheet, (left, upper + 24 + self.height + 6), score, 12, SOFT, self.width)
        return sheet

    def _write(self, sheet: Image.Image, at: tuple[int, int], text: str, points: int, ink: str, room: int) -> None:
        font = ImageFont.load_default(size=points * self.scale)
        fitted = fit_text(text, font, room * self.scale)
        ImageDraw.Draw(sheet).text((at[0] * self.scale, at[1] * self.scale), fitted, fill=ink, font=font)


def fit_text(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, room: float) -> str:
    """Return one line of text, shortened in the middle until it fits: a recipe differs at both of its ends."""
    text = _drawable(text)
    kept = len(text)
    fitted = text
    while kept > 0 and font.getlength(fitted) > room:
        kept -= 1
        fitted = f"{text[: (kept + 1) // 2]}…{text[len(text) - kept // 2 :]}"
    return fitted


def _drawable(text: str) -> str:
    """Return the text in letters that Pillow's bundled font has: ASCII, and a few signs."""
    plain = unicodedata.normalize("NFKD", text.replace("…", "\0").translate(_PLAIN_SIGNS)).replace("\0", "…")
    base = "".join(letter for letter in plain if not unicodedata.combining(letter))
    return " ".join("".join(letter if letter.isascii() or letter in "…·" else "?" for letter in base).split())
