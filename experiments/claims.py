"""What five papers claim of their methods, and what was measured here: paired differences, and a verdict for each.

    SIGHTLINE_DATA=../shared/data sightline bench run claims-vit --store runs/claims-vit --model file:WEIGHTS@timm/NAME
    python experiments/contrast_quads.py --model file:WEIGHTS@timm/NAME --json runs/quads-vit.json
    python experiments/contrast_quads.py --model package/efficientnet_lite0 --json runs/quads-cnn.json
    sightline bench run leaderboard-cnn --store runs/leaderboard-cnn --dataset ../shared/data/pets
    python experiments/claims.py --runs runs

Writes docs/measured/claims.csv, a line for each comparison that a claim rests on: the means of two recipes under a
metric, the mean of their paired differences, turned so that it is positive where the claim is right, its standard error
and the verdict. A comparison holds where the 95 % t interval of the difference lies above zero, does not hold where it
lies below, and cannot be told apart otherwise. A claim that nothing is lost holds where the interval lies above -0.02.
Intervals are not corrected for the number of comparisons. Of quads the four classes are averaged first.
scripts/documentation_claims.py puts the lines into the guides.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import fmean, stdev

from paper_claims import CLAIMS, Claim, Comparison
from scipy import stats

from sightline.bench.store.store import read_rows
from sightline.recipe import parse, parse_metric, text
from sightline.registry import spec_of

COLUMNS = (
    "paper", "claim", "on", "metric", "recipe", "mean", "than", "other_mean", "difference", "error", "images",
    "verdict",
)  # fmt: skip
UNMEASURED = "cannot be told"
MARGIN = 0.02  # what may be lost where a claim is that nothing is
Values = Mapping[str, float]  # by image


class Measured:
    """The values of the runs below a folder, each store read once."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self._stores: dict[str, dict[tuple[str, str], Values]] = {}

    def values(self, on: str, recipe: str, metric: str) -> Values:
        """Return the values of a recipe under a metric, by image."""
        if on.startswith("quads-"):
            return self._quads(on, recipe, metric)
        return self._store(on)[text(parse(recipe)), text(parse_metric(metric))]

    def _store(self, on: str) -> dict[tuple[str, str], Values]:
        if on not in self._stores:
            rows = read_rows(self.runs / on)
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


def compare(measured: Measured, claim: Claim, pair: Comparison) -> dict[str, str]:
    """Return the line of one comparison."""
    better, other = (measured.values(pair.on, recipe, pair.metric) for recipe in (pair.recipe, pair.than))
    images = sorted({*better} & {*other})
    sign = -1 if spec_of(parse_metric(pair.metric)).direction == "lower" else 1
    differences = [sign * (better[image] - other[image]) for image in images]
    difference, error = fmean(differences), stdev(differences) / math.sqrt(len(images))
    reach = float(stats.t.ppf(0.975, len(images) - 1)) * error
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
        "recipe": pair.recipe.replace("{classes}", "'picture'"),  # a quad's four classes are what it shows
        "than": pair.than,
        "images": str(len(images)),
        **{name: number(value) for name, value in cells.items()},
        "verdict": verdict(difference, reach, MARGIN if claim.no_loss else 0.0),
    }


def verdict(difference: float, reach: float, margin: float) -> str:
    """Say what an interval of a difference means for the claim that it is not below -margin."""
    if difference - reach > -margin:
        return "holds"
    return "does not hold" if difference + reach < -margin else "cannot be told"


def number(value: float) -> str:
    """Write a value with three digits after the point and no zero before it.

    >>> number(-0.1234), number(12.0)
    ('-.123', '12.000')
    """
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 0.9995 else f"{value:.3f}"


def lines(measured: Measured, claims: Iterable[Claim]) -> Iterator[dict[str, str]]:
    """Return a line for each comparison of each claim; claims that were not measured have one without numbers."""
    for claim in claims:
        if not claim.comparisons:
            yield dict.fromkeys(COLUMNS, "") | {"paper": claim.paper, "claim": claim.text, "verdict": UNMEASURED}
        for pair in claim.comparisons:
            yield compare(measured, claim, pair)


def main() -> None:
    """Compare, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="the folder of the stores")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "measured" / "claims.csv")
    given = parser.parse_args()
    with given.out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines(Measured(given.runs), CLAIMS))


if __name__ == "__main__":
    main()
