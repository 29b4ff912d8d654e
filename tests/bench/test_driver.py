"""Drivers that share a store: nothing done twice, nothing left out, whoever dies."""

import threading
import time
from collections import Counter

from tests.bench.store.test_store import rows_for
from tests.bench.test_unit import manifest

from sightline.bench import driver as module
from sightline.bench.driver import Driver
from sightline.bench.outcome import Callback
from sightline.bench.store import claims
from sightline.bench.store.claims import Claims
from sightline.bench.store.rows import UnitResult, encode, failed_rows
from sightline.bench.store.status import status_of
from sightline.bench.store.store import Store, read_rows
from sightline.bench.unit import Chunk

CHUNKS = tuple(Chunk((f"a{index}", f"b{index}"), str(index)) for index in range(24))
UNITS = 48


class FakeEngine:
    """Computes units in the caller's thread, each in a moment; counts which."""

    def __init__(self, counted, seconds=0.01, fail=()):
        self.counted, self.seconds, self.fail = counted, seconds, fail

    def run(self, units, on_done, is_needed):
        for unit in units:
            if is_needed(unit):
                time.sleep(self.seconds)
                self.counted[unit.key] += 1
                on_done(unit, UnitResult(unit.key, self.rows(unit)))

    def rows(self, unit):
        if unit.key in self.fail:
            return encode(failed_rows(unit, dict.fromkeys(unit.images, "gone")))
        return encode(rows_for(unit))


def opened(folder):
    store = Store(str(folder))
    store.prepare()
    store.write_manifest(manifest(CHUNKS))
    return store


def drive(folder, engine, **options):
    return Driver(Store(str(folder)), manifest(CHUNKS), Callback(), **options).compute_missing(engine)


def together(*functions):
    """Call functions at the same time, and return what they return."""
    results, start = [None] * len(functions), threading.Barrier(len(functions))

    def call(place):
        start.wait()
        results[place] = functions[place]()

    threads = [threading.Thread(target=call, args=(place,)) for place in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_three_drivers_do_every_unit_once_and_each_knows_all_of_it(tmp_path):
    opened(tmp_path)
    counted = Counter()
    outcomes = together(*[lambda: drive(tmp_path, FakeEngine(counted))] * 3)
    assert len(counted) == UNITS
    assert counted.total() <= UNITS * 1.01 + 1
    assert sum(outcome.computed for outcome in outcomes) == counted.total()
    assert min(outcome.computed for outcome in outcomes) > 0
    assert all(outcome.complete for outcome in outcomes)
    assert len({str(outcome.to_json()["standings"]) for outcome in outcomes}) == 1
    assert {mean.count for mean in outcomes[0].running_means.ranked()} == {UNITS}
    assert len(read_rows(tmp_path)) == 2 * UNITS
    assert not list((tmp_path / "claims").iterdir())


def test_failed_units_are_tried_again_by_one_driver_alone(tmp_path):
    opened(tmp_path)
    keys = [unit.key for unit in manifest(CHUNKS).units()]
    assert len(drive(tmp_path, FakeEngine(Counter(), 0.0, fail=keys[:10])).failures) == 20
    counted = Counter()
    outcomes = together(*[lambda: drive(tmp_path, FakeEngine(counted, 0.02, fail=keys[:5]))] * 3)
    assert len(counted) == 10
    assert counted.total() <= 11
    assert {len(outcome.failures) for outcome in outcomes} == {10}
    assert (status_of(str(tmp_path)).failed, status_of(str(tmp_path)).done) == (5, UNITS)


def test_the_units_of_a_driver_elsewhere_are_taken_over_when_it_gives_no_sign_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "LEASE", 0.6)
    store = opened(tmp_path)
    keys = [unit.key for unit in manifest(CHUNKS).units()]
    dead = Claims(store, lease=1e6, owner="other-machine.1.aa")
    assert all(dead.take(key) for key in keys[:3])
    counted, begun = Counter(), time.monotonic()
    outcome = drive(tmp_path, FakeEngine(counted, 0.0))
    assert time.monotonic() - begun > 0.6
    assert (outcome.computed, outcome.complete, counted.total()) == (UNITS, True, UNITS)


