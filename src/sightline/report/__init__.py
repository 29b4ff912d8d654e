"""Figures, charts and HTML pages of attributions, rankings and benchmark runs.

Maps are scaled for display here and nowhere else.
"""

from __future__ import annotations

from sightline.report.charts.curve import line_chart
from sightline.report.figure import DIVERGING, SEQUENTIAL, Palette, colour, heat, overlay
from sightline.report.layout import Tile, panel, save_png
from sightline.report.page import ExplainPage, ImageSection, MapCard, write_page

__all__ = [
    "DIVERGING",
    "SEQUENTIAL",
    "ExplainPage",
    "ImageSection",
    "MapCard",
    "Palette",
    "Tile",
    "colour",
    "heat",
    "line_chart",
    "overlay",
    "panel",
    "save_png",
    "write_page",
]
