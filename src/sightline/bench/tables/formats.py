"""Formats: the rows of a table as a frame, CSV, Markdown, LaTeX and JSON, all made from the columns of its rows.

Numbers for reading have four significant digits, those in JSON ten.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from sightline.bench.tables.columns import TableRow, cell_text, columns_of, integer_columns, shown_columns
from sightline.bench.tables.number_format import UNKNOWN, number, percent
from sightline.extras import require

if TYPE_CHECKING:
    import pandas

    from sightline.bench.tables.table import Table
    from sightline.bench.unit import Package

__all__ = ["Records", "records", "row_records", "timing", "to_csv", "to_frame", "to_latex", "to_markdown"]

PRECISE = 10  # digits in JSON
WRITTEN = {"standard_error": "error"}  # fields that files call by another name, the same in every version
ARROWS = {"higher": "↑", "lower": "↓"}
SHORT = 12  # digits of a digest for people


def records(items: Iterable[Any], without: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return dataclasses as plain objects for JSON: NaN and infinity are null, numbers have ten digits."""
    return [_record(item, without) for item in items]


def _record(item: Any, without: Sequence[str] = ()) -> dict[str, Any]:
    names = [own.name for own in fields(item) if own.name not in without]
    return {WRITTEN.get(name, name): _plain(getattr(item, name)) for name in names}


@dataclass(frozen=True, eq=False)
class Records(Collection[dict[str, Any]]):
    """Dataclasses as plain objects, like `records`, each made when it is asked for, since there may be millions."""

    items: Collection[Any]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(_record, self.items)

    def __contains__(self, item: object) -> bool:
        return any(item == own for own in self)


def row_records(rows: Sequence[TableRow], row_type: type[TableRow]) -> list[dict[str, Any]]:
    """Return the rows as plain objects for JSON, without what another run will not repeat."""
    return records(rows, without=[name for name, column in columns_of(row_type).items() if column.varies])


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{PRECISE}g}") + 0.0 if math.isfinite(value) else None
    return value


def timing(rows: Sequence[TableRow]) -> list[dict[str, Any]]:
    """Return the wall time per image of every recipe of a model."""
    seconds = {(row.model, row.recipe): row.seconds for row in rows}
    return [
        {"model": model, "recipe": recipe, "seconds": _plain(took)} for (model, recipe), took in sorted(seconds.items())
    ]


def to_frame(rows: Sequence[TableRow], row_type: type[TableRow], *, timing: bool = False) -> pandas.DataFrame:
    """Return the rows as a pandas frame."""
    pandas = require("pandas")
    names = _names(row_type, timing)
    written = [WRITTEN.get(name, name) for name in names]
    frame = pandas.DataFrame([[getattr(row, name) for name in names] for row in rows], columns=written)
    integers = [WRITTEN.get(name, name) for name in integer_columns(row_type) if name in names]
    return frame.astype(dict.fromkeys(integers, "Int64"))


def to_csv(rows: Sequence[TableRow], row_type: type[TableRow], *, timing: bool = False) -> str:
    """Return the rows as CSV; what is unknown is empty."""
    names = _names(row_type, timing)
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow([WRITTEN.get(name, name) for name in names])
    writer.writerows([_cell(getattr(row, name)) for name in names] for row in rows)
    return written.getvalue()


def _names(row_type: type[TableRow], timing: bool) -> list[str]:
    return [name for name, column in columns_of(row_type).items() if timing or not column.varies]


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return number(value) if isinstance(value, float) else str(value)


# ---- Markdown --------------------------------------------------------------------------------------------------------


def to_markdown(table: Table) -> str:
    """Return one overview per model and one table per metric, in Markdown."""
    parts = []
    for model in _distinct(row.model for row in table.rows):
        own = [row for row in table.rows if row.model == model]
        parts += [f"## {_md(model)}", _overview(own)]
        for metric in _distinct(row.metric for row in own):
            shown = [row for row in own if row.metric == metric]
            how = table.reductions.get(metric, "")
            parts += [f"### {_md(metric)} {ARROWS[shown[0].direction]}", _detail(shown, table)]
            parts += [f"{how[0].upper()}{how[1:]}; {shown[0].count} images in common."] if how else []
    if parts and table.packages:
        parts.append(f"Computed by {_md(_packages(table.packages))}.")
    return "\n\n".join(parts) + "\n" if parts else ""


def _packages(packages: Sequence[Package]) -> str:
    """Name the packages with version and the first digits of the digest of their source."""
    return ", ".join(
        f"{' '.join(filter(None, (package.name, package.version)))} (source {package.digest[:SHORT]})"
        for package in packages
    )


