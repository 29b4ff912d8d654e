"""Lay pictures out: overlays side by side with titles and scores, rows below each other, a colour scale at the side."""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from sightline.files import write_output
from sightline.report.figure import DIVERGING, Numbers, colour, overlay

__all__ = ["INK", "PAPER", "SOFT", "Tile", "fit_text", "panel", "save_png", "stack", "with_scale"]

INK, SOFT, PAPER = "#1b1d22", "#5d636e", "#ffffff"
_PLAIN_SIGNS = str.maketrans({"\N{MINUS SIGN}": "-", "\N{EN DASH}": "-", "\N{MULTIPLICATION SIGN}": "x"})


@dataclass(frozen=True, eq=False)
class Tile:
    """One map of a panel, with the line above it and the line below it."""

    title: str
    map: Numbers
    score: str = ""


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
