"""Run a benchmark plan, or go on with one: whatever the store does not hold yet is computed, on any engine.

>>> from sightline.bench.plan import make_plan
>>> plan = make_plan({"name": "look", "models": "bundled/shapes-cnn", "methods": "ixg", "metrics": "insertion",
...                   "dataset": "shapes(count=8)", "limit": 2})
>>> outcome = run(plan, "runs/look", workers=0)  # doctest: +SKIP
>>> outcome.complete, outcome.running_means.ranked()[0].mean  # doctest: +SKIP
(True, 0.87)

The result is plain data; nothing is printed. `sightline.bench.store.store.read_rows` reads the rows as a pandas frame,
`sightline.bench.table.make_table` turns them into a table.

The store is the only truth. A run that is stopped, killed or cut off is carried on by running it again; two drivers may
work on one store, and each skips what the other has done.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sightline import __version__
from sightline.bench.engines.engine import Engine, open_engine
from sightline.bench.plan import Plan, make_plan
from sightline.bench.running_means import Failure, RunningMeans
from sightline.bench.store.rows import UnitResult, decode
from sightline.bench.store.status import UnitStates, is_complete, read_states
from sightline.bench.store.store import Store
from sightline.bench.unit import Chunk, Manifest, RunConfig, Unit
from sightline.errors import InputError, OutputError

__all__ = ["Callback", "Outcome", "resume", "run"]

MAX_UNSAVED = 256 * 2**20  # bytes of finished units that wait in memory for room on a full disk


class Callback:
    """Told how a run goes, for instance to draw a progress bar. Every method may be left as it is."""

    def planned(self, manifest: Manifest, total: int, todo: int) -> None:
        """Called once, when it is known how many units there are and how many of them are to be computed."""

    def advanced(self, unit: Unit | None, means: RunningMeans) -> None:
        """Called when a unit was computed here, or, with None, when another driver turned out to have done one."""

    def note(self, sentence: str) -> None:
        """Called with something that a user should know."""


@dataclass
class Outcome:
    """What a run has done, as plain data.

    Attributes:
        run: the plan's name.
        store: where its rows are.
        total: units of the plan.
        before: units that were there already, every image scored.
        computed: units computed now.
        failures: images that could not be scored.
        unstored: units that could not be written.
        damaged: files that could not be read and were moved to ``corrupt/``.
        left_out: (model, recipe or metric, reason) of what does not run on a model.
        skipped: (image, reason) of what the data set left out.
        running_means: means over the images so far.
        seconds: that it took.
    """

    run: str
    store: str
    total: int = 0
    before: int = 0
    computed: int = 0
    failures: list[Failure] = field(default_factory=list)
    unstored: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    left_out: list[tuple[str, str, str]] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    running_means: RunningMeans = field(default_factory=RunningMeans)
    seconds: float = 0.0

    @property
    def complete(self) -> bool:
        """Whether every unit is stored and every image scored."""
        return not self.failures and not self.unstored

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data; the running means are called ``standings``, as in every version."""
        units = {"total": self.total, "before": self.before, "computed": self.computed, "unstored": len(self.unstored)}
        return {
            "run": self.run,
            "store": self.store,
            "units": units,
            "complete": self.complete,
            "standings": [mean.to_json() for mean in self.running_means.ranked()],
            "failures": [asdict(failure) for failure in self.failures],
            "damaged": self.damaged,
            "left_out": [{"model": model, "recipe": recipe, "reason": why} for model, recipe, why in self.left_out],
            "skipped": [{"image": image, "reason": reason} for image, reason in self.skipped],
            "seconds": self.seconds,
            "version": __version__,
        }