def test_a_driver_that_lives_is_waited_for(tmp_path, monkeypatch):
    """Its unit takes longer than two leases; its signs of life keep others from taking it."""
    monkeypatch.setattr(claims, "LEASE", 2.0)
    opened(tmp_path)
    counted = Counter()

    def slow():
        class Slow(FakeEngine):
            def run(self, units, on_done, is_needed):
                super().run(units[:1], on_done, is_needed)

        return drive(tmp_path, Slow(counted, 4.5))

    def quick():
        time.sleep(0.2)
        return drive(tmp_path, FakeEngine(counted, 0.0))

    _, outcome = together(slow, quick)
    assert (outcome.complete, counted.total()) == (True, UNITS)


def test_a_failure_does_not_take_the_place_of_rows(tmp_path):
    store = opened(tmp_path)
    unit = next(manifest(CHUNKS).units())

    class Late(FakeEngine):
        """While the unit fails here, another driver that was thought dead stores its rows."""

        def rows(self, given):
            if given.key == unit.key:
                store.write(unit.key, encode(rows_for(unit)))
            return super().rows(given)

    outcome = drive(tmp_path, Late(Counter(), 0.0, fail=[unit.key]))
    assert outcome.complete
    assert status_of(str(tmp_path)).complete


def test_shares_together_are_the_whole(tmp_path):
    opened(tmp_path)
    counted = Counter()
    outcomes = [drive(tmp_path, FakeEngine(counted, 0.0), share=(index, 5)) for index in range(5)]
    assert sum(outcome.total for outcome in outcomes) == counted.total() == UNITS
    assert status_of(str(tmp_path)).complete


def test_a_driver_folds_what_it_has_done_and_goes_on_from_packs(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FOLD_AT", 10)
    opened(tmp_path)
    keys = [unit.key for unit in manifest(CHUNKS).units()]
    counted = Counter()
    together(*[lambda: drive(tmp_path, FakeEngine(counted, fail=keys[:1]))] * 2)
    assert counted.total() <= UNITS + 1
    store = Store(str(tmp_path))
    assert len(store.packs.refresh().units) >= UNITS - 11
    assert store.keys() == set(keys)
    again = drive(tmp_path, FakeEngine(counted, 0.0))
    assert (again.before, again.computed, again.complete) == (UNITS - 1, 1, True)
    assert {mean.count for mean in again.running_means.ranked()} == {UNITS}
    assert len(read_rows(tmp_path)) == 2 * UNITS


def test_a_driver_makes_the_units_of_a_damaged_pack_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FOLD_AT", 10)
    opened(tmp_path)
    drive(tmp_path, FakeEngine(Counter(), 0.0))
    wanted = read_rows(tmp_path)
    for path in (tmp_path / "packs").glob("*.rows.parquet"):
        path.write_bytes(path.read_bytes()[:-100])
    outcome = drive(tmp_path, FakeEngine(Counter(), 0.0))
    assert len(outcome.damaged) > 0
    assert outcome.computed > 30
    assert outcome.complete
    assert read_rows(tmp_path).equals(wanted)


def test_the_claim_of_a_unit_is_kept_until_its_rows_are_there(tmp_path, monkeypatch):
    store = opened(tmp_path)
    seen, real = [], Store.write

    def write(self, key, *given):
        seen.append((tmp_path / "claims" / f"{key}.claim").exists())
        real(self, key, *given)

    monkeypatch.setattr(Store, "write", write)
    drive(tmp_path, FakeEngine(Counter(), 0.0))
    assert seen == [True] * UNITS
    assert store.keys()
