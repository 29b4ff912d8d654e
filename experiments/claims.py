"""What five papers claim of their methods, and what was measured here: paired differences, and a verdict for each.

    SIGHTLINE_DATA=../shared/data sightline bench run claims-vit --store runs/claims-vit --model file:WEIGHTS@timm/NAME
    python experiments/contrast_quads.py --model file:WEIGHTS@timm/NAME --json runs/quads-vit.json
    python experiments/contrast_quads.py --model package/efficientnet_lite0 --json runs/quads-cnn.json
    SIGHTLINE_DATA=../shared/data sightline bench run claims-cnn --store runs/claims-cnn
    SIGHTLINE_DATA=../shared/data sightline bench run leaderboard-cnn --store runs/leaderboard-cnn
    python experiments/claims.py --runs runs

Writes docs/measured/claims.csv, a line for each comparison that a claim rests on: the means of two recipes under a
metric, the mean of their paired differences, turned so that it is positive where the claim is right, its standard
error, the two-sided p-value of a paired t test, and the verdict. The tests of one claim are corrected by Holm's method:
a comparison holds where the corrected p-value is below 5 % and the difference positive, does not hold where it is below
5 % and the difference negative, and cannot be told otherwise. A claim that nothing is lost is tested against -0.02 in
place of zero. A similarity to the map of a randomised model that is below zero counts as zero. Of quads the four
classes are averaged first. Where a run is not in the folder, the line that the table has is kept, and judged anew.
scripts/measured_text.py puts the lines into the guides.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from paper_claims import CLAIMS, Claim, Comparison
from scipy import stats

from sightline.bench.stats.resampling import holm
from sightline.bench.store.store import read_rows
from sightline.recipe import parse, parse_metric, text
from sightline.registry import spec_of

COLUMNS = (
    "paper", "claim", "on", "metric", "recipe", "mean", "than", "other_mean", "difference", "error", "images",
    "verdict", "p",
)  # fmt: skip
HOLDS, FAILS, UNTOLD = "holds", "does not hold", "cannot be told"
MARGIN = 0.02  # what may be lost where a claim is that nothing is
LEVEL = 0.05  # of the tests of one claim together
ROUNDING = 0.0005  # the largest error that the table shows as none
Line = dict[str, str]
Values = Mapping[str, float]  # by image


class Measured:
    """The values of the runs below a folder, each store read once."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self._stores: dict[str, dict[tuple[str, str], Values]] = {}

    def has(self, on: str) -> bool:
        """Say whether a run is there."""
        return (self.runs / (f"{on}.json" if on.startswith("quads-") else on)).exists()

    def values(self, on: str, recipe: str, metric: str) -> Values:
        """Return the values of a recipe under a metric, by image."""
        if on.startswith("quads-"):
            return self._quads(on, recipe, metric)
        return self._store(on)[text(parse(recipe)), text(parse_metric(metric))]

    def _store(self, on: str) -> dict[tuple[str, str], Values]:
        if on not in self._stores:
            rows = read_rows(self.runs / on)
            alike = rows["metric"].str.startswith("randomisation_")
            rows.loc[alike, "value"] = rows.loc[alike, "value"].clip(lower=0.0)
            groups = rows[rows["value"].notna()].groupby(["recipe", "metric"])
            self._stores[on] = {key: dict(zip(own["image"], own["value"], strict=True)) for key, own in groups}
        return self._stores[on]

    def _quads(self, on: str, recipe: str, metric: str) -> Values:
        """Return the mean over the four classes of each quad."""
        (place,) = json.loads((self.runs / f"{on}.json").read_text(encoding="utf-8"))["found"].values()
        by_quad: dict[str, list[float]] = {}
        for name, found in place[recipe].items():
            if found[metric] is not None:
                by_quad.setdefault(name.partition("#")[0], []).append(found[metric])
        return {quad: fmean(values) for quad, values in by_quad.items()}


