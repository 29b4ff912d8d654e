"""Engines: where the work is done. Every one gives the same rows; the store alone knows what is done."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from sightline.bench.store.rows import Result, encode, failed_rows
from sightline.bench.unit import Described, Setting, Unit
from sightline.errors import InputError

__all__ = ["ENGINES", "TRIES", "Engine", "Inline", "cores", "given_up", "open_engine"]

ENGINES = ("local", "ray")
TRIES = 3  # times that a unit's worker may die before the unit is given up

Done = Callable[[Unit, Result], None]
Wanted = Callable[[Unit], bool]


class Engine(Protocol):
    """What a run asks of an engine, inside ``with engine:``."""

    def describe(self, models: Sequence[str], recipes: Sequence[str], metrics: Sequence[str]) -> list[Described]:
        """Load each model once and tell its weights and what runs on it, in the order of `models`.

        Raises:
            SightlineError: a model cannot be loaded, or nothing runs on it.
        """
        ...

    def run(self, units: Sequence[Unit], done: Done, wanted: Wanted) -> None:
        """Do units in about this order; `wanted` is asked right before each, `done` is called as each ends.

        Both are called in the caller's own thread. A unit whose worker dies is done again, TRIES times at most; then
        `done` gets what `given_up` returns.
        """
        ...


def given_up(unit: Unit) -> Result:
    """Return the rows of a unit that killed its workers."""
    reason = "the worker died three times; see whether the machine ran out of memory"
    return Result(unit.key, encode(failed_rows(unit, dict.fromkeys(unit.images, reason))))


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def open_engine(
    name: str, setting: Setting, *, workers: int | None = None, address: str | None = None
) -> AbstractContextManager[Engine]:
    """Return an engine, to be entered; `workers` is one per core by default, and 0 works in this very process."""
    if name == "ray":
        found: Any = importlib.import_module("sightline.bench.engines.ray").RayEngine
        engine: AbstractContextManager[Engine] = found(setting, workers=workers, address=address)
        return engine
    if name != "local":
        raise InputError(f"there is no engine called {name!r}; choose from {', '.join(ENGINES)}")
    if workers == 0:
        return Inline(setting)
    from sightline.bench.engines.local import LocalEngine

    return LocalEngine(setting, workers=workers or max(1, cores() // setting.threads))


class Inline(AbstractContextManager["Inline"]):
    """Works in the caller's own process: slow, and easy to look into."""

    def __init__(self, setting: Setting) -> None:
        from sightline.bench.work import Worker

        self.worker = Worker(setting)

    def __exit__(self, *_: object) -> None:
        return None

    def describe(self, models: Sequence[str], recipes: Sequence[str], metrics: Sequence[str]) -> list[Described]:
        """See `Engine`."""
        return [self.worker.describe(model, recipes, metrics) for model in models]

    def run(self, units: Sequence[Unit], done: Done, wanted: Wanted) -> None:
        """See `Engine`."""
        for unit in units:
            if wanted(unit):
                done(unit, self.worker.work(unit))
