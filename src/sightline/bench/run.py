"""Run a benchmark plan, or go on with one: whatever the store does not hold yet is computed, on any engine.

>>> from sightline.bench.plan import make_plan
>>> plan = make_plan({"name": "look", "models": "bundled/shapes-cnn", "methods": "ixg", "metrics": "insertion",
...                   "dataset": "shapes(count=8)", "limit": 2})
>>> outcome = run(plan, "runs/look", workers=0)  # doctest: +SKIP
>>> outcome.complete, outcome.running_means.ranked()[0].mean  # doctest: +SKIP
(True, 0.87)

The result is plain data; nothing is printed. `sightline.bench.store.store.read_rows` reads the rows as a pandas frame,
`sightline.bench.tables.table.make_table` turns them into a table.

The store is the only truth. A run that is stopped, killed or cut off is carried on by running it again; several drivers
may work on one store, and each leaves alone what another has claimed. `work` does a share of the units, for clusters
whose scheduler starts many processes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline import __version__
from sightline.bench.driver import Driver, Share
from sightline.bench.engines.engine import open_engine
from sightline.bench.engines.shards import shard_of
from sightline.bench.environment import deciding_modules, digest_environment, is_unchanged
from sightline.bench.outcome import Callback, Outcome
from sightline.bench.plan import Plan, make_plan
from sightline.bench.store.store import Store
from sightline.bench.unit import Chunk, Manifest, ModelInfo, RunConfig, SourceDigests
from sightline.errors import InputError, RecipeError

__all__ = ["Callback", "Outcome", "resume", "run", "work"]


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
    share: Share | None = None,
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
        share: which of how many shares of the units, counted from 0; all of them by default.

    Raises:
        SightlineError: something is wrong with the plan, a model, the data set or the store; nothing was done.
    """
    from sightline.bench.images import dataset_of, open_images, split
    from sightline.bench.sure_images import sure_images

    if plan.figure is not None:
        raise RecipeError(f"{plan.name} describes a figure; draw it with `sightline figure {plan.name}`")
    folder = str(Path(base).resolve()) if str(base) else ""
    given = dataset_of(plan)
    dataset = sure_images(plan, open_images(given, folder))
    chunks = split(dataset, plan.batch, plan.limit)
    images = _Images(_config(plan, given, folder), dataset.name, chunks, dataset.skipped)
    options = {"workers": workers, "address": address}
    return _run(plan, Store(store), images, engine, options, callback or Callback(), command, share)


def resume(
    store: str,
    *,
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    callback: Callback | None = None,
    share: Share | None = None,
) -> Outcome:
    """Go on with the run of a store: the same plan, the same images, even if some of them are gone by now.

    Where every unit is there and neither code nor weights have changed, no model is loaded to find that out.
    """
    started = time.monotonic()
    callback = callback or Callback()
    manifest = Store(store).manifest()
    if is_unchanged(manifest) and (done := Driver(Store(store), manifest, callback, share).finished()) is not None:
        _note_left_out(callback, manifest.skipped, manifest.models)
        done.seconds = time.monotonic() - started
        return done
    plan = make_plan(manifest.plan, f"the plan of {store}")
    images = _Images(manifest.config, manifest.dataset, manifest.chunks, manifest.skipped)
    options = {"workers": workers, "address": address}
    return _run(plan, Store(store), images, engine, options, callback, manifest.command, share)


def work(
    store: str,
    shard: str | None = None,
    *,
    plan: Plan | None = None,
    base: str | Path = "",
    workers: int | None = None,
    callback: Callback | None = None,
    command: str = "",
) -> Outcome:
    """Do a share of the units of a run, for instance as one task of an array job.

    Args:
        store: a folder or an fsspec url.
        shard: such as "0/8", the first of eight; by default what the scheduler says, see `shard_of`.
        plan: to run, where the store may not hold one yet.
        base: the folder in which the plan's relative paths are looked up first.
        workers: how many; one per core by default, and 0 works in this very process.
        callback: told how it goes.
        command: what a user types to run it again.
    """
    share = shard_of(shard)
    if plan is None:
        return resume(store, workers=workers, callback=callback, share=share)
    return run(plan, store, base=base, workers=workers, callback=callback, command=command, share=share)


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
        enlarge=plan.enlarge or "",
        confidence=plan.confidence or 0.0,
    )


def _run(
    plan: Plan,
    store: Store,
    images: _Images,
    engine: str,
    options: dict[str, Any],
    callback: Callback,
    command: str,
    share: Share | None,
) -> Outcome:
    from sightline.bench.source_digest import digest_sources

    expanded = plan.expanded()
    source = digest_sources(expanded.recipes, expanded.metrics)
    modules = deciding_modules(expanded.recipes, expanded.metrics)
    environment = digest_environment(plan.models, modules)
    store.prepare()
    started = time.monotonic()
    _note_changes(store, plan.name, source, callback)  # before models are loaded: a user may want to stop here
    _note_left_out(callback, images.skipped)
    with open_engine(engine, images.config, **options) as opened:
        models = tuple(opened.describe(list(dict.fromkeys(plan.models)), expanded.recipes, expanded.metrics))
        _note_left_out(callback, (), models)
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
            environment=environment,
            modules=modules,
        )
        store.write_manifest(manifest)
        outcome = Driver(store, manifest, callback, share).compute_missing(opened)
    outcome.seconds = time.monotonic() - started
    return outcome


def _note_left_out(callback: Callback, skipped: Sequence[tuple[str, str]], models: Sequence[ModelInfo] = ()) -> None:
    """Say which images the data set left out, and what does not run on a model."""
    for image, reason in skipped:
        callback.note(f"left out {image}: {reason}")
    for model in models:
        for recipe, reason in model.left_out:
            callback.note(f"left out {recipe} on {model.model}: {reason}")


def _note_changes(store: Store, name: str, source: SourceDigests, callback: Callback) -> None:
    """Say where the store held another run than the one called `name`, or units that other code computed."""
    try:
        before = store.manifest()
    except InputError:
        return
    if before.name != name:
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
    pairs = ((before.source.recipes, source.recipes), (before.source.metrics, source.metrics))
    changed = [name for old, new in pairs for name in new if old.get(name, new[name]) != new[name]]
    if changed:
        names = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
        units = f"{_units_of(before, set(changed)):,} of {before.unit_count:,} units"
        callback.note(f"the source of {names} has changed since the last run; {units} are computed again")


def _units_of(manifest: Manifest, changed: set[str]) -> int:
    """Return how many units of a run some of its recipes and metrics take part in."""
    recipes = [
        len(model.recipes) if changed.intersection(model.metrics) else len(changed.intersection(model.recipes))
        for model in manifest.models
    ]
    return len(manifest.chunks) * sum(recipes)
