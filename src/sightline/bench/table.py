"""The table: from rows to means with intervals, tests, tie groups and ranks, and on to paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sightline.bench import formats
from sightline.bench.stats.agreement import Agreement, Ranked, agreements
from sightline.bench.stats.breakdown import ClassLine, WorstImage, by_class, worst_images
from sightline.bench.stats.paired import Block, Unpaired, blocks
from sightline.bench.stats.resampling import Settings
from sightline.bench.table_rows import Comparison, Line, judge
from sightline.bench.traits import direction_of, kind_of

if TYPE_CHECKING:
    import pandas

__all__ = ["Agreement", "ClassLine", "Comparison", "Line", "Settings", "Table", "Unpaired", "WorstImage", "make_table"]


@dataclass(frozen=True)
class Table:
    """What a run found.

    Every way out but the lines themselves leaves out wall time unless asked, so that two runs of one plan print the
    same.

    Attributes:
        lines: by model and metric, best first; recipes set aside come last.
        comparisons: every two recipes of a model and metric.
        agreement: every two metrics of a model.
        breakdown: figures by class, of classes with two images or more.
        worst: for each recipe that is no control, the images on which it falls furthest behind.
        unpaired: images that count for no recipe, because this one did not score them.
        reductions: in words, how each metric's images become one figure.
        settings: confidence, resamples and seed.
    """

    lines: tuple[Line, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    agreement: tuple[Agreement, ...] = ()
    breakdown: tuple[ClassLine, ...] = ()
    worst: tuple[WorstImage, ...] = ()
    unpaired: tuple[Unpaired, ...] = ()
    reductions: Mapping[str, str] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)

    def to_frame(self, *, timing: bool = False) -> pandas.DataFrame:
        """Return the lines as a pandas frame."""
        return formats.to_frame(self.lines, timing=timing)

    def to_csv(self, *, timing: bool = False) -> str:
        """Return the lines as CSV, numbers with four significant digits."""
        return formats.to_csv(self.lines, timing=timing)

    def to_markdown(self) -> str:
        """Return one overview per model and one table per metric, in Markdown."""
        return formats.to_markdown(self.lines, self.reductions, self.settings.confidence)

    def to_latex(self) -> str:
        """Return one booktabs table per model: recipes down, metrics across."""
        return formats.to_latex(self.lines, self.settings.confidence)

    def to_json(self) -> dict[str, Any]:
        """Return an object to be written as JSON: ``table`` holds the lines, NaN is null, wall time is apart."""
        named = ("comparisons", "agreement", "breakdown", "worst", "unpaired")
        return {
            "table": formats.records(self.lines, without=("seconds",)),
            **{name: formats.records(getattr(self, name)) for name in named},
            "timing": formats.timing(self.lines),
            "reductions": dict(self.reductions),
            "settings": formats.records([self.settings])[0],
        }


def make_table(rows: pandas.DataFrame, *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0) -> Table:
    """Turn the rows of a run into a table.

    The order of rows does not matter, nor does it which rows of failed images are there. Rows of several seeds are
    averaged image by image first.

    Args:
        rows: one per image and metric, with the columns model, recipe, metric, image and value, and, where known, flag,
            label, seed, curve, forward, backward, seconds, dataset and weights.
        confidence: of intervals; one minus it is the chance, per model and metric, of a single false difference.
        resamples: of the bootstrap.
        seed: of resamples and swaps.
    """
    settings = Settings(confidence, resamples, seed)
    found = list(blocks(rows))
    judged = [judge(block, settings) for block in found]
    compared = [block for block in found if block.ranked]
    return Table(
        lines=tuple(line for lines, _ in judged for line in lines),
        comparisons=tuple(pair for _, pairs in judged for pair in pairs),
        agreement=tuple(agreements([_turned(block) for block in compared if block.images])),
        breakdown=tuple(line for block in compared for line in by_class(block)),
        worst=tuple(image for block in compared for image in _worst(block)),
        unpaired=tuple(image for block in found for image in block.unpaired),
        reductions=MappingProxyType({block.metric: block.reduction.words for block in compared}),
        settings=settings,
    )


def _sign(block: Block) -> int:
    return 1 if direction_of(block.metric) == "higher" else -1


def _turned(block: Block) -> Ranked:
    sign, figures = _sign(block), block.reduction.figure(block.data)
    return Ranked(block.model, block.metric, block.recipes, block.images, sign * figures, sign * block.values)


def _worst(block: Block) -> list[WorstImage]:
    own = tuple(recipe for recipe in block.recipes if not kind_of(recipe)[0])
    return list(worst_images(block, _sign(block), own))