def _overview(rows: Sequence[TableRow]) -> str:
    metrics = _distinct(row.metric for row in rows)
    arrows = {row.metric: ARROWS[row.direction] for row in rows}
    heads = ["recipe", *(f"{metric} {arrows[metric]}" for metric in metrics)]
    cells = []
    for by_metric in _by_recipe(rows):
        recipe = _md_cell(next(iter(by_metric.values())), "recipe")
        cells.append([recipe, *(_mean_and_group(by_metric.get(metric)) for metric in metrics)])
    return _grid(heads, cells, left=1)


def _mean_and_group(row: TableRow | None) -> str:
    return UNKNOWN if row is None else f"{_md_cell(row, 'mean')} {row.group}".strip()


def _detail(rows: Sequence[TableRow], table: Table) -> str:
    shown, confidence = shown_columns(table.row_type), percent(table.settings.confidence)
    heads = [column.heading.format(confidence=confidence) for column in shown.values()]
    return _grid(heads, [[_md_cell(row, name) for name in shown] for row in rows], left=2)


def _md_cell(row: TableRow, name: str) -> str:
    """Return a cell; the best mean is bold, and what may hold anything is kept from being read as Markdown."""
    text = cell_text(row, name)
    if name == "mean" and row.rank == 1:
        return f"**{text}**"
    return _md(text) if isinstance(getattr(row, name), str) else text


def _grid(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """Return a Markdown table; the first columns are set to the left."""
    rule = [":--" if column < left else "--:" for column in range(len(heads))]
    cells = [[_md(head) for head in heads], rule, *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _md(text: str) -> str:
    """Keep a text from being read as Markdown."""
    for mark in "\\`*_|<>[]":
        text = text.replace(mark, f"\\{mark}")
    return text.replace("\n", " ")


# ---- LaTeX -----------------------------------------------------------------------------------------------------------


def to_latex(table: Table) -> str:
    """Return one booktabs table per model: recipes down, metrics across; the packages stand in a comment."""
    models = _distinct(row.model for row in table.rows)
    comment = [f"% Computed by {' '.join(_packages(table.packages).split())}."] if table.packages and models else []
    confidence = table.settings.confidence
    tables = [_latex([row for row in table.rows if row.model == model], confidence) for model in models]
    return "\n".join([*comment, *tables])


def _latex(rows: Sequence[TableRow], confidence: float) -> str:
    metrics = _distinct(row.metric for row in rows)
    arrows = {row.metric: r"$\uparrow$" if row.direction == "higher" else r"$\downarrow$" for row in rows}
    heads = ["recipe", *(f"{_tex(metric)} {arrows[metric]}" for metric in metrics)]
    bodies: dict[bool, list[str]] = {False: [], True: []}  # methods, controls
    for by_metric in _by_recipe(rows):
        first = next(iter(by_metric.values()))
        cells = [_tex(first.recipe), *(_tex_mean(by_metric.get(metric)) for metric in metrics)]
        bodies[first.control].append(f"{' & '.join(cells)} \\\\")
    counts = sorted({row.count for row in rows if row.rank is not None})
    images = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}" if counts else "0"
    caption = (
        f"{_tex(rows[0].model)}: values with half the width of the {percent(confidence)}\\,\\% interval, {images} "
        "images. The best is bold; recipes that share a letter are not significantly different."
    )
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            f"\\caption{{{caption}}}",
            f"\\begin{{tabular}}{{l{'r' * len(metrics)}}}",
            r"\toprule",
            f"{' & '.join(heads)} \\\\",
            r"\midrule",
            "\n\\midrule\n".join("\n".join(body) for body in bodies.values() if body),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _tex_mean(row: TableRow | None) -> str:
    if row is None or math.isnan(row.mean):
        return "--"
    shown = number(row.mean)
    mean = f"\\mathbf{{{shown}}}" if row.rank == 1 else shown
    half = "" if math.isnan(row.low) else f" \\pm {number((row.high - row.low) / 2, 2)}"
    group = f"^{{\\mathrm{{{row.group}}}}}" if row.group else ""
    return f"${mean}{group}{half}$"


_TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_TEX |= {mark: f"\\{mark}" for mark in "&%$#_{}"}


def _tex(text: str) -> str:
    """Keep a text from being read as LaTeX."""
    return "".join(_TEX.get(mark, mark) for mark in text.replace("\n", " "))


def _by_recipe(rows: Sequence[TableRow]) -> Iterator[Mapping[str, TableRow]]:
    """Yield the rows of each recipe by metric: methods first, by their mean rank, then controls."""
    by_recipe: dict[str, dict[str, TableRow]] = {}
    for row in rows:
        by_recipe.setdefault(row.recipe, {})[row.metric] = row

    def order(by_metric: dict[str, TableRow]) -> tuple[bool, float, str]:
        ranks = [row.rank for row in by_metric.values() if row.rank is not None]
        first = next(iter(by_metric.values()))
        return first.control, sum(ranks) / len(ranks) if ranks else math.inf, first.recipe

    yield from sorted(by_recipe.values(), key=order)


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
