"""Formats: the lines of a table as a frame, CSV, Markdown, LaTeX and JSON.

Numbers for reading have four significant digits, those in JSON ten. Before they are cut they are rounded to twelve, so
that a difference in the last bit does not show.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from sightline.bench.table_rows import Line
from sightline.extras import require

if TYPE_CHECKING:
    import pandas

DIGITS, PRECISE = 4, 10
NOTHING = "–"
WHOLE = ("count", "failed", "degenerate", "flagged", "rank", "rank_low", "rank_high")
ARROWS = {"higher": "↑", "lower": "↓"}


def number(value: float | None, digits: int = DIGITS) -> str:
    """Write a number with some significant digits, trailing zeros among them.

    >>> number(0.5), number(-0.00012345), number(12345.6), number(0.0), number(float("nan"))
    ('0.5000', '-0.0001234', '12346', '0', '–')
    """
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    snapped = float(f"{value:.12g}") + 0.0
    if snapped == 0:
        return "0"
    if abs(snapped) >= 10**digits:
        return f"{snapped:.0f}" if abs(snapped) < 1e15 else f"{snapped:.{digits - 1}e}"
    text = f"{snapped:#.{digits}g}"
    return text.rstrip(".")


def p_value(value: float) -> str:
    """Write a p-value with two digits, very small ones as a bound."""
    if math.isnan(value):
        return NOTHING
    return "< 0.0001" if value < 0.0001 else f"{float(f'{value:.12g}'):.2g}"


def records(things: Iterable[Any], without: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return dataclasses as plain objects for JSON: NaN and infinity are null, numbers have ten digits."""
    return [{key: _plain(value) for key, value in asdict(thing).items() if key not in without} for thing in things]


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{PRECISE}g}") + 0.0 if math.isfinite(value) else None
    return value


