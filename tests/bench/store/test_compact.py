"""Compaction: the same rows from fewer files, whenever it is stopped and whoever works beside it."""

import json
import os
import subprocess
import sys
import threading
import uuid
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.bench.store.test_store import filled, rows_for
from tests.bench.test_unit import UNIT, manifest

from sightline.bench.store import compact as module
from sightline.bench.store import store_files
from sightline.bench.store.claims import Claims
from sightline.bench.store.compact import compact
from sightline.bench.store.packs import PackIndex
from sightline.bench.store.rows import encode, failed_rows
from sightline.bench.store.status import read_states, status_of
from sightline.bench.store.store import Store, read_rows
from sightline.bench.unit import Chunk
from sightline.errors import InputError, OutputError, SightlineWarning

CHUNKS = tuple(Chunk((f"a{index}", f"b{index}"), str(index)) for index in range(12))
UNITS, ROWS = 24, 48


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(store_files, "SETTLE", 0.0)


@pytest.fixture(params=["folder", "memory"])
def url(request, tmp_path):
    return str(tmp_path / "store") if request.param == "folder" else f"memory://{uuid.uuid4().hex}"


def lines(url):
    """The rows of a store as plain text, in order."""
    return read_rows(url).astype(str).to_numpy().tolist()


def means(url):
    store = Store(str(url))
    ranked = read_states(store, store.manifest()).means.ranked()
    return {(one.recipe, one.metric): (one.mean, one.standard_error, one.count) for one in ranked}


def test_rows_status_and_means_stay_the_same(url):
    store, units = filled(url, CHUNKS)
    wanted, before, status = lines(url), means(url), status_of(url)
    done = compact(url)
    assert (done.units, done.packed, done.packs, done.left, done.damaged, done.busy) == (UNITS, UNITS, 1, 0, [], False)
    assert store.loose_keys() == set()
    assert store.keys() == {unit.key for unit in units}
    assert all(store.has(unit.key) for unit in units)
    assert lines(url) == wanted
    for cell, found in means(url).items():
        assert found == pytest.approx(before[cell], rel=1e-12)
    assert status_of(url).to_json() == status.to_json()
    assert store.read(units[3].key).num_rows == 2
    assert compact(url).units == 0
    json.dumps(done.to_json())


