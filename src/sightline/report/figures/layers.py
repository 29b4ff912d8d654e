"""A strip of maps, one per layer of an attribution."""

from __future__ import annotations

from PIL import Image

from sightline.errors import InputError
from sightline.report.figure import overlay
from sightline.report.figures.sheet import Cell, Row, photograph_of, sheet
from sightline.types import Attribution

__all__ = ["layer_strip"]


def layer_strip(
    attribution: Attribution, index: int = 0, *, columns: int = 7, title: str = "", width: int = 120
) -> Image.Image:
    """Draw the map of each layer, each on its own scale: the method on the part of the network that starts there.

    Args:
        attribution: of a method that returns every layer.
        index: which image of the attribution.
        columns: pictures in a row.
        title: of the figure.
        width: of one picture, in points.
    """
    if len(attribution.layers) < 2:
        raise InputError(
            f"{attribution.recipe or 'the attribution'} has the map of one layer only, so there is no strip of layers; "
            "choose a method that returns one map per block, such as ixg on a vision transformer"
        )
    photograph = photograph_of(attribution, index)
    cells = [Cell(photograph, "image")]
    for position, layer in enumerate(attribution.layers):
        values = attribution.pixels(layer=layer)[index].detach().cpu().numpy()
        name = f"block {layer}" if isinstance(layer, int) else layer
        note = "the method's own map" if position == attribution.own else ""
        cells.append(Cell(overlay(photograph, values), name, note))
    label = attribution.labels[index] if attribution.labels else ""
    rows = [Row(cells[first : first + columns]) for first in range(0, len(cells), columns)]
    return sheet(rows, title=title or attribution.recipe, line=label, width=width)
