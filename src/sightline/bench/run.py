"""Run a plan, or go on with one: whatever the store does not hold yet is done, on any engine.

The store is the only truth. A run that is stopped, killed or cut off is carried on by running it again; two drivers may
work on one store, and each skips what the other has done.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sightline import __version__
from sightline.bench.engines.engine import Engine, open_engine
from sightline.bench.plan import Plan, make_plan
from sightline.bench.running_means import Failure, Standings
from sightline.bench.store.rows import Result, decode
from sightline.bench.store.status import Survey, is_whole, survey
from sightline.bench.store.store import Store
from sightline.bench.unit import Block, Manifest, Setting, Unit
from sightline.errors import InputError, OutputError

__all__ = ["Outcome", "Watch", "resume", "run"]

HELD = 256 * 2**20  # bytes of finished units that wait in memory for room on a full disk


class Watch:
    """Hears how a run goes; a command draws it. Every method may be left as it is."""

    def planned(self, manifest: Manifest, total: int, todo: int) -> None:
        """Hear what is going to be done."""

    def advanced(self, unit: Unit | None, standings: Standings) -> None:
        """Hear that a unit was done here, or, with None, that one was found done by another driver."""

    def note(self, sentence: str) -> None:
        """Hear of something that a user should know."""


@dataclass
class Outcome:
    """What came of a run.

    Attributes:
        run: the plan's name.
        store: where its rows are.
        total: units of the plan.
        before: units that were there already, every image scored.
        computed: units done now.
        failures: images that could not be scored.
        unstored: units that could not be written.
        damaged: files that could not be read and were put aside.
        left_out: (model, recipe or metric, reason) of what does not run on a model.
        skipped: (image, reason) of what the data set left out.
        standings: means so far.
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
    standings: Standings = field(default_factory=Standings)
    seconds: float = 0.0

    @property
    def complete(self) -> bool:
        """Whether every unit is stored and every image scored."""
        return not self.failures and not self.unstored

    def json(self) -> dict[str, Any]:
        """Return it as plain data."""
        lines = self.standings.lines()
        units = {"total": self.total, "before": self.before, "computed": self.computed, "unstored": len(self.unstored)}
        return {
            "run": self.run,
            "store": self.store,
            "units": units,
            "complete": self.complete,
            "standings": [{name: getattr(one, name) for name in one.__slots__} for one in lines],
            "failures": [{name: getattr(one, name) for name in one.__slots__} for one in self.failures],
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
    watch: Watch | None = None,
    command: str = "",
) -> Outcome:
    """Run a plan into a store; what the store holds already is not done again, what failed there is tried again.

    Args:
        plan: what to run.
        store: a folder or an fsspec url.
        base: the folder in which the plan's relative paths are looked up first.
        engine: "local" or "ray".
        workers: how many; one per core by default, and 0 works in this very process.
        address: of a Ray cluster.
        watch: hears how it goes.
        command: what a user types to run it again.

    Raises:
        SightlineError: something is wrong with the plan, a model, the data set or the store; nothing was done.
    """
    from sightline.bench.images import chosen, deal, open_images

    folder = str(Path(base).resolve()) if str(base) else ""
    given = chosen(plan)
    dataset = open_images(given, folder)
    images = _Images(
        _setting(plan, given, folder), dataset.name, deal(dataset, plan.batch, plan.limit), dataset.skipped
    )
    options = {"workers": workers, "address": address}
    return _carry_out(plan, Store(store), images, engine, options, watch or Watch(), command)


def resume(
    store: str,
    *,
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    watch: Watch | None = None,
) -> Outcome:
    """Go on with the run of a store: the same plan, the same images, even if some of them are gone by now."""
    found = Store(store).manifest()
    plan = make_plan(found.plan, f"the plan of {store}")
    images = _Images(found.setting, found.dataset, found.blocks, found.skipped)
    options = {"workers": workers, "address": address}
    return _carry_out(plan, Store(store), images, engine, options, watch or Watch(), found.command)


@dataclass(frozen=True)
class _Images:
    """The images of a run, and how workers come by them."""

    setting: Setting
    dataset: str
    blocks: tuple[Block, ...]
    skipped: tuple[tuple[str, str], ...]


def _setting(plan: Plan, given: str | dict[str, Any], base: str) -> Setting:
    return Setting(
        dataset=given,
        base=base,
        target=plan.target,
        seed=plan.seed or 0,
        threads=plan.threads,
        device=plan.device,
        resize=plan.resize,
        classes=tuple(plan.classes),
    )


