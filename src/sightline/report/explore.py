"""The ranked panel of one image as a notebook widget, drawn by the same scripts as the web page; nothing is fetched."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from sightline.audit.panel import ExplainedImage
from sightline.extras import require
from sightline.report.figure import DIVERGING, smoothing_of

__all__ = ["explore_image", "widget_module", "widget_style"]

# A module comes after those it imports.
MODULES = ("page.js", "chart.js", "draw.js", "fills.js", "explore.js")
IMPORT = re.compile(r"^import .*\n", re.MULTILINE)
EXPORT = re.compile(r"^export (?!default)", re.MULTILINE)


def explore_image(image: ExplainedImage) -> Any:
    """Return a widget for Jupyter, VS Code, Colab or marimo, or raise a MissingExtra with the pip line."""
    widgets, traits = require("anywidget"), require("traitlets")
    names = ("seen", "insertion", "deletion", "maps", "region")
    kept = {
        "_esm": widget_module(),
        "facts": traits.Dict().tag(sync=True),
        "style": traits.Unicode(widget_style()).tag(sync=True),
        **{name: traits.Bytes(b"").tag(sync=True) for name in names},
    }
    return type("RankingWidget", (widgets.AnyWidget,), kept)(facts=_facts(image), **_arrays(image))


@cache
def widget_module() -> str:
    """Return the scripts as one module: the page's own, in order, without the lines that join them."""
    folder = resources.files("sightline.report") / "scripts"
    return "\n".join(EXPORT.sub("", IMPORT.sub("", (folder / name).read_text("utf-8"))) for name in MODULES)


@cache
def widget_style() -> str:
    """Return the page's style for the widget's own root, which leaves the notebook's elements alone."""
    style = (resources.files("sightline.report") / "scripts" / "page.css").read_text("utf-8")
    return style.replace(":root", ":host")


def _arrays(image: ExplainedImage) -> dict[str, bytes]:
    """Return pictures as bytes of red, green and blue, and all maps as 32-bit floats, one after another."""
    maps = b"".join(np.ascontiguousarray(scored.map, dtype="<f4").tobytes() for scored in image.maps)
    region = b"" if image.region is None else image.region.astype(np.uint8).tobytes()
    pictures = {name: np.ascontiguousarray(pixels).tobytes() for name, pixels in image.inputs.items()}
    return {**pictures, "maps": maps, "region": region}


def _facts(image: ExplainedImage) -> dict[str, Any]:
    """Return everything but the arrays, as plain data."""
    reached = image.verdict
    return {
        **image.json(),
        "name": image.name,
        "size": list(image.inputs["seen"].shape[:2]),
        "headline": reached.headline,
        "reason": reached.reason,
        "colours": DIVERGING.table.tolist(),
        "region": image.region is not None,
        "maps": [_map_facts(scored) for scored in image.maps],
        "fills": [room.fill for room in image.rooms],
        "judged": [{"recipe": each.recipe, "control": each.control, **each.judged_json()} for each in image.maps],
    }


def _map_facts(scored: Any) -> dict[str, Any]:
    return {**scored.json(), "curves": scored.curves, "smoothing": smoothing_of(scored.map)}