THREADS = """
import os, sys, time
import numpy, pyarrow.parquet
from sightline.bench.store.compact import compact
from sightline.bench.store.status import status_of
from sightline.bench.store.store import Store
before = len(os.listdir("/proc/self/task"))
url, key = sys.argv[1:]
for _ in range(2):
    assert status_of(url).complete
    assert Store(url).read(key).num_rows == 2
    compact(url)
last = time.monotonic() + 30  # a thread that was joined may be listed for a moment; one of Arrow's stays
while len(os.listdir("/proc/self/task")) > before and time.monotonic() < last:
    time.sleep(0.05)
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc")
def test_no_thread_of_arrow_is_left_that_could_abort_an_interpreter_as_it_ends(tmp_path):
    _, units = filled(tmp_path, CHUNKS)
    words = [sys.executable, "-c", THREADS, str(tmp_path), units[3].key]
    told = subprocess.run(words, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=True)
    assert told.stdout == "0\n"


def test_units_with_failures_stay_and_are_folded_when_they_are_scored(url):
    store, units = filled(url, CHUNKS)
    bad = units[5]
    store.write(bad.key, encode(rows_for(bad)[:1] + failed_rows(bad, {bad.images[1]: "gone"})))
    assert compact(url).left == 1
    assert (status_of(url).done, status_of(url).failed) == (UNITS, 1)
    store.write(bad.key, encode(rows_for(bad)))
    done = compact(url)
    assert (done.units, done.packed, done.packs, done.left) == (1, UNITS, 1, 0)
    assert len(lines(url)) == ROWS


def test_a_damaged_file_is_not_folded(url):
    store, units = filled(url, CHUNKS)
    store.files.pipe_file(store.unit_path(units[0].key), b"PAR1" * 40)
    other = encode(rows_for(units[2]))
    store.files.pipe_file(store.unit_path(units[1].key), other)  # of another unit
    assert compact(url).left == 2
    assert len(status_of(url).damaged) == 2


def test_only_the_units_of_the_present_plan_are_counted_in_a_pack(url):
    store, _ = filled(url, CHUNKS)
    before = means(url)
    stray = replace(UNIT, run="earlier", model="m0", metrics=("insertion",))
    store.write(stray.key, encode(rows_for(stray, value=1e6)))
    compact(url)
    assert means(url) == before
    assert set(read_rows(url)["run"]) == {"look"}
    assert len(read_rows(url, run="earlier")) == 2


class Killed(BaseException):
    """Stands for kill -9 at this very moment: nothing that comes after is done."""


STEPS = ["open_new", "write_file", "remove"]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("merging", [False, True])
def test_a_compaction_that_is_killed_at_any_step_loses_and_doubles_nothing(tmp_path, monkeypatch, merging, after):
    """Every write and every removal in turn is the last one, before or after it has happened."""
    real = {name: getattr(Store, name) for name in STEPS}
    last, count = 0, 1
    while last <= count:
        last, count = last + 1, 0
        folder = tmp_path / str(last)
        filled(folder, CHUNKS[:3])
        if merging:
            with monkeypatch.context() as patch:
                patch.setattr(module, "PER_PACK", 2)
                patch.setattr(module, "_merge", lambda store: None)
                assert compact(str(folder)).packs == 3
        wanted = lines(folder)

        def step(name, *given, last=last, **options):
            nonlocal count
            if given[1].startswith("claims/"):
                return real[name](*given, **options)
            count += 1
            if count == last and not after:
                raise Killed
            value = real[name](*given, **options)
            if count == last:
                raise Killed
            return value

        with monkeypatch.context() as patch:
            for name in STEPS:
                patch.setattr(Store, name, partialmethod_of(step, name))
            with suppress(Killed):
                compact(str(folder))
        assert lines(folder) == wanted
        assert status_of(str(folder)).complete
        done = compact(str(folder))
        assert (done.packed, done.left) == (6, 0)
        assert lines(folder) == wanted
    assert last == 1 + 9  # two files and their index, six removals, whatever is folded or merged


def partialmethod_of(step, name):
    return lambda *given, **options: step(name, *given, **options)


def test_a_full_disk_is_told_and_loses_nothing(tmp_path, monkeypatch):
    filled(tmp_path, CHUNKS)
    wanted = lines(tmp_path)

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("sightline.files.os.fsync", full)
        with pytest.raises(OutputError, match=r"cannot compact the store .*No space left.* nothing is lost"):
            compact(str(tmp_path))
    assert lines(tmp_path) == wanted
    assert not list(tmp_path.rglob("*.part"))


def test_small_packs_are_merged_and_a_unit_in_two_packs_is_read_once(url, monkeypatch):
    store, units = filled(url, CHUNKS)
    wanted = lines(url)
    with monkeypatch.context() as patch:
        patch.setattr(module, "PER_PACK", 10)
        patch.setattr(module, "_merge", lambda store: None)
        patch.setattr(module, "_remove", lambda store, keys: None)
        compact(url)
    for place, unit in enumerate(units):  # a second compactor that saw none of it
        store.write(unit.key, encode(rows_for(unit, value=float(place))))
    with monkeypatch.context() as patch:
        patch.setattr("sightline.bench.store.packs.PackIndex.refresh", lambda self: self)
        module._fold(Store(url), [unit.key for unit in units])
    assert len(Store(url).packs.refresh().packs) == 4
    assert lines(url) == wanted
    done = compact(url)
    assert (done.packed, done.packs, done.left) == (UNITS, 1, 0)
    assert lines(url) == wanted
    rows = Store(url).packs.refresh().packs.popitem()[1]
    import pyarrow.parquet as pq

    with store.files.open(store.path(rows.rows_name), "rb") as file:
        assert pq.read_table(file).num_rows == ROWS


@pytest.mark.parametrize("harm", ["cut", "gone", "changed"])
def test_a_damaged_pack_is_put_aside_and_its_units_are_missing(url, harm):
    store, _ = filled(url, CHUNKS)
    compact(url)
    (pack,) = store.packs.refresh().packs.values()
    path = store.path(pack.rows_name)
    data = store.files.cat_file(path)
    if harm == "gone":
        store.files.rm_file(path)
    else:
        middle = len(data) // 2
        changed = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        store.files.pipe_file(path, data[:middle] if harm == "cut" else changed)
    if harm != "changed":
        assert (status_of(url).done, len(status_of(url).damaged)) == (0, 1)
    assert compact(url).damaged == [pack.name]
    assert status_of(url).done == 0
    assert store.files.exists(store.path(f"corrupt/{pack.name}.index.parquet"))


def test_a_pack_that_cannot_be_read_is_named(tmp_path):
    store, units = filled(tmp_path, CHUNKS)
    compact(str(tmp_path))
    (pack,) = store.packs.refresh().packs.values()
    path = tmp_path / pack.rows_name
    path.write_bytes(b"x" * path.stat().st_size)
    store.write(units[0].key, encode(rows_for(units[0])))
    with pytest.warns(SightlineWarning, match="left out .*rows.parquet: it is damaged .*bench compact"):
        assert len(read_rows(tmp_path)) == 0


def test_one_compaction_at_a_time(tmp_path):
    store, _ = filled(tmp_path, CHUNKS)
    with Claims(store) as claims:
        assert claims.take(module.CLAIM)
        assert compact(str(tmp_path)).busy
    assert compact(str(tmp_path)).units == UNITS


def test_what_is_no_store_is_told(tmp_path):
    with pytest.raises(InputError, match="is no store"):
        compact(str(tmp_path))


def test_leftovers_of_writers_that_died_go_after_a_day(tmp_path):
    filled(tmp_path, CHUNKS)
    (tmp_path / "packs").mkdir()
    old, new = (tmp_path / "packs" / f"{name}.rows.parquet" for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1e9, 1e9))
    compact(str(tmp_path))
    assert (old.exists(), new.exists()) == (False, True)


def test_readers_and_writers_beside_a_compaction_see_every_unit(tmp_path, monkeypatch):
    """One thread compacts and merges over and over, one writes units; whoever reads sees all that was written."""
    monkeypatch.setattr(module, "PER_PACK", 5)
    store = Store(str(tmp_path))
    store.prepare()
    plan = manifest(CHUNKS)
    store.write_manifest(plan)
    units, written, stop, errors = list(plan.units()), [], threading.Event(), []

    def compacting():
        try:
            while not stop.is_set():
                compact(str(tmp_path))
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=compacting)
    thread.start()
    try:
        for unit in units:
            store.write(unit.key, encode(rows_for(unit)))
            written.append(unit.key)
            assert Store(str(tmp_path)).keys() == set(written)
            assert store.has(written[0])
            frame = read_rows(tmp_path)
            assert set(frame["unit"]) == set(written)
            assert not frame.duplicated(["recipe", "metric", "image"]).any()
            assert status_of(str(tmp_path)).done == len(written)
    finally:
        stop.set()
        thread.join()
    assert not errors


def test_a_pack_file_that_goes_while_the_folder_is_listed_hides_no_other(tmp_path, monkeypatch):
    filled(tmp_path, CHUNKS)
    compact(str(tmp_path))
    gone = tmp_path / "packs" / "a-merged-pack.rows.parquet"
    scan = os.scandir

    class Listing(list):
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    def listing(folder):
        if str(folder).endswith("packs"):
            gone.write_bytes(b"rows")
            entries = Listing(scan(folder))
            gone.unlink()
            return entries
        return scan(folder)

    monkeypatch.setattr("sightline.bench.store.packs.os.scandir", listing)
    assert len(Store(str(tmp_path)).keys()) == UNITS


def test_a_listing_in_the_middle_of_a_merge_is_taken_again(tmp_path, monkeypatch):
    filled(tmp_path, CHUNKS)
    compact(str(tmp_path))
    sizes, calls = PackIndex.sizes, []

    def first_empty(index):
        calls.append(index)
        return {} if len(calls) == 1 else sizes(index)

    monkeypatch.setattr(PackIndex, "sizes", first_empty)
    assert len(Store(str(tmp_path)).keys()) == UNITS


def test_a_status_beside_a_merge_counts_every_unit(tmp_path, monkeypatch):
    filled(tmp_path, CHUNKS)
    with monkeypatch.context() as patch:
        patch.setattr(module, "PER_PACK", 10)
        patch.setattr(module, "_merge", lambda store: None)
        compact(str(tmp_path))
    wanted, entries, merged = means(tmp_path), PackIndex.entries, []

    def merge_first(index, name, columns=None):
        if columns is not None and "mean" in columns and not merged:
            merged.append(compact(str(tmp_path)))  # the pack goes before its moments are read
        return entries(index, name, columns)

    monkeypatch.setattr(PackIndex, "entries", merge_first)
    assert len(Store(str(tmp_path)).packs.refresh().packs) == 3
    assert status_of(str(tmp_path)).done == UNITS
    assert [one.packs for one in merged] == [1]
    for cell, found in means(tmp_path).items():
        assert found == pytest.approx(wanted[cell], rel=1e-12)


LIGHT = """
import sys
from sightline.cli.main import app
app(["bench", "status", sys.argv[1], "--json"], standalone_mode=False)
heavy = ("torch", "pandas", "duckdb", "fsspec", "asyncio", "scipy", "pyarrow.dataset", "sightline.bench.plan")
print([name for name in heavy if name in sys.modules], file=sys.stderr)
"""


def test_a_status_imports_little(tmp_path):
    filled(tmp_path, CHUNKS)
    compact(str(tmp_path))
    told = subprocess.run([sys.executable, "-c", LIGHT, str(tmp_path)], capture_output=True, text=True, check=True)
    assert json.loads(told.stdout)["units"]["done"] == UNITS
    assert told.stderr == "[]\n"
