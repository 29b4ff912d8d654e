"""Tables of what a run found, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from sightline.cli.console import plain
from sightline.formatting import format_interval, format_percent, format_probability, format_score

__all__ = ["fields_table", "fill_table", "image_table", "overview"]

Record = dict[str, Any]


def image_table(image: Record) -> Table:
    """Return the maps of one image, the most faithful first."""
    title = Text.assemble(
        (plain(image["path"]), "bold"), f": {plain(image['label'])} {format_probability(image['probability'])}"
    )
    others = [each for each in image["top"] if each["index"] != image["target"]][:4]
    also = ", ".join(f"{plain(each['label'])} {format_probability(each['probability'])}" for each in others)
    table = Table(title=title, title_justify="left", caption_justify="left", box=None, pad_edge=False)
    table.caption = Text(f"{plain(image['verdict'])}\nOther classes: {also}" if also else plain(image["verdict"]))
    for name in _columns(image):
        table.add_column(name, justify=_JUSTIFY.get(name, "right"), no_wrap=name != "map", overflow="fold")
    for row in image["maps"]:
        table.add_row(*_cells(row), style="dim" if row["control"] else "bold green" if row["rank"] == 1 else "")
    return table


_JUSTIFY: dict[str, Any] = {"map": "left", "": "left"}


def _columns(image: Record) -> list[str]:
    """Return the heads: the mean over several fills with its interval, or the scores by the main ones alone."""
    scores = ["score", "interval", "beats"] if image["fills"] else ["insertion", "deletion", "ins − del"]
    return ["rank", "map", *scores, "passes", "seconds", ""]


def _cells(row: Record) -> Sequence[str]:
    marks = ["control"] if row["control"] else ["class-agnostic"] if row["class_agnostic"] else []
    forward, backward = row["passes"]["forward"], row["passes"]["backward"]
    if row["fills"]:
        scores = [format_score(row["score"]), format_interval(*row["interval"]), format_percent(row["share"])]
    else:
        scores = [format_score(row[name]) for name in ("insertion", "deletion", "ins_del")]
    return (
        "–" if row["rank"] is None else str(row["rank"]),
        row["recipe"],
        *scores,
        f"{forward:.4g} + {backward:.4g}",
        f"{row['seconds']:.2f}",
        ", ".join([*marks, *row["flags"]]),
    )


def fill_table(image: Record) -> Table:
    """Return what the maps of one image score under each fill."""
    title = "insertion − deletion under each fill; beats: the share of fills under which a map beats every control"
    table = Table(title=Text(title), title_justify="left", box=None, pad_edge=False)
    table.add_column("map", overflow="fold")
    for name, fill in image["fills"].items():
        table.add_column(name.replace("_", " ") + ("" if fill["room"] else " (no room)"), justify="right")
    for row in image["maps"]:
        cells = [format_score(row["fills"].get(fill)) for fill in image["fills"]]
        table.add_row(row["recipe"], *cells, style="dim" if row["control"] else "")
    return table


def overview(images: Sequence[Record]) -> Table:
    """Return one line per image: what was explained, and which map came first."""
    table = Table(title=f"{len(images)} images", title_justify="left", box=None, pad_edge=False)
    for name in ("image", "explained", "probability", "first", "score", "best control", "verdict"):
        table.add_column(name, justify="right" if name in ("probability", "score", "best control") else "left")
    for image in images:
        first = image["maps"][0]
        controls = [row["score"] for row in image["maps"] if row["control"] and row["rank"]]
        mark = " (a control)" if first["control"] else ""
        table.add_row(
            Text(plain(image["path"])),
            Text(plain(image["label"])),
            format_probability(image["probability"]),
            Text(first["recipe"] + mark),
            format_score(first["score"]),
            format_score(max(controls)) if controls else "–",
            Text(image["withheld"] or ("most faithful" if image["best"] else "none to believe")),
        )
    return table


def fields_table(rows: Sequence[Sequence[str]], heads: Sequence[str], title: str = "") -> Table:
    """Return a plain table of texts; the last column takes the room that is left."""
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for column, head in enumerate(heads):
        table.add_column(head, overflow="fold", no_wrap=column == 0)
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    return table
