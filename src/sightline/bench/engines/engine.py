"""Engines: where units are computed. Every one gives the same rows; the store alone knows what is done."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from sightline.bench.store.rows import UnitResult, encode, failed_rows
from sightline.bench.unit import ModelInfo, RunConfig, Unit
from sightline.errors import InputError

__all__ = ["ENGINES", "TRIES", "Engine", "InlineEngine", "cores", "open_engine", "worker_died"]

ENGINES = ("local", "ray")
TRIES = 3  # times that a worker may die over a unit before the unit counts as failed

OnDone = Callable[[Unit, UnitResult], None]
IsNeeded = Callable[[Unit], bool]


class Engine(Protocol):
    """What a run asks of an engine, inside ``with engine:``."""

    def describe(self, models: Sequence[str], recipes: Sequence[str], metrics: Sequence[str]) -> list[ModelInfo]:
        """Load each model once and return its weights' digest and what runs on it, in the order of `models`.

        Raises:
            SightlineError: a model cannot be loaded, or nothing runs on it.
        """
        ...

    def run(self, units: Sequence[Unit], on_done: OnDone, is_needed: IsNeeded) -> None:
        """Compute units in about this order; `is_needed` is asked right before each, `on_done` called as each ends.

        Both are called in the caller's own thread. A unit whose worker dies is computed again, TRIES times at most;
        then `on_done` gets what `worker_died` returns.
        """
        ...


def worker_died(unit: Unit) -> UnitResult:
    """Return the rows of a unit over which workers died too often."""
    reason = "the worker died three times; see whether the machine ran out of memory"
    return UnitResult(unit.key, encode(failed_rows(unit, dict.fromkeys(unit.images, reason))))


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def open_engine(
    name: str, config: RunConfig, *, workers: int | None = None, address: str | None = None
) -> AbstractContextManager[Engine]:
    """Return an engine, to be entered; `workers` is one per core by default, and 0 works in this very process."""
    if name == "ray":
        ray_engine: Any = importlib.import_module("sightline.bench.engines.ray").RayEngine
        engine: AbstractContextManager[Engine] = ray_engine(config, workers=workers, address=address)
        return engine
    if name != "local":
        raise InputError(f"there is no engine called {name!r}; choose from {', '.join(ENGINES)}")
    if workers == 0:
        return InlineEngine(config)
    from sightline.bench.engines.local import LocalEngine

    return LocalEngine(config, workers=workers or max(1, cores() // config.threads))


class InlineEngine(AbstractContextManager["InlineEngine"]):
    """Computes in the caller's own process: slow, and easy to debug."""

    def __init__(self, config: RunConfig) -> None:
        from sightline.bench.worker import Worker

        self.worker = Worker(config)

    def __exit__(self, *_: object) -> None:
        return None

    def describe(self, models: Sequence[str], recipes: Sequence[str], metrics: Sequence[str]) -> list[ModelInfo]:
        """See `Engine`."""
        return [self.worker.describe(model, recipes, metrics) for model in models]

    def run(self, units: Sequence[Unit], on_done: OnDone, is_needed: IsNeeded) -> None:
        """See `Engine`."""
        for unit in units:
            if is_needed(unit):
                on_done(unit, self.worker.compute(unit))
