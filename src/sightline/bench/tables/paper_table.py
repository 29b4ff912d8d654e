"""The table as its paper lays it out: our numbers in the paper's rows and columns, the printed ones beside them.

A plan says with ``[layout]`` what goes down and what across. Printed numbers are shown only where models, methods and
images are those of the plan; a slice is compared with nothing.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sightline.bench.plan import Layout, Plan
from sightline.bench.tables.table import Table, TableRow
from sightline.bench.tables.traits import traits_of

__all__ = ["PanelResult", "PaperTable", "paper_table"]

Key = tuple[str, ...]
SECONDS = "seconds"
AVERAGE = "average improvement"
ARROWS = {"higher": "↑", "lower": "↓"}


@dataclass(frozen=True, eq=False)
class PanelResult:
    """What one panel of a plan came to: its plan and its table."""

    plan: Plan
    table: Table


@dataclass(frozen=True, slots=True)
class Cell:
    """One number of the table: ours, and the paper's where it is of the same thing."""

    text: str
    printed: str = ""

    def __str__(self) -> str:
        return f"{self.text} [{self.printed}]" if self.printed else self.text


@dataclass(frozen=True)
class PaperTable:
    """A published table, filled with what was measured.

    Attributes:
        title: of the plan.
        source: which published table it is.
        row_names: what stands before each row, one name per level.
        columns: the headings, one text per level.
        rows: by the texts before them, one cell per column, None where nothing was measured.
    """

    title: str
    source: str
    row_names: Key
    columns: tuple[Key, ...]
    rows: Mapping[Key, tuple[Cell | None, ...]]

    @property
    def has_printed(self) -> bool:
        """Whether a number of the paper is shown."""
        return any(cell is not None and cell.printed for cells in self.rows.values() for cell in cells)

    def heads(self) -> list[str]:
        """Return the heading of every column, those of the rows' texts first."""
        return [*self.row_names, *(" · ".join(filter(None, column)) for column in self.columns)]

    def lines(self) -> list[list[str]]:
        """Return every row as texts."""
        return [[*key, *("–" if cell is None else str(cell) for cell in cells)] for key, cells in self.rows.items()]

    def to_markdown(self) -> str:
        """Return it as a Markdown table with its title."""
        legend = "In brackets: as printed." if self.has_printed else "Other images or models than the paper's."
        lines = [f"## {self.title}", "", f"{self.source}. {legend}".removeprefix(". "), ""]
        heads = self.heads()
        lines += [_line(heads), _line(["---"] * len(heads)), *(_line(line) for line in self.lines())]
        return "\n".join(lines) + "\n"

    def to_csv(self) -> str:
        """Return it as CSV, the printed numbers in columns of their own."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        heads = self.heads()
        writer.writerow([*heads, *(f"{head}, printed" for head in heads[len(self.row_names) :])])
        for key, cells in self.rows.items():
            ours = ["" if cell is None else cell.text for cell in cells]
            writer.writerow([*key, *ours, *("" if cell is None else cell.printed for cell in cells)])
        return file.getvalue()

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        heads = self.heads()
        return {"title": self.title, "source": self.source, "columns": heads, "rows": self.lines()}


def paper_table(panels: Sequence[PanelResult]) -> PaperTable | None:
    """Lay out what the panels of a plan came to as its paper does; None where the plan does not say how."""
    first = next((panel.plan for panel in panels if panel.plan.layout is not None), None)
    if first is None or first.layout is None:
        return None
    layout = first.layout
    found: dict[tuple[Key, Key], Cell] = {}
    for panel in panels:
        cells = _gains(panel, layout) if layout.cell == "gain" else _values(panel, layout)
        for names, cell in cells:
            key = (tuple(names[level] for level in layout.rows), tuple(names[level] for level in layout.columns))
            found.setdefault(key, cell)
    columns = tuple(dict.fromkeys(column for _, column in found))
    rows = {
        row: tuple(found.get((row, column)) for column in columns) for row in dict.fromkeys(row for row, _ in found)
    }
    title, source = first.title, first.source
    return PaperTable(title, source, tuple(layout.rows), columns, rows)


Named = tuple[dict[str, str], Cell]


def _values(panel: PanelResult, layout: Layout) -> Iterator[Named]:
    """Yield every mean of a panel with the names that place it."""
    plan, order = panel.plan, _order(panel)
    for row in sorted(panel.table.rows, key=order):
        if not traits_of(row.recipe).control:
            yield (
                _names(plan, row),
                Cell(_number(row, layout), _printed(plan, row.model, row.recipe, row.metric, layout)),
            )
    yield from _differences(panel, layout)
    if layout.seconds:
        yield from _seconds(panel, layout)


def _differences(panel: PanelResult, layout: Layout) -> Iterator[Named]:
    """Yield the columns that are one metric less another."""
    plan, rows = panel.plan, sorted(panel.table.rows, key=_order(panel))
    means = {(row.model, row.recipe, row.metric): row.mean for row in rows}
    for place, (name, (more, less)) in enumerate(layout.differences.items()):
        for row in rows:
            other = means.get((row.model, row.recipe, less))
            if row.metric == more and other is not None and not traits_of(row.recipe).control:
                number = f"{layout.scale * (row.mean - other):.{layout.digits}f}"
                printed = _as_printed(_at(plan, row.model, row.recipe, len(plan.metrics) + place), layout)
                yield _names(plan, row) | {"metric": f"{name} ↑"}, Cell(number, printed)


def _gains(panel: PanelResult, layout: Layout) -> Iterator[Named]:
    """Yield every value with VAR and how much that adds to the method without it, and the average of what it adds."""
    plan, order = panel.plan, _order(panel)
    rows = sorted(panel.table.rows, key=order)
    means = {(row.model, row.recipe, row.metric): row.mean for row in rows}
    pairs = {row.recipe: pair for row in rows if (pair := _base(row.recipe)) is not None}
    several = len({preset for _, preset in pairs.values()}) > 1
    added: dict[tuple[str, str, str], list[float]] = {}
    placed: list[tuple[str, Named]] = []
    for row in rows:
        if row.recipe not in pairs or (row.model, pairs[row.recipe][0], row.metric) not in means:
            continue
        base, preset = pairs[row.recipe]
        without = means[row.model, base, row.metric]
        gain = 100 * (row.mean / without - 1) if without else math.nan
        added.setdefault((row.model, preset, row.metric), []).append(gain)
        names = _names(plan, row) | {"method": plan.labels.get(base, base) + (f", {preset}" if several else "")}
        text = f"{layout.scale * row.mean:.{layout.digits}f} {gain:+.0f} %"
        placed.append((preset, (names, Cell(text, _printed(plan, row.model, base, row.metric, layout)))))
    for preset in dict.fromkeys(preset for preset, _ in placed):
        yield from (named for own, named in placed if own == preset)
        for (model, own, metric), gains in added.items():
            if layout.average and own == preset:
                row = next(row for row in rows if (row.model, row.metric) == (model, metric))
                method = AVERAGE + (f", {preset}" if several else "")
                yield _names(plan, row) | {"method": method}, Cell(f"{sum(gains) / len(gains):+.2f} %")


def _base(recipe: str) -> tuple[str, str] | None:
    """Return the method inside `var` and the preset; None for any other recipe."""
    from sightline.operators.contrast import Var
    from sightline.recipe import parse, text

    method = parse(recipe)
    return (text(method.method), method.preset) if isinstance(method, Var) else None


def _seconds(panel: PanelResult, layout: Layout) -> Iterator[Named]:
    """Yield the mean and standard deviation of the seconds that each image took."""
    plan = panel.plan
    first = {(row.model, row.recipe): row for row in sorted(panel.table.rows, key=lambda row: row.metric, reverse=True)}
    for (model, recipe), row in sorted(first.items()):
        if row.control:
            continue
        names = {"heading": plan.heading, "model": plan.labels.get(model, model), "metric": SECONDS}
        names["method"] = plan.labels.get(recipe, recipe)
        printed = _as_printed(_at(plan, model, recipe, len(plan.metrics) + len(layout.differences)), layout)
        yield names, Cell(f"{row.seconds:.3g} ± {row.seconds_deviation:.2g}", printed)


def _names(plan: Plan, row: TableRow) -> dict[str, str]:
    metric = f"{plan.labels.get(row.metric, row.metric)} {ARROWS[row.direction]}"
    return {
        "heading": plan.heading,
        "model": plan.labels.get(row.model, row.model),
        "method": plan.labels.get(row.recipe, row.recipe),
        "metric": metric,
    }


def _number(row: TableRow, layout: Layout) -> str:
    value = f"{layout.scale * row.mean:.{layout.digits}f}"
    return f"{value} ± {layout.scale * row.standard_error:.{layout.digits}f}" if layout.error else value


def _printed(plan: Plan, model: str, recipe: str, metric: str, layout: Layout) -> str:
    """Return the paper's number, an empty text where there is none."""
    metrics = plan.expanded().metrics
    return _as_printed(_at(plan, model, recipe, metrics.index(metric)), layout) if metric in metrics else ""


def _at(plan: Plan, model: str, recipe: str, place: int) -> float | str | None:
    from sightline.recipe import parse, text

    by_recipe = {text(parse(name)): numbers for name, numbers in plan.printed.get(model, {}).items()}
    numbers = by_recipe.get(recipe, [])
    return numbers[place] if place < len(numbers) else None


def _as_printed(value: float | str | None, layout: Layout) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.{layout.digits}f}"


def _order(panel: PanelResult) -> Any:
    """Return a key that sorts rows of the table as the plan names models, recipes and metrics."""
    plan = panel.plan
    expanded = plan.expanded()
    places = [
        {name: place for place, name in enumerate(names)} for names in (plan.models, expanded.recipes, expanded.metrics)
    ]

    def place(row: TableRow) -> tuple[int, ...]:
        return tuple(
            own.get(name, len(own)) for own, name in zip(places, (row.model, row.recipe, row.metric), strict=True)
        )

    return place


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