def _carry_out(
    plan: Plan, store: Store, images: _Images, engine: str, options: dict[str, Any], watch: Watch, command: str
) -> Outcome:
    expanded = plan.expanded()
    store.prepare()
    _tell_other_run(store, plan, watch)
    started = time.monotonic()
    for image, reason in images.skipped:
        watch.note(f"left out {image}: {reason}")
    with open_engine(engine, images.setting, **options) as hands:
        models = tuple(hands.describe(list(dict.fromkeys(plan.models)), expanded.recipes, expanded.metrics))
        for model in models:
            for recipe, reason in model.left_out:
                watch.note(f"left out {recipe} on {model.model}: {reason}")
        manifest = Manifest(
            plan=plan.model_dump(mode="json"),
            setting=images.setting,
            dataset=images.dataset,
            blocks=images.blocks,
            models=models,
            skipped=images.skipped,
            version=__version__,
            command=command,
        )
        store.write_manifest(manifest)
        found = _Run(store, manifest, watch).do(hands)
    found.seconds = time.monotonic() - started
    return found


def _tell_other_run(store: Store, plan: Plan, watch: Watch) -> None:
    try:
        other = store.manifest().name
    except InputError:
        return
    if other != plan.name:
        watch.note(
            f"the store {store.url} held the run {other!r}; its rows stay, and its report comes back when it is "
            "run again"
        )


class _Run:
    """One run under way, as its driver sees it."""

    def __init__(self, store: Store, manifest: Manifest, watch: Watch) -> None:
        self.store = store
        self.manifest = manifest
        self.watch = watch
        self.units = list(manifest.units())
        self.held: dict[str, Result] = {}  # finished units that the store did not take
        self.elsewhere: list[Unit] = []  # done by another driver meanwhile
        self.outcome = Outcome(manifest.name, store.url, len(self.units), skipped=list(manifest.skipped))
        for model in manifest.models:
            self.outcome.left_out += [(model.model, recipe, reason) for recipe, reason in model.left_out]

    def do(self, hands: Engine) -> Outcome:
        """Do what is left, and count up."""
        found = survey(self.store, self.units)
        self._put_aside(found)
        self.again = found.failed
        self.standings = self.outcome.standings = found.standings
        self.outcome.before = len(found.sound)
        todo = [unit for unit in self.units if unit.key not in found.sound]
        self.watch.planned(self.manifest, len(self.units), len(todo))
        hands.run(_from_anywhere(todo), self._done, self._wanted)
        self._write_held(last=True)
        for unit in self.elsewhere:
            self._read(unit)
        self.outcome.failures = list(self.standings.failures.values())
        return self.outcome

    def _put_aside(self, found: Survey) -> None:
        for key in sorted(found.damaged):
            name = self.store.unit_path(key)
            self.outcome.damaged.append(name)
            self.watch.note(f"{name} is damaged; it was put aside as {self.store.put_aside(key)} and is made anew")

    def _wanted(self, unit: Unit) -> bool:
        """Tell whether a unit still has to be done: another driver may have been faster."""
        if not self.store.has(unit.key) or unit.key in self.held:
            return True
        if unit.key in self.again and not self._read(unit):
            return True
        self.elsewhere.append(unit)
        self.watch.advanced(None, self.standings)
        return False

    def _read(self, unit: Unit) -> bool:
        """Take in a unit from the store; return whether it is there with every image scored."""
        try:
            table = self.store.read(unit.key)
        except FileNotFoundError:
            return False
        return table is not None and is_whole(unit, table) and self.standings.add(table)

    def _done(self, unit: Unit, result: Result) -> None:
        self.standings.add(decode(result.rows))
        self.outcome.computed += 1
        self._write_held()
        try:
            self.store.write(unit.key, result.rows, result.maps)
        except OutputError as error:
            self._hold(result, error)
        self.watch.advanced(unit, self.standings)

    def _hold(self, result: Result, error: OutputError) -> None:
        """Keep a result that the store refused, as long as there is room in memory."""
        if not self.held and not self.outcome.unstored:
            self.watch.note(f"{error}; finished units wait in memory until there is room")
        size = sum(len(one.rows) + len(one.maps or b"") for one in self.held.values())
        if size < HELD:
            self.held[result.key] = result
        else:
            self.outcome.unstored.append(result.key)

    def _write_held(self, *, last: bool = False) -> None:
        for key, result in list(self.held.items()):
            try:
                self.store.write(key, result.rows, result.maps)
            except OutputError:
                if not last:
                    return
                self.outcome.unstored.append(key)
            del self.held[key]


def _from_anywhere(units: Sequence[Unit]) -> list[Unit]:
    """Start at any block, so that two drivers on one store seldom do the same; blocks stay whole."""
    starts = [place for place, unit in enumerate(units) if not place or units[place - 1].images != unit.images]
    first = random.SystemRandom().choice(starts) if starts else 0
    return [*units[first:], *units[:first]]