def timing(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return the wall time per image of every recipe of a model."""
    found = {(line.model, line.recipe): line.seconds for line in lines}
    return [
        {"model": model, "recipe": recipe, "seconds": _plain(took)} for (model, recipe), took in sorted(found.items())
    ]


def to_frame(lines: Sequence[Line], *, timing: bool = False) -> pandas.DataFrame:
    """Return the lines as a pandas frame."""
    pandas = require("pandas")
    names = _names(timing)
    frame = pandas.DataFrame([[getattr(line, name) for name in names] for line in lines], columns=names)
    return frame.astype(dict.fromkeys(WHOLE, "Int64"))


def to_csv(lines: Sequence[Line], *, timing: bool = False) -> str:
    """Return the lines as CSV; what is unknown is empty."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(_names(timing))
    writer.writerows([_cell(getattr(line, name)) for name in _names(timing)] for line in lines)
    return written.getvalue()


def _names(timing: bool) -> list[str]:
    return [each.name for each in fields(Line) if timing or each.name != "seconds"]


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return number(value) if isinstance(value, float) else str(value)


def to_markdown(lines: Sequence[Line], reductions: Mapping[str, str], confidence: float) -> str:
    """Return one overview per model and one table per metric, in Markdown."""
    parts = []
    for model in _distinct(line.model for line in lines):
        own = [line for line in lines if line.model == model]
        parts += [f"## {_md(model)}", _overview(own)]
        for metric in _distinct(line.metric for line in own):
            shown = [line for line in own if line.metric == metric]
            how = reductions.get(metric, "")
            parts += [f"### {_md(metric)} {ARROWS[shown[0].direction]}", _detail(shown, confidence)]
            parts += [f"{how[0].upper()}{how[1:]}; {shown[0].count} images in common."] if how else []
    return "\n\n".join(parts) + "\n" if parts else ""


def _overview(lines: Sequence[Line]) -> str:
    metrics = _distinct(line.metric for line in lines)
    arrows = {line.metric: ARROWS[line.direction] for line in lines}
    heads = ["recipe", *(f"{metric} {arrows[metric]}" for metric in metrics)]
    rows = []
    for recipe, cells in _pivot(lines):
        shown = [_figure(cells.get(metric)) for metric in metrics]
        rows.append([_name(recipe, cells), *shown])
    return _grid(heads, rows, left=1)


def _figure(line: Line | None) -> str:
    if line is None:
        return NOTHING
    figure = f"**{number(line.mean)}**" if line.rank == 1 else number(line.mean)
    return f"{figure} {line.group}".strip()


def _detail(lines: Sequence[Line], confidence: float) -> str:
    heads = ["rank", "recipe", "mean", f"{_percent(confidence)} % interval", "group", "ranks", "wins"]
    heads += ["over control", "p", "passes", "images", "failed", "degenerate"]
    rows = [
        [
            NOTHING if line.rank is None else str(line.rank),
            _name(line.recipe, {line.metric: line}),
            f"**{number(line.mean)}**" if line.rank == 1 else number(line.mean),
            _interval(line.low, line.high),
            line.group or NOTHING,
            NOTHING if line.rank_low is None else f"{line.rank_low}–{line.rank_high}",
            number(line.wins),
            number(line.margin),
            p_value(line.p_control),
            f"{number(line.forward)} + {number(line.backward)}",
            str(line.count),
            str(line.failed),
            str(line.degenerate),
        ]
        for line in lines
    ]
    return _grid(heads, rows, left=2)


def _grid(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """Return a Markdown table; the first columns are set to the left."""
    rule = [":--" if place < left else "--:" for place in range(len(heads))]
    cells = [[_md(head) for head in heads], rule, *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _interval(low: float, high: float) -> str:
    return NOTHING if math.isnan(low) else f"[{number(low)}, {number(high)}]"


def _percent(share: float) -> str:
    return f"{100 * share:.6g}"


def _name(recipe: str, cells: Mapping[str, Line]) -> str:
    line = next(iter(cells.values()))
    note = " (control)" if line.control else " (class-agnostic)" if line.agnostic else ""
    return f"{_md(recipe)}{note}"


def _md(text: str) -> str:
    """Keep a text from being read as Markdown."""
    for mark in "\\`*_|<>[]":
        text = text.replace(mark, f"\\{mark}")
    return text.replace("\n", " ")


def to_latex(lines: Sequence[Line], confidence: float) -> str:
    """Return one booktabs table per model: recipes down, metrics across."""
    models = _distinct(line.model for line in lines)
    return "\n".join(_latex([line for line in lines if line.model == model], confidence) for model in models)


def _latex(lines: Sequence[Line], confidence: float) -> str:
    metrics = _distinct(line.metric for line in lines)
    arrows = {line.metric: r"$\uparrow$" if line.direction == "higher" else r"$\downarrow$" for line in lines}
    heads = ["recipe", *(f"{_tex(metric)} {arrows[metric]}" for metric in metrics)]
    rows = [
        (next(iter(cells.values())).control, [_tex(recipe), *(_tex_figure(cells.get(metric)) for metric in metrics)])
        for recipe, cells in _pivot(lines)
    ]
    bodies = [[f"{' & '.join(row)} \\\\" for control, row in rows if control is kind] for kind in (False, True)]
    counts = sorted({line.count for line in lines if line.rank is not None})
    images = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}" if counts else "0"
    caption = (
        f"{_tex(lines[0].model)}: figures with half the width of the {_percent(confidence)}\\,\\% interval, {images} "
        "images. The best is bold; recipes that share a letter are not significantly different."
    )
    body = "\n\\midrule\n".join("\n".join(part) for part in bodies if part)
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            f"\\caption{{{caption}}}",
            f"\\begin{{tabular}}{{l{'r' * len(metrics)}}}",
            r"\toprule",
            f"{' & '.join(heads)} \\\\",
            r"\midrule",
            body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _tex_figure(line: Line | None) -> str:
    if line is None or math.isnan(line.mean):
        return "--"
    shown = number(line.mean)
    figure = f"\\mathbf{{{shown}}}" if line.rank == 1 else shown
    half = "" if math.isnan(line.low) else f" \\pm {number((line.high - line.low) / 2, 2)}"
    group = f"^{{\\mathrm{{{line.group}}}}}" if line.group else ""
    return f"${figure}{group}{half}$"


_TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_TEX |= {mark: f"\\{mark}" for mark in "&%$#_{}"}


def _tex(text: str) -> str:
    """Keep a text from being read as LaTeX."""
    return "".join(_TEX.get(mark, mark) for mark in text.replace("\n", " "))


def _pivot(lines: Sequence[Line]) -> Iterator[tuple[str, dict[str, Line]]]:
    """Yield the recipes with their line under each metric: methods first, by their mean rank, then controls."""
    by_recipe: dict[str, dict[str, Line]] = {}
    for line in lines:
        by_recipe.setdefault(line.recipe, {})[line.metric] = line

    def place(item: tuple[str, dict[str, Line]]) -> tuple[bool, float, str]:
        ranks = [line.rank for line in item[1].values() if line.rank is not None]
        return next(iter(item[1].values())).control, sum(ranks) / len(ranks) if ranks else math.inf, item[0]

    yield from sorted(by_recipe.items(), key=place)


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
