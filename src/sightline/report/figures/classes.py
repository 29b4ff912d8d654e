"""Grids of maps: a row per method and a column per class, or a row per class and a column per method."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from PIL import Image

from sightline.errors import InputError
from sightline.report.figure import Numbers, limit_of, overlay
from sightline.report.figures.sheet import Cell, Row, photograph_of, sheet
from sightline.types import Attribution

__all__ = ["class_grid", "method_panel"]


def class_grid(
    rows: Sequence[Sequence[Attribution]],
    index: int = 0,
    *,
    common: bool = False,
    title: str = "",
    width: int = 160,
) -> Image.Image:
    """Draw a grid of overlays, one row per method and one column per class, the photograph on the left.

    A method and the same method inside an operator come one below the other, in the order they are given.

    Args:
        rows: for each method, the attributions of one image for each class.
        index: which image of the attributions.
        common: draw the maps of one method on one scale, so that classes can be compared; else each on its own.
        title: of the figure.
        width: of one picture, in points.
    """
    _check(rows)
    photograph = photograph_of(rows[0][0], index)
    drawn = [_row(maps, index, photograph, common=common, first=row == 0) for row, maps in enumerate(rows)]
    line = "colours of one row share a scale" if common else ""
    return sheet(drawn, title=title, line=line, width=width)


def method_panel(
    rows: Sequence[Sequence[Attribution]], *, names: Sequence[str] = (), title: str = "", width: int = 160
) -> Image.Image:
    """Draw a comparison of methods: one row per class, image or model, one column per method, the photograph first.

    Args:
        rows: for each class, attributions of one image by each method; every attribution of one image alone.
        names: of the models that the rows belong to, where they are several.
        title: of the figure.
        width: of one picture, in points.
    """
    _check(rows)
    several = [key for key, _ in groupby(len(maps) for maps in rows)]
    if len(several) > 1 and not names:
        raise InputError(f"got rows of {' and '.join(map(str, several))} maps; give each class the same methods")
    drawn = []
    for maps, name in zip(rows, names or [""] * len(rows), strict=True):
        photograph = photograph_of(maps[0])
        cells = [Cell(photograph, "image")]
        cells += [Cell(overlay(photograph, _pixels(one, 0)), one.recipe, _flag(one, 0)) for one in maps]
        drawn.append(Row(cells, ": ".join(filter(None, (name, _label(maps[0], 0))))))
    return sheet(drawn, title=title, width=width)


def _row(maps: Sequence[Attribution], index: int, photograph: Image.Image, *, common: bool, first: bool) -> Row:
    """Return the maps of one method; the photograph stands in the first row, and its place is empty in the others."""
    limit = max(limit_of(_pixels(one, index)) for one in maps) if common else None
    blank = Image.new("RGB", photograph.size, "white")
    cells = [Cell(photograph, "image") if first else Cell(blank)]
    cells += [
        Cell(overlay(photograph, _pixels(one, index), limit=limit), _label(one, index), _flag(one, index))
        for one in maps
    ]
    return Row(cells, maps[0].recipe)


def _pixels(attribution: Attribution, index: int) -> Numbers:
    values: Numbers = attribution.pixels()[index].detach().cpu().numpy()
    return values


def _label(attribution: Attribution, index: int) -> str:
    return attribution.labels[index] if attribution.labels else ""


def _flag(attribution: Attribution, index: int) -> str:
    return attribution.flags[index] if attribution.flags else ""


def _check(rows: Sequence[Sequence[Attribution]]) -> None:
    if not rows or not all(rows):
        raise InputError("got no attribution for a row of the figure; give every row one at least")
