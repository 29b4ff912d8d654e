"""Tables of what a run found, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from sightline.cli.console import plain

__all__ = ["fields_table", "image_table", "overview", "percent", "score"]

Record = dict[str, Any]


def image_table(image: Record) -> Table:
    """Return the maps of one image, the most faithful first."""
    title = Text.assemble((plain(image["path"]), "bold"), f": {plain(image['label'])} {percent(image['probability'])}")
    others = [one for one in image["top"] if one["index"] != image["target"]][:4]
    also = ", ".join(f"{plain(one['label'])} {percent(one['probability'])}" for one in others)
    table = Table(title=title, title_justify="left", caption_justify="left", box=None, pad_edge=False)
    table.caption = Text(f"{plain(image['verdict'])}\nOther classes: {also}" if also else plain(image["verdict"]))
    for name, justify in _COLUMNS.items():
        table.add_column(name, justify=justify, no_wrap=name != "map", overflow="fold")
    for row in image["maps"]:
        table.add_row(*_cells(row), style="dim" if row["control"] else "bold green" if row["rank"] == 1 else "")
    return table


_COLUMNS: dict[str, Any] = {
    "rank": "right",
    "map": "left",
    "insertion": "right",
    "deletion": "right",
    "ins − del": "right",
    "passes": "right",
    "seconds": "right",
    "": "left",
}


def _cells(row: Record) -> Sequence[str]:
    marks = ["control"] if row["control"] else ["class-agnostic"] if row["class_agnostic"] else []
    forward, backward = row["passes"]["forward"], row["passes"]["backward"]
    return (
        "–" if row["rank"] is None else str(row["rank"]),
        row["recipe"],
        score(row["insertion"]),
        score(row["deletion"]),
        score(row["ins_del"]),
        f"{forward:.4g} + {backward:.4g}",
        f"{row['seconds']:.2f}",
        ", ".join([*marks, *row["flags"]]),
    )


def overview(images: Sequence[Record]) -> Table:
    """Return one line per image: what was explained, and which map came first."""
    table = Table(title=f"{len(images)} images", title_justify="left", box=None, pad_edge=False)
    for name in ("image", "explained", "probability", "most faithful", "ins − del", "best control"):
        table.add_column(name, justify="right" if name in ("probability", "ins − del", "best control") else "left")
    for image in images:
        first = image["maps"][0]
        controls = [row["ins_del"] for row in image["maps"] if row["control"] and row["rank"]]
        mark = " (a control)" if first["control"] else ""
        table.add_row(
            Text(plain(image["path"])),
            Text(plain(image["label"])),
            percent(image["probability"]),
            Text(first["recipe"] + mark),
            score(first["ins_del"]),
            score(max(controls)) if controls else "–",
        )
    return table


def fields_table(rows: Sequence[Sequence[str]], heads: Sequence[str], title: str = "") -> Table:
    """Return a plain table of texts; the last column takes the room that is left."""
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for place, head in enumerate(heads):
        table.add_column(head, overflow="fold", no_wrap=place == 0)
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    return table


def score(value: float | None) -> str:
    """Write a score with three digits and a real minus sign."""
    return "–" if value is None or value != value else f"{round(value, 3) + 0.0:.3f}".replace("-", "−")


def percent(value: float) -> str:
    """Write a probability."""
    return "< 0.1 %" if 0 < value < 0.001 else f"{100 * value:.1f} %"