class Kept:
    """The lines of an earlier table, found by what they compare."""

    def __init__(self, table: Path) -> None:
        with table.open(encoding="utf-8", newline="") as file:
            lines = [line for line in csv.DictReader(file) if line["metric"]]
        self._lines = {(line["on"], line["metric"], line["recipe"], line["than"]): line for line in lines}

    def line(self, claim: Claim, pair: Comparison) -> Line | None:
        """Return the line of a comparison, or the opposite one turned round; None where there is neither."""
        recipe = shown(pair.recipe)
        found = self._lines.get((pair.on, pair.metric, recipe, pair.than))
        turned = self._lines.get((pair.on, pair.metric, pair.than, recipe))
        if found is None and turned is not None:
            found = turned | {
                "recipe": recipe, "than": pair.than, "mean": turned["other_mean"], "other_mean": turned["mean"],
                "difference": number(-float(turned["difference"])), "p": "",
            }  # fmt: skip
        if found is None:
            return None
        difference, error, images = (float(found[key]) for key in ("difference", "error", "images"))
        p = found.get("p") or p_text(chance(difference, max(error, ROUNDING), images, claim))
        return found | {"paper": claim.paper, "claim": claim.text, "p": p}


def shown(recipe: str) -> str:
    """Return a recipe as the table has it: a quad's four classes are what it shows."""
    return recipe.replace("{classes}", "'picture'")


def compare(measured: Measured, claim: Claim, pair: Comparison) -> Line:
    """Return the line of one comparison, not yet judged."""
    better, other = (measured.values(pair.on, recipe, pair.metric) for recipe in (pair.recipe, pair.than))
    images = sorted({*better} & {*other})
    sign = -1 if spec_of(parse_metric(pair.metric)).direction == "lower" else 1
    differences = [sign * (better[image] - other[image]) for image in images]
    difference, error = fmean(differences), stdev(differences) / math.sqrt(len(images))
    cells = {
        "mean": fmean(better[image] for image in images),
        "other_mean": fmean(other[image] for image in images),
        "difference": difference,
        "error": error,
    }
    return {
        "paper": claim.paper,
        "claim": claim.text,
        "on": pair.on,
        "metric": pair.metric,
        "recipe": shown(pair.recipe),
        "than": pair.than,
        "images": str(len(images)),
        **{name: number(value) for name, value in cells.items()},
        "verdict": "",
        "p": p_text(chance(difference, error, len(images), claim)),
    }


def chance(difference: float, error: float, images: float, claim: Claim) -> float:
    """Return the p-value of a paired difference: two-sided, by Student's t, against what the claim says."""
    excess = difference + (MARGIN if claim.no_loss else 0.0)
    if not error:
        return 0.0 if excess else 1.0
    return float(2 * stats.t.sf(abs(excess) / error, images - 1))


def p_text(value: float) -> str:
    """Write a p-value with three significant digits.

    >>> p_text(0.04567), p_text(1.0)
    ('0.0457', '1')
    """
    return f"{value:.3g}"


def judged(claim: Claim, rows: Sequence[Line]) -> list[Line]:
    """Return the lines of one claim with their verdicts, by p-values that are corrected for their number."""
    margin = MARGIN if claim.no_loss else 0.0
    corrected = holm(np.array([float(row["p"]) for row in rows]))
    told = [UNTOLD if p >= LEVEL else HOLDS if float(row["difference"]) > -margin else FAILS
            for p, row in zip(corrected, rows, strict=True)]  # fmt: skip
    return [row | {"verdict": verdict} for row, verdict in zip(rows, told, strict=True)]


def number(value: float) -> str:
    """Write a value with three digits after the point and no zero before it.

    >>> number(-0.1234), number(12.0)
    ('-.123', '12.000')
    """
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 0.9995 else f"{value:.3f}"


def lines(measured: Measured, kept: Kept, claims: Iterable[Claim]) -> Iterator[Line]:
    """Return a line for each comparison of each claim; claims that were not measured have one without numbers."""
    for claim in claims:
        rows = [compare(measured, claim, pair) if measured.has(pair.on) else kept.line(claim, pair)
                for pair in claim.comparisons]  # fmt: skip
        found = [row for row in rows if row is not None]
        if found:
            yield from judged(claim, found)
        else:
            yield dict.fromkeys(COLUMNS, "") | {"paper": claim.paper, "claim": claim.text, "verdict": UNTOLD}


def main() -> None:
    """Compare, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="the folder of the stores")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "measured" / "claims.csv")
    given = parser.parse_args()
    found = list(lines(Measured(given.runs), Kept(given.out), CLAIMS))
    with given.out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)


if __name__ == "__main__":
    main()
