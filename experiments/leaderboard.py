"""The leaderboard of a model as tables: from the store of its run to docs/measured.

    SIGHTLINE_DATA=../shared/data sightline bench run leaderboard-cnn --store runs/leaderboard-cnn
    python experiments/leaderboard.py cnn --runs runs

Writes docs/measured/leaderboard-cnn.csv, a row per recipe with the mean, the standard error, the 95 % bootstrap
interval and the letters of ties of each metric (recipes that share a letter cannot be told apart: paired permutation
tests, Holm), and docs/measured/leaderboard-cnn-agreement.csv, Kendall's tau between the orders of
every two metrics; the table of the panel of photographs, which have no masks, is leaderboard-cnn-photographs.csv.
scripts/measured_text.py puts them into docs/guide/leaderboard.md.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Sequence
from pathlib import Path

import pandas
from claims import number

from sightline.bench.store.store import read_rows
from sightline.bench.tables.table import Table, TableRow, make_table

MEASURED = Path(__file__).parents[1] / "docs" / "measured"
FIRST = ("average_precision", "single_deletion")  # rows are in the order of the first of these that was measured
PANELS = ("few-passes", "many-passes")  # of the plan; the second has fewer of the same images
PHOTOGRAPHS = "photographs"


def board(table: Table) -> list[dict[str, str]]:
    """Return a row per recipe, the best by FIRST first; a metric that is undefined for it is left empty."""
    metrics = list(dict.fromkeys(row.metric for row in table.rows))
    first = next(metric for metric in FIRST if metric in metrics)
    by_recipe: dict[str, dict[str, TableRow]] = {}
    for row in table.rows:
        by_recipe.setdefault(row.recipe, {})[row.metric] = row
    means = {recipe: found[first].mean for recipe, found in by_recipe.items()}
    order = sorted(by_recipe, key=lambda recipe: (math.isnan(means[recipe]), -means[recipe], recipe))
    return [board_row(recipe, by_recipe[recipe], metrics) for recipe in order]


def board_row(recipe: str, found: dict[str, TableRow], metrics: Sequence[str]) -> dict[str, str]:
    """Return the row of one recipe."""
    any_row = max(found.values(), key=lambda row: row.count)
    note = " (control)" if any_row.control else " †" if any_row.agnostic else ""
    cells = {"recipe": recipe, "note": note}
    for metric in metrics:
        row = found[metric]
        known = row.count > 1
        numbers = {"": row.mean, "_error": row.standard_error, "_low": row.low, "_high": row.high}
        cells |= {f"{metric}{end}": number(value) if known else "" for end, value in numbers.items()}
        cells[f"{metric}_ties"] = row.group
    passes = any_row.forward + 2 * any_row.backward
    return cells | {"passes": f"{passes:.0f}" if passes >= 100 else f"{passes:.3g}", "images": str(any_row.count)}


def agreement(table: Table) -> list[dict[str, str]]:
    """Return Kendall's tau between every two metrics."""
    return [
        {"one": each.one, "other": each.other, "tau": f"{each.tau:.2f}", "recipes": str(each.recipes)}
        for each in table.agreement
    ]


def write(name: str, rows: Sequence[dict[str, str]]) -> None:
    """Write rows to a table of docs/measured."""
    with (MEASURED / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def complete(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Return the rows of the images that every recipe was judged on, so that a run may be read before its end."""
    recipes = rows.groupby("image")["recipe"].nunique()
    return rows[rows["image"].isin(recipes[recipes == rows["recipe"].nunique()].index)]


def board_rows(store: Path) -> pandas.DataFrame:
    """Return the rows of both panels; a panel that was not run is left out."""
    return pandas.concat([complete(read_rows(store / panel)) for panel in PANELS if (store / panel).exists()])


def main() -> None:
    """Read the store, and write its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("vit", "cnn"))
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="the folder of the stores")
    given = parser.parse_args()
    name = f"leaderboard-{given.kind}"
    table = make_table(board_rows(given.runs / name))
    write(name, board(table))
    write(f"{name}-agreement", agreement(table))
    if (given.runs / name / PHOTOGRAPHS).exists():
        photographs = make_table(complete(read_rows(given.runs / name / PHOTOGRAPHS)))
        write(f"{name}-{PHOTOGRAPHS}", board(photographs))


if __name__ == "__main__":
    main()