def run(
    plan: Plan,
    store: str,
    *,
    base: str | Path = "",
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    callback: Callback | None = None,
    command: str = "",
) -> Outcome:
    """Run a plan into a store; units that the store holds are not computed again, those that failed are retried.

    Args:
        plan: what to run; `read_plan` and `make_plan` make one.
        store: a folder or an fsspec url.
        base: the folder in which the plan's relative paths are looked up first.
        engine: "local" or "ray".
        workers: how many; one per core by default, and 0 works in this very process.
        address: of a Ray cluster.
        callback: told how it goes.
        command: what a user types to run it again.

    Raises:
        SightlineError: something is wrong with the plan, a model, the data set or the store; nothing was done.
    """
    from sightline.bench.images import dataset_of, open_images, split

    folder = str(Path(base).resolve()) if str(base) else ""
    given = dataset_of(plan)
    dataset = open_images(given, folder)
    chunks = split(dataset, plan.batch, plan.limit)
    images = _Images(_config(plan, given, folder), dataset.name, chunks, dataset.skipped)
    options = {"workers": workers, "address": address}
    return _run(plan, Store(store), images, engine, options, callback or Callback(), command)


def resume(
    store: str,
    *,
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    callback: Callback | None = None,
) -> Outcome:
    """Go on with the run of a store: the same plan, the same images, even if some of them are gone by now."""
    manifest = Store(store).manifest()
    plan = make_plan(manifest.plan, f"the plan of {store}")
    images = _Images(manifest.config, manifest.dataset, manifest.chunks, manifest.skipped)
    options = {"workers": workers, "address": address}
    return _run(plan, Store(store), images, engine, options, callback or Callback(), manifest.command)


@dataclass(frozen=True)
class _Images:
    """The images of a run, and how workers come by them."""

    config: RunConfig
    dataset: str
    chunks: tuple[Chunk, ...]
    skipped: tuple[tuple[str, str], ...]


def _config(plan: Plan, dataset: str | dict[str, Any], base: str) -> RunConfig:
    return RunConfig(
        dataset=dataset,
        base=base,
        target=plan.target,
        seed=plan.seed or 0,
        threads=plan.threads,
        device=plan.device,
        resize=plan.resize,
        classes=tuple(plan.classes),
    )


def _run(
    plan: Plan, store: Store, images: _Images, engine: str, options: dict[str, Any], callback: Callback, command: str
) -> Outcome:
    from sightline.bench.source_digest import digest_sources

    expanded = plan.expanded()
    source = digest_sources(expanded.recipes, expanded.metrics)
    store.prepare()
    started = time.monotonic()
    for image, reason in images.skipped:
        callback.note(f"left out {image}: {reason}")
    with open_engine(engine, images.config, **options) as opened:
        models = tuple(opened.describe(list(dict.fromkeys(plan.models)), expanded.recipes, expanded.metrics))
        for model in models:
            for recipe, reason in model.left_out:
                callback.note(f"left out {recipe} on {model.model}: {reason}")
        manifest = Manifest(
            plan=plan.model_dump(mode="json"),
            config=images.config,
            dataset=images.dataset,
            chunks=images.chunks,
            models=models,
            skipped=images.skipped,
            version=__version__,
            command=command,
            source=source,
        )
        _note_changes(store, manifest, callback)
        store.write_manifest(manifest)
        outcome = _Driver(store, manifest, callback).compute_missing(opened)
    outcome.seconds = time.monotonic() - started
    return outcome


def _note_changes(store: Store, manifest: Manifest, callback: Callback) -> None:
    """Say where the store held another run, or one whose units were computed by other code."""
    try:
        before = store.manifest()
    except InputError:
        return
    if before.name != manifest.name:
        callback.note(
            f"the store {store.url} held the run {before.name!r}; its rows stay, and its report comes back when it is "
            "run again"
        )
        return
    if not before.source.recipes:
        callback.note(
            f"the store {store.url} does not say which code its units were computed by; they are computed again"
        )
        return
    pairs = ((before.source.recipes, manifest.source.recipes), (before.source.metrics, manifest.source.metrics))
    changed = [name for old, new in pairs for name in new if old.get(name, new[name]) != new[name]]
    if changed:
        names = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
        callback.note(f"the source of {names} has changed since the last run; their units are computed again")


