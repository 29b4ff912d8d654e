"""Insertion and deletion as a film: frames side by side with the model's score below each."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from sightline.audit.figures.insertion_film import Film
from sightline.errors import InputError
from sightline.models.inputs import as_picture
from sightline.report.figures.sheet import Cell, Row, sheet

__all__ = ["film_strip"]


def film_strip(films: Sequence[Film], *, title: str = "", width: int = 130) -> Image.Image:
    """Draw two rows per map: insertion, and deletion, with the score of every frame.

    Args:
        films: what `insertion_film` returned for each map.
        title: of the figure.
        width: of one picture, in points.
    """
    if not films:
        raise InputError("got no film; make one of a map at least")
    rows = []
    for film in films:
        for name, frames, scores in (
            ("insertion", film.inserted, film.insertion),
            ("deletion", film.deleted, film.deletion),
        ):
            cells = [
                Cell(as_picture(frame.cpu()), f"{100 * share:.0f} %", f"{film.label} {score:.2f}".strip())
                for frame, share, score in zip(frames, film.shares, scores, strict=True)
            ]
            rows.append(Row(cells, f"{film.recipe}: {name}"))
    return sheet(rows, title=title, width=width)
