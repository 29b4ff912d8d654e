"""The columns of the table: each is one field of :class:`TableRow`, with all that is known of it.

To add a column, add a field to `TableRow` with its line of documentation. Nothing else has to change::

    median: float = field(metadata=column(lambda result: float(np.median(result.values)), heading="median"))

* The function takes the :class:`RecipeResult` of a row and returns the value. Without a function the value is the
  statistic of the same name, as `table_rows.compare` computes them.
* The type of the field decides how it is written: a float with four digits (ten in JSON), an int, a text, a bool.
* A column with a `heading` is shown in tables for people, sorted by `position`: in Markdown, and wherever a page or a
  terminal asks `shown_columns` and `cell_text`. `text` writes it in another way than its type does.
* ``varies=True`` (and ``compare=False``) for what another run will not repeat, such as wall time: it is written only
  where timing is asked for.

Frames, CSV, JSON and Markdown follow from the field; LaTeX shows the mean of each metric alone. For columns of your own
derive a class from `TableRow` and give it to `make_table(rows, row_type=…)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from sightline.bench.stats.paired import PairedScores, RecipeCounts
from sightline.bench.stats.reduce import Numbers
from sightline.bench.tables.number_format import UNKNOWN, interval, number, p_value
from sightline.bench.tables.traits import direction_of, traits_of

__all__ = [
    "Column",
    "RecipeResult",
    "TableRow",
    "build_rows",
    "cell_text",
    "column",
    "columns_of",
    "integer_columns",
    "shown_columns",
]

NAN = math.nan  # one object, so that rows which lack the same numbers are equal
LAST = 100


@dataclass(frozen=True, slots=True, eq=False)
class RecipeResult:
    """All that is known of one recipe under one metric with one model: what a row is computed from.

    Attributes:
        scores: of all recipes on all images.
        index: of this recipe among them.
        statistics: by name, one entry per recipe; one that could not be computed is not there.
    """

    scores: PairedScores
    index: int
    statistics: Mapping[str, NDArray[Any]]

    @property
    def recipe(self) -> str:
        """The recipe of the method."""
        return self.scores.recipes[self.index]

    @property
    def counts(self) -> RecipeCounts:
        """Its failures and cost."""
        return self.scores.counts[self.index]

    @property
    def values(self) -> Numbers:
        """Its score on every image that it scored, shape (image,)."""
        return np.asarray(self.scores.values[self.scores.scored[:, self.index], self.index])

    def statistic(self, name: str) -> Any:
        """Return a statistic of the recipe, None where it could not be computed."""
        return self.statistics[name][self.index] if name in self.statistics else None


@dataclass(frozen=True, slots=True)
class Column:
    """How a column is computed and shown.

    Attributes:
        of: from what is known of a recipe to the value; None for the statistic of the field's name.
        heading: above it in tables for people, where it is shown; ``{confidence}`` is filled in with per cents.
        position: where it is shown, from left to right.
        text: from a row to what is shown; None for the value as its type is written.
        varies: whether another run will not repeat it.
    """

    of: Callable[[RecipeResult], Any] | None = None
    heading: str = ""
    position: int = LAST
    text: Callable[[Any], str] | None = None
    varies: bool = False


def column(of: Callable[[RecipeResult], Any] | None = None, **options: Any) -> dict[str, Column]:
    """Return the metadata of a field that is a column; the options are those of `Column`."""
    return {"column": Column(of, **options)}


def _recipe_text(row: TableRow) -> str:
    note = " (control)" if row.control else " (class-agnostic)" if row.agnostic else ""
    return f"{row.recipe}{note}"


def _ranks_text(row: TableRow) -> str:
    return UNKNOWN if row.rank_low is None else f"{row.rank_low}–{row.rank_high}"


@dataclass(frozen=True, slots=True)
class TableRow:
    """One recipe under one metric with one model.

    Attributes:
        model: the model's id.
        recipe: of the method.
        metric: recipe of the metric.
        direction: whether "higher" or "lower" is better.
        mean: the statistic of the set: for most metrics the mean over images, see `Table.reductions`.
        low: lower end of its confidence interval; NaN for fewer than three images.
        high: upper end.
        standard_error: of the mean; ``error`` in files and frames.
        count: images it was computed from: those that the recipe scored.
        failed: images the recipe failed on.
        degenerate: images on which its score is undefined.
        flagged: images with a score and a remark, such as a constant map.
        rank: by the mean, equal means sharing a rank; None for a recipe that was set aside.
        rank_low: the best rank it may hold.
        rank_high: the worst rank it may hold.
        group: letters; recipes that share one are not significantly different.
        wins: share of comparisons with other recipes, image by image, that it wins, draws counting half.
        margin: how far it is ahead of the best control, positive whichever way the metric points; NaN for that control.
        margin_low: lower end of its confidence interval.
        margin_high: upper end.
        p_control: p-value of the difference from the best control, corrected over all pairs.
        forward: passes per image.
        backward: passes per image.
        control: whether it knows nothing of the model.
        agnostic: whether its map ignores the class.
        seconds: wall time per image; another run will not repeat it, so it does not count in ``==``.
        seconds_deviation: sample standard deviation of the seconds over images, likewise.
    """

    model: str = field(metadata=column(lambda result: result.scores.model))
    recipe: str = field(metadata=column(lambda result: result.recipe, heading="recipe", position=2, text=_recipe_text))
    metric: str = field(metadata=column(lambda result: result.scores.metric))
    direction: str = field(metadata=column(lambda result: direction_of(result.scores.metric)))
    mean: float = field(metadata=column(heading="mean", position=3))
    low: float = field(
        metadata=column(heading="{confidence} % interval", position=4, text=lambda row: interval(row.low, row.high))
    )
    high: float = field(metadata=column())
    standard_error: float = field(metadata=column())
    count: int = field(metadata=column(lambda result: len(result.values), heading="images", position=11))
    failed: int = field(metadata=column(lambda result: result.counts.failed, heading="failed", position=12))
    degenerate: int = field(metadata=column(lambda result: result.counts.degenerate, heading="degenerate", position=13))
    flagged: int = field(metadata=column(lambda result: result.counts.flagged))
    rank: int | None = field(metadata=column(heading="rank", position=1))
    rank_low: int | None = field(metadata=column(heading="ranks", position=6, text=_ranks_text))
    rank_high: int | None = field(metadata=column())
    group: str = field(metadata=column(heading="group", position=5))
    wins: float = field(metadata=column(heading="wins", position=7))
    margin: float = field(metadata=column(heading="over control", position=8))
    margin_low: float = field(metadata=column())
    margin_high: float = field(metadata=column())
    p_control: float = field(metadata=column(heading="p", position=9, text=lambda row: p_value(row.p_control)))
    forward: float = field(
        metadata=column(
            lambda result: result.counts.forward,
            heading="passes",
            position=10,
            text=lambda row: f"{number(row.forward)} + {number(row.backward)}",
        )
    )
    backward: float = field(metadata=column(lambda result: result.counts.backward))
    control: bool = field(metadata=column(lambda result: traits_of(result.recipe).control))
    agnostic: bool = field(metadata=column(lambda result: traits_of(result.recipe).agnostic))
    seconds: float = field(compare=False, metadata=column(lambda result: result.counts.seconds, varies=True))
    seconds_deviation: float = field(
        compare=False, metadata=column(lambda result: result.counts.seconds_deviation, varies=True)
    )


def columns_of(row_type: type[TableRow]) -> dict[str, Column]:
    """Return the columns of a class of rows by name, in their order."""
    return {each.name: each.metadata["column"] for each in fields(row_type)}


def shown_columns(row_type: type[TableRow]) -> dict[str, Column]:
    """Return the columns for people by name, from left to right."""
    shown = {name: each for name, each in columns_of(row_type).items() if each.heading}
    return dict(sorted(shown.items(), key=lambda item: item[1].position))


def cell_text(row: TableRow, name: str) -> str:
    """Return what a column shows of a row to people."""
    write = columns_of(type(row))[name].text
    if write is not None:
        return write(row)
    value = getattr(row, name)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, float) else UNKNOWN if value in (None, "") else str(value)


def build_rows(row_type: type[TableRow], results: Iterable[RecipeResult]) -> list[TableRow]:
    """Compute every column of the rows of some recipes."""
    columns, types = columns_of(row_type), _types(row_type)
    rows = []
    for result in results:
        values = {name: each.of(result) if each.of else result.statistic(name) for name, each in columns.items()}
        rows.append(row_type(**{name: _converted(value, types[name]) for name, value in values.items()}))
    return rows


def integer_columns(row_type: type[TableRow]) -> list[str]:
    """Return the names of columns that hold whole numbers, some of which may be missing."""
    return [name for name, plain in _types(row_type).items() if plain is int]


def _converted(value: Any, plain: type) -> Any:
    """Return a value as the plain type of its field; what could not be computed is NaN, an empty text or None."""
    if plain is float:
        return NAN if value is None or math.isnan(value) else float(value)
    if value is None:
        return "" if plain is str else None
    return plain(value)


def _types(row_type: type[TableRow]) -> dict[str, type]:
    """Return the plain type of each column, None aside."""
    types = {}
    for name, hint in get_type_hints(row_type).items():
        (types[name],) = [each for each in get_args(hint) or (hint,) if each is not type(None)]
    return types
