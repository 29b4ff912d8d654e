"""The table: from rows to means with intervals, tests, tie groups and ranks, in every format.

>>> from sightline.bench.store.store import read_rows
>>> table = make_table(read_rows("runs/look"))  # doctest: +SKIP
>>> table.to_frame()[["recipe", "mean", "low", "high", "rank"]]  # doctest: +SKIP

How a column is added is written in `sightline.bench.tables.columns`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sightline.bench.stats.agreement import Agreement, RankedRecipes, agreements, set_aside
from sightline.bench.stats.breakdown import ClassPart, ClassRow, ClassRows, WorstImage, by_class, worst_images
from sightline.bench.stats.paired import PairedScores, Unpaired, paired_scores
from sightline.bench.stats.resampling import Settings
from sightline.bench.stats.score_matrix import ScoreMatrix
from sightline.bench.tables import formats
from sightline.bench.tables.columns import TableRow
from sightline.bench.tables.table_rows import Comparison, compare, own_statistics, sign_of
from sightline.bench.tables.traits import traits_of
from sightline.bench.unit import Package

if TYPE_CHECKING:
    import pandas

__all__ = [
    "Agreement",
    "ClassRow",
    "Comparison",
    "Settings",
    "Table",
    "TableRow",
    "Unpaired",
    "WorstImage",
    "make_table",
]


@dataclass(frozen=True)
class Table:
    """The statistics of a run.

    Every format leaves out wall time unless asked, so that two runs of one plan write the same.

    Attributes:
        rows: by model and metric, best first; recipes set aside come last.
        comparisons: every two recipes of a model and metric.
        agreement: every two metrics of a model.
        breakdown: statistics by class, of classes with two images or more.
        worst: for each recipe that is no control, the images on which it falls furthest behind.
        unpaired: images that a recipe did not score, so that they count for the others only.
        reductions: in words, how each metric's images become one statistic.
        settings: confidence, resamples and seed.
        packages: whose code computed the rows, with version and digest of the source; empty where unknown.
        row_type: the class of the rows; its fields are the columns.
    """

    rows: tuple[TableRow, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    agreement: tuple[Agreement, ...] = ()
    breakdown: Sequence[ClassRow] = ()
    worst: tuple[WorstImage, ...] = ()
    unpaired: tuple[Unpaired, ...] = ()
    reductions: Mapping[str, str] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    packages: tuple[Package, ...] = ()
    row_type: type[TableRow] = TableRow

    def to_frame(self, *, timing: bool = False) -> pandas.DataFrame:
        """Return the rows as a pandas frame."""
        return formats.to_frame(self.rows, self.row_type, timing=timing)

    def to_csv(self, *, timing: bool = False) -> str:
        """Return the rows as CSV, numbers with four significant digits."""
        return formats.to_csv(self.rows, self.row_type, timing=timing)

    def to_markdown(self) -> str:
        """Return one overview per model and one table per metric, in Markdown."""
        return formats.to_markdown(self)

    def to_latex(self) -> str:
        """Return one booktabs table per model: recipes down, metrics across."""
        return formats.to_latex(self)

    def to_json(self) -> dict[str, Any]:
        """Return an object to be written as JSON: ``table`` holds the rows, NaN is null, wall time is apart."""
        return {
            name: list(part) if isinstance(part, formats.Records) else part for name, part in self.json_parts().items()
        }

    def json_parts(self) -> dict[str, Any]:
        """Return the same, with lists that may be long as `formats.Records`, each entry made when it is asked for."""
        named = ("comparisons", "agreement", "breakdown", "worst", "unpaired", "packages")
        return {
            "table": formats.row_records(self.rows, self.row_type),
            **{name: formats.Records(getattr(self, name)) for name in named},
            "timing": formats.timing(self.rows),
            "reductions": dict(self.reductions),
            "settings": formats.records([self.settings])[0],
        }


def make_table(
    rows: pandas.DataFrame | Iterable[pandas.DataFrame | ScoreMatrix],
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    packages: Sequence[Package] = (),
    row_type: type[TableRow] = TableRow,
) -> Table:
    """Turn the rows of a run into a table.

    The order of rows does not matter, nor does it which rows of failed images are there. Rows of several seeds are
    averaged image by image first. Rows of several data sets, weights or versions of a method's code are refused.

    Args:
        rows: one per image and metric, with the columns model, recipe, metric, image and value, and, where known, flag,
            label, seed, curve, forward, backward, seconds, dataset, weights, recipe_source and metric_source. Several
            frames may be given, each with all rows of a model and metric, or matrices as `read_scores` of the store
            yields them; they are looked at one after the other.
        confidence: of intervals; one minus it is the chance, per model and metric, of a single false difference.
        resamples: of the bootstrap.
        seed: of resamples and permutations.
        packages: whose code computed the rows, as the store's manifest names them.
        row_type: `TableRow`, or a class derived from it that adds columns.
    """
    settings = Settings(confidence, resamples, seed)
    parts = [rows] if hasattr(rows, "columns") else rows
    with tempfile.TemporaryDirectory(prefix="sightline-table-") as folder:
        gathered = _Gathered(settings, row_type, Path(folder))
        for part in parts:
            for scores in paired_scores(part):
                gathered.add(scores)
                del scores  # before the next ones are made
            del part
        return Table(
            rows=tuple(gathered.rows),
            comparisons=tuple(gathered.comparisons),
            agreement=tuple(agreements(gathered.ranked)),
            breakdown=ClassRows(gathered.breakdown),
            worst=tuple(gathered.worst),
            unpaired=tuple(gathered.unpaired),
            reductions=MappingProxyType(gathered.reductions),
            settings=settings,
            packages=tuple(packages),
            row_type=row_type,
        )


@dataclass(frozen=True, eq=False)
class _Gathered:
    """What the parts of a run come to, one after the other; of their values only those on disk stay."""

    settings: Settings
    row_type: type[TableRow]
    folder: Path
    rows: list[TableRow] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    ranked: list[RankedRecipes] = field(default_factory=list)
    breakdown: list[ClassPart] = field(default_factory=list)
    worst: list[WorstImage] = field(default_factory=list)
    unpaired: list[Unpaired] = field(default_factory=list)
    reductions: dict[str, str] = field(default_factory=dict)

    def add(self, scores: PairedScores) -> None:
        rows, comparisons = compare(scores, self.settings, self.row_type)
        self.rows.extend(rows)
        self.comparisons.extend(comparisons)
        self.unpaired.extend(scores.unpaired)
        if scores.ranked:
            self.breakdown.append(by_class(scores))
            self.worst.extend(_worst(scores))
            self.reductions[scores.metric] = scores.reduction.description
            if scores.images:
                self.ranked.append(_higher_is_better(scores, self.folder / f"{len(self.ranked)}.npy"))


def _higher_is_better(scores: PairedScores, path: Path) -> RankedRecipes:
    sign, statistics = sign_of(scores.metric), own_statistics(scores)
    values = set_aside(scores.values, path)
    return RankedRecipes(scores.model, scores.metric, scores.recipes, scores.images, sign * statistics, values, sign)


def _worst(scores: PairedScores) -> list[WorstImage]:
    own = tuple(recipe for recipe in scores.recipes if not traits_of(recipe).control)
    return list(worst_images(scores, sign_of(scores.metric), own))
