"""Search for the recipe that scores best on one half of the images, and report it on the other half.

Whoever tries many recipes and reports the best score reports luck as well. So recipes are chosen on one half of the
images, by successive halving :cite:p:`jamieson2016`: all of them on a few images, the better half on twice as many, and
so on; then the options of those that are left are varied, one at a time. The other half, which no choice has seen, says
how good the chosen one is, with intervals and beside controls.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sightline.audit.examples import Example, examples_of
from sightline.audit.panel import metric_step
from sightline.audit.score_store import ImageScorer, ScoreStore
from sightline.audit.search_space import candidates, varied
from sightline.errors import InputError, SightlineError
from sightline.extras import require
from sightline.files import write_by_suffix
from sightline.models.inputs import adapt
from sightline.progress import Advance, progress_bar
from sightline.recipe import parse_metric
from sightline.registry import spec_of
from sightline.types import Enlarge

__all__ = ["TunedRecipe", "Tuning", "tune"]

FEWEST = 4  # images: two to choose by and two to report on
START = 2  # images of the first round
FINALISTS = 3  # recipes that are reported on the other half, besides the controls
LEVEL, RESAMPLES = 0.95, 2000


@dataclass(frozen=True)
class TunedRecipe:
    """One recipe: its mean score where it was chosen, and on the images that had no part in the choice.

    Attributes:
        recipe: to paste.
        control: whether it knows nothing of the model.
        searched: mean over the images of the search that it reached; None for a control.
        images: how many those were.
        held_out: mean over the other half.
        interval: 95 % bootstrap interval of that mean, over images.
        margin: held-out score better than the best control's by so much, paired by image; None for a control.
        margin_interval: its interval.
    """

    recipe: str
    control: bool
    searched: float | None
    images: int
    held_out: float
    interval: tuple[float, float]
    margin: float | None = None
    margin_interval: tuple[float, float] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Tuning:
    """What a search found; plain data, no model inside.

    Attributes:
        model: what the model is called.
        metric: what was searched by.
        direction: "higher" or "lower" is better.
        images: how many there were to choose by, and how many to report on.
        rounds: of the search: how many recipes on how many images.
        recipes: the finalists, the chosen one first, then the controls.
        failures: recipes that could not be scored, and why.
    """

    model: str
    metric: str
    direction: str
    images: tuple[int, int]
    rounds: tuple[tuple[int, int], ...]
    recipes: tuple[TunedRecipe, ...]
    failures: dict[str, str]

    @property
    def chosen(self) -> TunedRecipe:
        """The recipe that won the search."""
        return self.recipes[0]

    @property
    def best(self) -> str | None:
        """The recipe to paste; None where it is not better than the best control on the images held out."""
        interval = self.chosen.margin_interval
        return self.chosen.recipe if interval is not None and interval[0] > 0 else None

    @property
    def verdict(self) -> str:
        """One sentence with its reason."""
        first, (_, held_out) = self.chosen, self.images
        controls = [each for each in self.recipes if each.control]
        low, high = first.margin_interval or (math.nan, math.nan)
        margin = f"{first.margin or 0.0:+.3f} ({low:+.3f} to {high:+.3f})"
        against = f"the best control, {controls[0].recipe}, by {margin} in {self.metric} on {held_out} held-out images"
        if self.best is None:
            return f"{first.recipe} won the search but does not clearly beat {against}: believe none of these."
        return f"{first.recipe} beats {against}."

    def to_pandas(self) -> Any:
        """Return a data frame with one row per finalist and control."""
        return require("pandas").DataFrame([asdict(each) for each in self.recipes])

    def json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "model": self.model,
            "metric": self.metric,
            "direction": self.direction,
            "images": {"searched": self.images[0], "held_out": self.images[1]},
            "rounds": [{"recipes": recipes, "images": images} for recipes, images in self.rounds],
            "best": self.best,
            "verdict": self.verdict,
            "recipes": [asdict(each) for each in self.recipes],
            "failures": self.failures,
        }

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the numbers (.csv, .json)."""
        writers = {
            ".csv": lambda: str(self.to_pandas().to_csv(index=False)),
            ".json": lambda: json.dumps(self.json(), indent=2),
        }
        return write_by_suffix(path, writers, "a search")

    def __repr__(self) -> str:
        return f"Tuning({self.model}, {self.metric}: {self.verdict})"


