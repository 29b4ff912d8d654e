"""What a benchmark run shows: a bar with the time left and a leaderboard while it runs, tables when it is done."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from sightline.bench.run import Callback, Outcome
from sightline.bench.running_means import Failure, RunningMean, RunningMeans
from sightline.bench.store.status import Status
from sightline.bench.tables.traits import direction_of
from sightline.bench.unit import Manifest, Unit
from sightline.cli import console

__all__ = ["RunDisplay", "show_outcome", "show_status"]

TOP = 12  # methods on the live leaderboard
ACROSS = 5  # metrics on it
LISTED = 10  # failures that are listed one by one
EVERY = 10.0  # seconds between two lines where there is no terminal


class RunDisplay(Callback, AbstractContextManager["RunDisplay"]):
    """Shows a run on stderr: live on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        self.stack = ExitStack()
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("units, {task.fields[left]}"),
            console=console.err,
        )
        self.live: Live | None = None
        self.total = self.before = self.done = 0
        self.started = self.shown = time.monotonic()

    def __enter__(self) -> RunDisplay:
        self.stack.enter_context(console.waiting("loading the models"))
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def note(self, sentence: str) -> None:
        """Print a sentence above the bar."""
        console.note(sentence)

    def planned(self, manifest: Manifest, total: int, todo: int) -> None:
        """Start the bar."""
        self.total, self.before, self.done = total, total - todo, total - todo
        self.started = self.shown = time.monotonic()
        self.stack.close()
        if not todo:
            return
        if not console.err.is_terminal:
            before = f", {self.before} of them done before" if self.before else ""
            console.err.print(f"{manifest.name}: {total} units{before}", soft_wrap=True, markup=False)
            return
        self.task = self.bar.add_task(console.plain(manifest.name), total=total, completed=self.done, left="")
        self.live = self.stack.enter_context(Live(self.bar, console=console.err, transient=True, refresh_per_second=4))

    def advanced(self, unit: Unit | None, means: RunningMeans) -> None:
        """Move on by one unit."""
        self.done += 1
        if self.live is not None:
            self.bar.update(self.task, completed=self.done, left=self._left())
            if time.monotonic() - self.shown > 0.5:
                self.shown = time.monotonic()
                self.live.update(Group(self.bar, *_leaderboards(means.ranked(), unit.model if unit else None)))
        elif not console.err.is_terminal and time.monotonic() - self.shown > EVERY:
            self.shown = time.monotonic()
            line = f"{self.done} of {self.total} units, {self._left()}{_best(means.ranked())}"
            console.err.print(line, soft_wrap=True, markup=False)

    def _left(self) -> str:
        """Return how long the rest will take, by what was done here so far."""
        done = self.done - self.before
        seconds = (time.monotonic() - self.started) / max(done, 1) * (self.total - self.done)
        return f"about {_duration(seconds)} left"


def _duration(seconds: float) -> str:
    rounded = round(seconds)
    if rounded < 3600:
        return f"{rounded // 60}:{rounded % 60:02d}"
    return f"{rounded // 3600}:{rounded // 60 % 60:02d} h"


def _number(mean: RunningMean) -> str:
    if math.isnan(mean.mean):
        return "–"
    error = "" if math.isnan(mean.standard_error) else f" ± {mean.standard_error:.4f}"
    return f"{mean.mean:.4f}{error}"


def _best(means: Sequence[RunningMean]) -> str:
    if not means:
        return ""
    best = means[0]
    return f"; best by {best.metric} so far: {best.recipe} {_number(best)}, {best.count} images"


def _leaderboards(means: Sequence[RunningMean], model: str | None = None, top: int | None = TOP) -> Iterable[Table]:
    """Draw a leaderboard for each model: methods by the first metric, the others beside it."""
    for name in dict.fromkeys(mean.model for mean in means):
        if model is not None and name != model:
            continue
        own = [mean for mean in means if mean.model == name]
        metrics = list(dict.fromkeys(mean.metric for mean in own))
        shown = metrics[: ACROSS if top is not None else None]
        cells = {(mean.recipe, mean.metric): mean for mean in own}
        recipes = [mean.recipe for mean in own if mean.metric == metrics[0]][:top]
        table = Table(title=Text(console.plain(name), "bold"), title_justify="left", box=None, pad_edge=False)
        table.add_column("method", overflow="fold")
        table.add_column("images", justify="right")
        for metric in shown:
            arrow = {"lower": "↓", "higher": "↑"}[direction_of(metric)]
            table.add_column(f"{metric} {arrow}", justify="right", overflow="fold")
        for recipe in recipes:
            row = [cells.get((recipe, metric)) for metric in shown]
            count = max((mean.count for mean in row if mean is not None), default=0)
            table.add_row(Text(recipe), str(count), *("–" if mean is None else _number(mean) for mean in row))
        yield table


def show_outcome(outcome: Outcome) -> None:
    """Print what came of a run: tables and a summary on stdout, what failed on stderr."""
    for table in _leaderboards(outcome.running_means.ranked(), top=None):
        console.show(table, "")
    console.show(Text("Means over images ± standard error; the report has intervals, ranks and tests.", "dim"))
    done = f"{outcome.computed} done now in {_duration(outcome.seconds)}, {outcome.before} before"
    console.show(Text(console.plain(f"{outcome.total} units in {outcome.store}: {done}")))
    _list_failures(outcome.failures)
    if outcome.unstored:
        console.note(f"{len(outcome.unstored)} units could not be written into {outcome.store}; make room", "error")
    if outcome.complete:
        console.show(Text(console.plain(f"Next: sightline report {outcome.store}")))
    else:
        console.note(f"go on with `sightline bench resume {outcome.store}`; what failed is tried again")


def show_status(status: Status, store: str) -> None:
    """Print how far a run is."""
    manifest = status.manifest
    console.show(Text(console.plain(f"{manifest.name}: {status.done} of {status.total} units are done"), "bold"))
    table = Table(box=None, pad_edge=False)
    for head in ("model", "method", "units", "failed images"):
        table.add_column(head, justify="left" if head in ("model", "method") else "right", overflow="fold")
    for part in status.progress:
        table.add_row(Text(part.model), Text(part.recipe), f"{part.done}/{part.total}", str(part.failed or ""))
    console.show(table)
    for path in status.damaged:
        console.note(f"{path} is damaged; `sightline bench resume` makes it anew", "error")
    _list_failures(status.failures)
    if manifest.skipped:
        console.note(f"the data set left out {len(manifest.skipped)} images, first {': '.join(manifest.skipped[0])}")
    if not status.complete:
        console.show(Text(console.plain(f"Go on with: sightline bench resume {store}")))


def _list_failures(failures: Sequence[Failure]) -> None:
    """Print which images failed and why, each image and reason once."""
    counts: Counter[tuple[str, str]] = Counter((failure.image, failure.reason) for failure in failures)
    recipes = {(failure.image, failure.reason): failure.recipe for failure in failures}
    for (image, reason), count in list(counts.items())[:LISTED]:
        who = recipes[image, reason] if count == 1 else f"{count} methods"
        console.note(f"{image} failed with {who}: {reason}", "error")
    if len(counts) > LISTED:
        console.note(f"and {len(counts) - LISTED} more; `sightline bench status --json` lists them all", "error")
