"""The layout of a figure: rows of pictures with a line above each row and a title and a note for each picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

from sightline.errors import InputError
from sightline.models.inputs import as_picture
from sightline.report.layout import INK, PAPER, SOFT, fit_text
from sightline.types import Attribution

__all__ = ["Cell", "Row", "photograph_of", "sheet"]

_MARGIN, _GAP = 20, 10
_TITLE, _LINE, _NAME, _HEAD, _NOTE = 30, 22, 22, 19, 18  # heights of the lines of text, in points


@dataclass(frozen=True, eq=False)
class Cell:
    """A picture of a figure, with the line above it and the lines below it."""

    picture: Image.Image
    title: str = ""
    note: str = ""


@dataclass(frozen=True, eq=False)
class Row:
    """Pictures side by side, with a line above them."""

    cells: Sequence[Cell]
    name: str = ""


def photograph_of(attribution: Attribution, index: int = 0) -> Image.Image:
    """Return the pixels that the model saw of one image, or say that the attribution does not have them."""
    if attribution.seen is None:
        raise InputError(
            f"the attribution of {attribution.recipe or 'no recipe'} does not hold the pixels that the model saw; "
            "make it with sightline.explain"
        )
    return as_picture(attribution.seen[index].cpu())


def sheet(rows: Sequence[Row], *, title: str = "", line: str = "", width: int = 160, scale: int = 2) -> Image.Image:
    """Draw rows of pictures on white.

    Args:
        rows: the pictures; all are drawn at the same width, and those of a row at the height of its first.
        title: of the figure.
        line: below the title.
        width: of one picture, in points.
        scale: pixels per point.
    """
    if not rows or not all(row.cells for row in rows):
        raise InputError("got no picture for a row of the figure; give every row one at least")
    columns = max(len(row.cells) for row in rows)
    across = 2 * _MARGIN + columns * width + (columns - 1) * _GAP
    heads = (_TITLE if title else 0) + (_LINE if line else 0)
    down = 2 * _MARGIN + heads + sum(_height(row, width) for row in rows) + (len(rows) - 1) * _GAP
    page = _Page(Image.new("RGB", (across * scale, down * scale), PAPER), scale)
    room = across - 2 * _MARGIN
    page.write((_MARGIN, _MARGIN - 4), title, 18, INK, room)
    page.write((_MARGIN, _MARGIN - 4 + (_TITLE if title else 0)), line, 12, SOFT, room)
    upper = _MARGIN + heads
    for row in rows:
        page.draw_row(row, upper, width, room)
        upper += _height(row, width) + _GAP
    return page.picture


def _picture_height(row: Row, width: int) -> int:
    first = row.cells[0].picture
    return max(1, round(width * first.height / first.width))


def _height(row: Row, width: int) -> int:
    """Return the height of a row with its text, in points."""
    titled, lines = any(cell.title for cell in row.cells), max(len(cell.note.splitlines()) for cell in row.cells)
    return (_NAME if row.name else 0) + (_HEAD if titled else 0) + _picture_height(row, width) + lines * _NOTE


@dataclass(frozen=True, eq=False)
class _Page:
    """A figure that is being drawn; positions are in points."""

    picture: Image.Image
    scale: int

    def draw_row(self, row: Row, upper: int, width: int, room: int) -> None:
        self.write((_MARGIN, upper), row.name, 13, INK, room)
        upper += _NAME if row.name else 0
        titled = any(cell.title for cell in row.cells)
        height = _picture_height(row, width)
        for index, cell in enumerate(row.cells):
            left = _MARGIN + index * (width + _GAP)
            self.write((left, upper), cell.title, 12, INK, width)
            top = upper + (_HEAD if titled else 0)
            drawn = cell.picture.convert("RGB").resize((width * self.scale, height * self.scale), _resampling(cell))
            self.picture.paste(drawn, (left * self.scale, top * self.scale))
            for line, text in enumerate(cell.note.splitlines()):
                self.write((left, top + height + 3 + line * _NOTE), text, 11, SOFT, width)

    def write(self, at: tuple[int, int], text: str, points: int, ink: str, room: int) -> None:
        if text:
            font = ImageFont.load_default(size=points * self.scale)
            fitted = fit_text(text, font, room * self.scale)
            ImageDraw.Draw(self.picture).text((at[0] * self.scale, at[1] * self.scale), fitted, fill=ink, font=font)


def _resampling(cell: Cell) -> Image.Resampling:
    return Image.Resampling.LANCZOS if cell.picture.width > 64 else Image.Resampling.BICUBIC