def tune(
    model: Any,
    images: Any,
    recipes: Sequence[str] | str | None = None,
    metric: str | None = None,
    target: Any = None,
    *,
    masks: Tensor | None = None,
    vary: bool | None = None,
    store: str | PathLike[str] | None = None,
    seed: int = 0,
    enlarge: Enlarge | None = None,
    progress: bool = False,
) -> Tuning:
    """Search for the recipe that explains a model best by a metric, and report it on images held out.

    Args:
        model: as for `explain`.
        images: as for `explain`, or a data set that `sightline.data.open_dataset` opened; four at least. A shuffled
            half chooses, the other half reports.
        recipes: what to search, such as ``["gae", "ig(steps={10,20,40})"]``, braces standing for each of their values;
            by default methods that suit the model, and operators on some of them.
        metric: what to search by; scores are compared by the mean over images. By default average precision where
            there are masks, else insertion minus deletion in 28 steps.
        target: one for all images; by default the class that is predicted for each, or its label in a data set.
        masks: of the evidence, (batch, height, width), for images that are no data set.
        vary: whether the options of the finalists are varied too, within their ranges; by default where no recipes are
            given.
        store: a file that keeps every score, so that an interrupted search goes on where it stopped.
        seed: of the shuffling and of the intervals.
        enlarge: how cells become pixels, as for `explain`.
        progress: show a progress bar on stderr.
    """
    adapter = adapt(model)
    examples = examples_of(adapter, images, target, masks)
    if len(examples) < FEWEST:
        raise InputError(
            f"got {len(examples)} images; one half chooses and the other reports, so give {FEWEST} or more"
        )
    metric = metric or _goal(examples)
    spec = spec_of(parse_metric(metric))
    if "masks" in spec.needs and any(example.mask is None for example in examples):
        raise InputError(f"{metric} needs a mask for every image; give masks=…, or a data set that has them")
    failures: dict[str, str] = {}
    searched, controls = candidates(adapter, recipes, failures)
    order = np.random.default_rng(seed).permutation(len(examples)).tolist()
    scorer = ImageScorer(adapter, examples, metric, ScoreStore(store), enlarge)
    search = _Search(scorer, 1 if spec.direction == "higher" else -1, failures)
    half = len(examples) // 2
    with progress_bar(None, "tuning", enabled=progress) as advance:
        finalists, rounds = search.halve(searched, order[:half], advance)
        if recipes is None if vary is None else vary:
            others = [other for recipe in finalists for other in varied(recipe, adapter)]
            finalists, more = search.halve(list(dict.fromkeys([*finalists, *others])), order[:half], advance)
            rounds += more
        reported = search.report([*finalists, *controls], order[half:], seed, advance)
    return Tuning(
        adapter.name, metric, spec.direction, (half, len(examples) - half), tuple(rounds), tuple(reported), failures
    )


def _goal(examples: Sequence[Example]) -> str:
    """Return the metric to search by where none is named."""
    if all(example.mask is not None for example in examples):
        return "average_precision"
    return f"ins_del(step={metric_step(examples[0].batch)})"


class _Search:
    """Successive halving over images, and the report on those held out."""

    def __init__(self, scorer: ImageScorer, sign: int, failures: dict[str, str]) -> None:
        self.scorer, self.sign, self.failures = scorer, sign, failures
        self.searched: dict[str, tuple[float, int]] = {}

    def scores(self, recipe: str, rows: Sequence[int], advance: Advance) -> NDArray[Any] | None:
        """Return the score of each image; None for a recipe that cannot be scored, which is noted."""
        try:
            values = np.array([self.scorer(recipe, row) for row in rows])
        except SightlineError as error:
            self.failures[recipe] = str(error)
            return None
        advance(len(rows), recipe)
        if not np.isfinite(values).all():
            self.failures[recipe] = "the metric is not defined on some image"
            return None
        return values

    def halve(
        self, recipes: Sequence[str], rows: Sequence[int], advance: Advance
    ) -> tuple[list[str], list[tuple[int, int]]]:
        """Return the finalists, best first, and the rounds: how many recipes on how many images."""
        alive, rounds = list(recipes), []
        count = min(START, len(rows))
        while True:
            means = {}
            for recipe in alive:
                values = self.scores(recipe, rows[:count], advance)
                if values is not None:
                    means[recipe] = float(values.mean())
                    self.searched[recipe] = (means[recipe], count)
            if not means:
                reason = next(iter(self.failures.values()), "")
                raise InputError(f"none of the recipes could be scored: {reason}")
            rounds.append((len(alive), count))
            alive = sorted(means, key=lambda recipe: -self.sign * means[recipe])
            if count == len(rows):
                return alive[:FINALISTS], rounds
            alive = alive[: max(FINALISTS, -(-len(alive) // 2))]
            count = min(2 * count, len(rows))

    def report(self, recipes: Sequence[str], rows: Sequence[int], seed: int, advance: Advance) -> list[TunedRecipe]:
        """Return finalists in the order of the search, then controls, best first, as measured on other images."""
        scored = {recipe: self.scores(recipe, rows, advance) for recipe in recipes}
        sound = {recipe: values for recipe, values in scored.items() if values is not None}
        draws = np.random.default_rng(seed).integers(len(rows), size=(RESAMPLES, len(rows)))
        controls = sorted((r for r in sound if r not in self.searched), key=lambda r: -self.sign * sound[r].mean())
        finalists = [recipe for recipe in sound if recipe in self.searched]
        if not finalists or not controls:
            raise InputError(
                f"nothing could be reported: {next(iter(self.failures.values()), 'no control was scored')}"
            )
        bar = sound[controls[0]]
        entries = []
        for recipe in (*finalists, *controls):
            values, control = sound[recipe], recipe in controls
            searched, images = self.searched.get(recipe, (None, 0))
            ahead = None if control else self.sign * (values - bar)
            entries.append(
                TunedRecipe(
                    recipe,
                    control,
                    searched,
                    images,
                    float(values.mean()),
                    _interval(values, draws),
                    None if ahead is None else float(ahead.mean()),
                    None if ahead is None else _interval(ahead, draws),
                )
            )
        return entries


def _interval(values: NDArray[Any], draws: NDArray[Any]) -> tuple[float, float]:
    low, high = np.quantile(values[draws].mean(axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