class _Driver:
    """One run under way: computes what is missing and writes it to the store."""

    def __init__(self, store: Store, manifest: Manifest, callback: Callback) -> None:
        self.store = store
        self.manifest = manifest
        self.callback = callback
        self.units = list(manifest.units())
        self.unsaved: dict[str, UnitResult] = {}  # finished units that the store did not take
        self.done_elsewhere: list[Unit] = []  # by another driver meanwhile
        self.outcome = Outcome(manifest.name, store.url, len(self.units), skipped=list(manifest.skipped))
        for model in manifest.models:
            self.outcome.left_out += [(model.model, recipe, reason) for recipe, reason in model.left_out]

    def compute_missing(self, engine: Engine) -> Outcome:
        """Compute the units that the store does not hold or that failed in it."""
        states = read_states(self.store, self.units)
        self._quarantine(states)
        self.retried = states.failed
        self.means = self.outcome.running_means = states.means
        self.outcome.before = len(states.scored)
        todo = [unit for unit in self.units if unit.key not in states.scored]
        self.callback.planned(self.manifest, len(self.units), len(todo))
        engine.run(_rotated(todo), self._on_done, self._is_needed)
        self._write_unsaved(last=True)
        for unit in self.done_elsewhere:
            self._read(unit)
        self.outcome.failures = list(self.means.failures.values())
        return self.outcome

    def _quarantine(self, states: UnitStates) -> None:
        for key in sorted(states.damaged):
            path = self.store.unit_path(key)
            self.outcome.damaged.append(path)
            self.callback.note(f"{path} is damaged; it was put aside as {self.store.quarantine(key)} and is made anew")

    def _is_needed(self, unit: Unit) -> bool:
        """Tell whether a unit still has to be computed: another driver may have been faster."""
        if not self.store.has(unit.key) or unit.key in self.unsaved:
            return True
        if unit.key in self.retried and not self._read(unit):
            return True
        self.done_elsewhere.append(unit)
        self.callback.advanced(None, self.means)
        return False

    def _read(self, unit: Unit) -> bool:
        """Add a unit from the store to the means; return whether it is there with every image scored."""
        try:
            table = self.store.read(unit.key)
        except FileNotFoundError:
            return False
        return table is not None and is_complete(unit, table) and self.means.add(table)

    def _on_done(self, unit: Unit, result: UnitResult) -> None:
        self.means.add(decode(result.rows))
        self.outcome.computed += 1
        self._write_unsaved()
        try:
            self.store.write(unit.key, result.rows, result.maps)
        except OutputError as error:
            self._keep_in_memory(result, error)
        self.callback.advanced(unit, self.means)

    def _keep_in_memory(self, result: UnitResult, error: OutputError) -> None:
        """Keep a result that the store refused, as long as there is room in memory."""
        if not self.unsaved and not self.outcome.unstored:
            self.callback.note(f"{error}; finished units wait in memory until there is room")
        size = sum(len(waiting.rows) + len(waiting.maps or b"") for waiting in self.unsaved.values())
        if size < MAX_UNSAVED:
            self.unsaved[result.key] = result
        else:
            self.outcome.unstored.append(result.key)

    def _write_unsaved(self, *, last: bool = False) -> None:
        for key, result in list(self.unsaved.items()):
            try:
                self.store.write(key, result.rows, result.maps)
            except OutputError:
                if not last:
                    return
                self.outcome.unstored.append(key)
            del self.unsaved[key]


def _rotated(units: Sequence[Unit]) -> list[Unit]:
    """Start at a random chunk, so that two drivers on one store seldom compute the same; chunks stay together."""
    starts = [index for index, unit in enumerate(units) if not index or units[index - 1].images != unit.images]
    first = random.SystemRandom().choice(starts) if starts else 0
    return [*units[first:], *units[:first]]
