"""Maps times the input: the photograph where a map gives evidence, dark elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from sightline.report.figure import Numbers, scaled
from sightline.report.figures.sheet import Cell, Row, photograph_of, sheet
from sightline.types import Attribution

__all__ = ["lit", "maps_times_input"]


def maps_times_input(
    attributions: Sequence[Attribution], index: int = 0, *, title: str = "", width: int = 160
) -> Image.Image:
    """Draw the photograph times each map: evidence for the target above, and against it below where there is any.

    Args:
        attributions: of one image, by several methods or for several classes.
        index: which image of the attributions.
        title: of the figure.
        width: of one picture, in points.
    """
    photograph = photograph_of(attributions[0], index)
    maps = [one.pixels()[index].detach().cpu().numpy() for one in attributions]
    labels = [one.labels[index] if one.labels else "" for one in attributions]
    above = [Cell(photograph, "image")]
    above += [
        Cell(lit(photograph, values), one.recipe, label)
        for one, label, values in zip(attributions, labels, maps, strict=True)
    ]
    rows = [Row(above, "evidence for")]
    if any((values < 0).any() for values in maps):
        blank = Cell(Image.new("RGB", photograph.size, "white"))
        rows.append(Row([blank, *(Cell(lit(photograph, -values)) for values in maps)], "evidence against"))
    return sheet(rows, title=title, width=width)


def lit(photograph: Image.Image, map: Numbers) -> Image.Image:
    """Return the photograph times the positive part of a map, which is scaled to 1 at its largest magnitude."""
    pixels = np.asarray(photograph.convert("RGB"), dtype=np.float64)
    shares = np.clip(scaled(map), 0, None)[..., None]
    return Image.fromarray(np.rint(pixels * shares).astype(np.uint8))
