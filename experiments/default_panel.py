"""Which cheap recipes belong into the default panel? Chosen on the leaderboard's images, reported on others.

    python experiments/default_panel.py cnn --runs runs --choose    # prints the choice, from runs/leaderboard-cnn
    sightline bench run default-panel-cnn --store runs/default-panel-cnn --dataset ../shared/data/pets
    python experiments/default_panel.py cnn --runs runs

The score of a recipe is the mean of single deletion and average precision. The rule: of every family of methods the
recipe with the highest score, and of these the five highest. Candidates take at most 12 passes, a backward pass counted
twice; controls are none, nor are recipes whose map is the same for every class. The plan default-panel-cnn holds what
was chosen and the panel before, and runs on other images; those of the leaderboard that are among them are left out.
Writes docs/measured/default-panel-cnn.csv with the paired difference between the first choice and the best recipe of
the panel before, best by these very images. scripts/measured_text.py puts it into docs/guide/leaderboard.md.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

import pandas
from claims import number
from leaderboard import PANELS, complete, write

from sightline.audit.panel import is_agnostic, is_control, method_specs
from sightline.bench.store.store import read_rows
from sightline.recipe import parse

METRICS = ("single_deletion", "average_precision")
MOST, CHOSEN = 12.0, 5
BEFORE = {
    "vit": (
        "gae", "rollout", "plus(libra(ixg))", "caap(frozen=True)", "grad_cam", "smooth_grad(samples=10)",
        "ig(steps=20)",
    ),
    "cnn": ("ixg", "grad_cam", "iia2", "smooth_grad(samples=10)", "ig(steps=20)"),
}  # fmt: skip


def scores(rows: pandas.DataFrame) -> pandas.Series:
    """Return the mean of both metrics by recipe and image."""
    return rows[rows["metric"].isin(METRICS)].groupby(["recipe", "image"])["value"].mean()


def choose(rows: pandas.DataFrame) -> list[str]:
    """Return the panel that the rule gives on these rows, the best first."""
    means = scores(rows).groupby("recipe").mean().sort_values(ascending=False)
    spent = rows.groupby("recipe")[["forward", "backward"]].mean()
    best: dict[str, str] = {}
    for recipe in means.index:
        method = parse(recipe)
        passes = spent["forward"][recipe] + 2 * spent["backward"][recipe]
        if not is_control(method) and not is_agnostic(method) and passes <= MOST:
            best.setdefault(method_specs(method)[0].family, recipe)
    return list(best.values())[:CHOSEN]


def lead(rows: pandas.DataFrame, one: str, other: str) -> tuple[float, float]:
    """Return by how much a recipe's score is above another's on these images, with its standard error."""
    found = scores(rows)
    common = sorted({*found[one].index} & {*found[other].index})
    differences = [found[one][image] - found[other][image] for image in common]
    return fmean(differences), stdev(differences) / math.sqrt(len(differences))


def row_of(recipe: str, rows: pandas.DataFrame, note: str) -> dict[str, str]:
    """Return a recipe's score, and both metrics with standard errors."""
    own = rows[rows["recipe"] == recipe]
    cells = {"recipe": recipe, "score": number(scores(own).mean())}
    for metric in METRICS:
        values = own[own["metric"] == metric]["value"].dropna()
        cells |= {metric: number(values.mean()), f"{metric}_error": number(values.std() / math.sqrt(len(values)))}
    passes = own["forward"].mean() + 2 * own["backward"].mean()
    return cells | {"passes": f"{passes:.3g}", "images": str(own["image"].nunique()), "note": note}


def report(rows: pandas.DataFrame, chosen: Sequence[str], before: Sequence[str]) -> list[dict[str, str]]:
    """Return a row for each recipe of both panels, the best first."""
    means = scores(rows).groupby("recipe").mean()
    old = max(before, key=lambda recipe: means[recipe])
    notes = dict.fromkeys(before, "before") | dict.fromkeys(chosen, "chosen")
    notes |= {recipe: "chosen, and before" for recipe in chosen if recipe in before}
    if chosen[0] != old:
        ahead, error = lead(rows, chosen[0], old)
        notes[chosen[0]] += f" first; {number(ahead)} ± {number(error)} above `{old}`"
    return [row_of(recipe, rows, notes[recipe]) for recipe in sorted(notes, key=lambda one: -means[one])]


def main() -> None:
    """Choose, and write the choice or the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=BEFORE)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="the folder of the stores")
    parser.add_argument("--choose", action="store_true", help="print the choice and write nothing")
    given = parser.parse_args()
    seen = complete(read_rows(given.runs / f"leaderboard-{given.kind}" / PANELS[0]))
    chosen = choose(seen)
    if given.choose:
        sys.stdout.write("\n".join(chosen) + "\n")
        return
    rows = read_rows(given.runs / f"default-panel-{given.kind}")
    others = rows[~rows["image"].isin(set(seen["image"]))]
    write(f"default-panel-{given.kind}", report(others, chosen, BEFORE[given.kind]))


if __name__ == "__main__":
    main()
