"""The driver: one run under way. It hands units to an engine, writes what comes back, and shares with other drivers."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence

import numpy as np

from sightline.bench.engines.engine import Engine
from sightline.bench.outcome import Callback, Outcome
from sightline.bench.store.claims import Claims
from sightline.bench.store.compact import compact
from sightline.bench.store.rows import UnitResult, decode
from sightline.bench.store.status import UnitStates, is_complete, read_states
from sightline.bench.store.store import Store
from sightline.bench.unit import Manifest, Unit
from sightline.bench.unit_keys import KeyTable, words_of
from sightline.bench.unit_slots import share_of, slots_of, unit_at
from sightline.errors import OutputError, SightlineError

__all__ = ["Driver", "Share"]

MAX_UNSAVED = 256 * 2**20  # bytes of finished units that wait in memory for room on a full disk
FOLD_AT = 2048  # units in files of their own from which on they are folded into a pack
PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds between two looks at what other drivers do

Share = tuple[int, int]  # which, counted from 0, and of how many


class Driver:
    """Computes what is missing of a run, or of a share of it, and writes it to the store."""

    def __init__(self, store: Store, manifest: Manifest, callback: Callback, share: Share | None = None) -> None:
        self.store = store
        self.manifest = manifest
        self.callback = callback
        slots = slots_of(manifest)
        self.slots = slots if share is None else share_of(slots, *share)
        self.unsaved: dict[str, UnitResult] = {}  # finished units that the store did not take
        self.claimed_elsewhere: list[Unit] = []  # another driver is at work on them
        self.done_elsewhere: list[Unit] = []  # another driver has done them meanwhile
        self.claims = Claims(store)
        self.folding = _Folding(store.url)
        self.outcome = Outcome(manifest.name, store.url, len(self.slots), skipped=list(manifest.skipped))
        for model in manifest.models:
            self.outcome.left_out += [(model.model, recipe, reason) for recipe, reason in model.left_out]

    def compute_missing(self, engine: Engine) -> Outcome:
        """Compute the units that the store does not hold or that failed in it."""
        states = read_states(self.store, self.manifest, self.slots)
        self._quarantine(states)
        self.stamps = states.stamps
        self._begin(states)
        todo = [unit_at(self.manifest, slot) for slot in states.to_do]
        self.callback.planned(self.manifest, len(self.slots), len(todo))
        with self.claims:
            while todo:
                engine.run(_rotated(todo), self._on_done, self._is_needed)
                todo = self._wait_for_others()
            self._write_unsaved(last=True)
        self._read_others()
        self.folding.finish(len(self.store.loose_keys()))
        self.outcome.failures = list(self.means.failures.values())
        return self.outcome

    def finished(self) -> Outcome | None:
        """Return the outcome where the store holds every unit, every image scored; None where something is to do."""
        states = read_states(self.store, self.manifest, self.slots)
        if states.to_do or self.store.packs.damaged:
            return None
        self._begin(states)
        self.callback.planned(self.manifest, len(self.slots), 0)
        self.folding.finish(len(self.store.loose_keys()))
        return self.outcome

    def _begin(self, states: UnitStates) -> None:
        """Take what the store holds already as the beginning of the outcome."""
        self.means = self.outcome.running_means = states.means
        self.outcome.before = len(states.scored)

    def _quarantine(self, states: UnitStates) -> None:
        """Move what cannot be read aside."""
        moved = {
            self.store.unit_path(key): self.store.quarantine(key) for key in sorted(slot.key for slot in states.damaged)
        }
        for name in sorted(self.store.packs.damaged):
            moved[self.store.pack_path(name)] = self.store.quarantine_pack(name)
        for path, name in moved.items():
            self.outcome.damaged.append(path)
            self.callback.note(f"{path} is damaged; it was put aside as {name} and is made anew")

    # ---- sharing -----------------------------------------------------------------------------------------------

    def _is_needed(self, unit: Unit) -> bool:
        """Claim a unit; tell whether it is to be computed here: another driver may be at it, or have been faster."""
        key = unit.key
        if self._is_done(unit, key):
            return False
        if not self.claims.take(key):
            self.claimed_elsewhere.append(unit)
            return False
        if self._is_done(unit, key):  # finished between the two looks
            self.claims.release(key)
            return False
        return True

    def _is_done(self, unit: Unit, key: str) -> bool:
        """Tell whether another driver has done a unit since this one began, and note it."""
        is_retried = key in self.stamps and self.store.stamp(key) == self.stamps[key]
        if is_retried or not self.store.has(key):
            return False
        self.done_elsewhere.append(unit)
        self.callback.advanced(None, self.means)
        return True

    def _wait_for_others(self) -> list[Unit]:
        """Wait for units that other drivers have claimed; return those that were given up, to be computed here."""
        pause = PAUSE
        while self.claimed_elsewhere:
            waiting = [(unit, unit.key) for unit in self.claimed_elsewhere]
            waiting = [(unit, key) for unit, key in waiting if not self._is_done(unit, key)]
            free = [unit for unit, key in waiting if not self.claims.is_taken(key)]
            self.claimed_elsewhere = [unit for unit, _ in waiting if unit not in free]
            if free:
                return free
            time.sleep(pause)
            pause = min(1.5 * pause, LONGEST_PAUSE)
        return []

    def _read_others(self) -> None:
        """Add what other drivers have done to the means."""
        keys = set()
        for unit in self.done_elsewhere:
            keys.add(unit.key)
            for image in unit.images:
                self.means.failures.pop((unit.model, unit.recipe, image), None)
        if keys:
            places = KeyTable(self.slots.words).find(words_of(keys))
            self.means.merge(read_states(self.store, self.manifest, self.slots.chosen(np.sort(places))).means)

    # ---- writing -----------------------------------------------------------------------------------------------

    def _on_done(self, unit: Unit, result: UnitResult) -> None:
        table = decode(result.rows)
        self.outcome.computed += 1
        self._write_unsaved()
        if self.means.add(table) or not self._is_scored(unit):  # a failure does not take the place of rows
            self._write(result)
        self.callback.advanced(unit, self.means)

    def _is_scored(self, unit: Unit) -> bool:
        """Tell whether the store holds a unit with every image scored; add it to the means then."""
        try:
            table = self.store.read(unit.key)
        except FileNotFoundError:
            return False
        return table is not None and is_complete(unit, table) and self.means.add(table)

    def _write(self, result: UnitResult) -> None:
        try:
            self.store.write(result.key, result.rows, result.maps)
        except OutputError as error:
            self._keep_in_memory(result, error)
        else:
            self.claims.release(result.key)
            self.folding.written()

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
                self.claims.release(key)
            except OutputError:
                if not last:
                    return
                self.outcome.unstored.append(key)
            del self.unsaved[key]


class _Folding:
    """Folds finished units into packs beside the work, now and then, and at its end."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.count = 0
        self.thread: threading.Thread | None = None

    def written(self) -> None:
        """Count a unit that was written; begin to fold where there are many."""
        self.count += 1
        if self.count >= FOLD_AT and (self.thread is None or not self.thread.is_alive()):
            self.count = 0
            self.thread = threading.Thread(target=self._fold, name="sightline-folding", daemon=True)
            self.thread.start()

    def finish(self, loose: int) -> None:
        """Wait for what was begun, and fold the rest where there is much of it."""
        if self.thread is not None:
            self.thread.join()
        if loose >= FOLD_AT:
            self._fold()

    def _fold(self) -> None:
        try:
            compact(self.url, check=False)
        except (SightlineError, OSError):  # nothing is lost: the units stay as they are
            return


def _rotated(units: Sequence[Unit]) -> list[Unit]:
    """Start at a random chunk, so that two drivers on one store seldom meet; chunks stay together."""
    starts = [index for index, unit in enumerate(units) if not index or units[index - 1].images != unit.images]
    first = random.SystemRandom().choice(starts) if starts else 0
    return [*units[first:], *units[:first]]
