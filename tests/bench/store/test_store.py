"""The store: whole files or none, on any file system, and nothing damaged is believed."""

import ctypes
import io
import json
import math
import os
import subprocess
import threading
import time
import uuid
import warnings
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.bench.test_unit import CHUNKS, UNIT, manifest

from sightline import files
from sightline.bench.store.rows import COLUMNS, decode, encode, failed_rows, make_row
from sightline.bench.store.store import Store, read_maps, read_parts, read_rows
from sightline.errors import InputError, OutputError, SightlineWarning


def rows_for(unit, value=0.5):
    return [
        make_row(unit, unit.key, metric, image, "{}", value=value, label=3, target=None, curve=[1.0, 0.5])
        for image in unit.images
        for metric in unit.metrics
    ]


def filled(url, chunks=CHUNKS):
    """A store with every unit of a small manifest."""
    store, plan = Store(str(url)), manifest(chunks)
    store.prepare()
    store.write_manifest(plan)
    for place, unit in enumerate(plan.units()):
        store.write(unit.key, encode(rows_for(unit, value=float(place))))
    return store, list(plan.units())


@pytest.fixture(params=["folder", "file", "memory"])
def url(request, tmp_path):
    return {
        "folder": str(tmp_path / "store"),
        "file": f"file://{tmp_path}/store",
        "memory": f"memory://{uuid.uuid4().hex}",
    }[request.param]


def test_what_is_written_is_there_and_read_back(url):
    store, units = filled(url)
    assert store.keys() == {unit.key for unit in units}
    assert store.has(units[0].key)
    assert not store.has("0" * 32)
    assert store.manifest() == manifest(CHUNKS)
    assert decode(store.files.cat_file(store.unit_path(units[1].key))).equals(store.read(units[1].key))
    frame = read_rows(url)
    assert len(frame) == 2 * 5
    assert frame["value"].sum() == sum(place * len(unit.images) for place, unit in enumerate(units))


def test_the_layout_is_the_documented_one(tmp_path):
    store, units = filled(tmp_path)
    store.write(units[0].key, encode(rows_for(units[0])), maps=b"maps")
    there = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    units = [f"units/{unit.key[:2]}/{unit.key}.parquet" for unit in units]
    assert there == sorted(["plan.json", f"maps/{units[0].split('/')[2].removesuffix('.parquet')}.safetensors", *units])
    assert json.loads((tmp_path / "plan.json").read_text())["name"] == "look"


def test_rows_have_the_columns_of_the_contract_in_order(url):
    filled(url)
    frame = read_rows(url)
    assert list(frame.columns) == list(COLUMNS)
    kinds = {name: str(kind) for name, kind in frame.dtypes.items()}
    assert {kinds[name] for name in ("label", "target", "seed")} == {"Int64"}
    assert {kinds[name] for name in ("value", "forward", "backward", "metric_forward", "seconds")} == {"float64"}
    assert list(frame["curve"][0]) == [1.0, 0.5]
    assert frame["target"].isna().all()
    order = frame[["model", "recipe", "metric", "image"]]
    assert order.equals(order.sort_values(list(order), ignore_index=True))


def test_folder_and_bucket_give_the_same_frame(tmp_path):
    bucket = f"memory://{uuid.uuid4().hex}"
    filled(tmp_path)
    filled(bucket)
    pd.testing.assert_frame_equal(read_rows(tmp_path), read_rows(bucket))


def test_only_the_units_of_the_present_plan_are_read(url):
    store, units = filled(url)
    stray = replace(UNIT, run="earlier")
    store.write(stray.key, encode(rows_for(stray)))
    assert set(read_rows(url)["run"]) == {"look"}
    assert set(read_rows(url, run="earlier")["run"]) == {"earlier"}
    assert len(read_rows(url, run="look")) == len(read_rows(url))
    store.files.rm_file(store.unit_path(units[0].key))
    assert len(read_rows(url)) == 8


def test_a_place_that_is_no_store_is_told(tmp_path):
    with pytest.raises(InputError, match=r"is no store: it has no plan.json"):
        read_rows(tmp_path)
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(InputError, match=r"the plan.json of .* cannot be read"):
        Store(str(tmp_path)).manifest()
    with pytest.raises(InputError, match="cannot be opened"):
        Store("nosuch://bucket").files  # noqa: B018
    for name in ("n" * 300, "\0"):  # no name of a folder
        with pytest.raises(InputError, match="cannot be a store"):
            Store(str(tmp_path / name)).manifest()
        with pytest.raises(InputError, match="cannot be a store"):
            read_rows(tmp_path / name)


def cut(data):
    return data[: len(data) // 2]


def flipped(data):
    """Change one value: the file still is sound Parquet."""
    rows = pq.read_table(io.BytesIO(data))
    place = rows.column_names.index("value")
    buffer = io.BytesIO()
    pq.write_table(rows.set_column(place, "value", pa.array([9.0] * len(rows))), buffer)
    return buffer.getvalue()


def nothing(data):
    return b""


def noise(data):
    return b"PAR1" * 40


@pytest.mark.parametrize("damage", [cut, flipped, nothing, noise])
def test_a_damaged_file_is_named_and_left_out(url, damage):
    store, units = filled(url)
    path = store.unit_path(units[2].key)
    store.files.pipe_file(path, damage(store.files.cat_file(path)))
    assert store.read(units[2].key) is None
    if damage is not flipped:  # DuckDB reads a folder at once and looks at no digest; a run does
        with pytest.warns(SightlineWarning, match=f"left out .*{units[2].key}.*damaged"):
            assert len(read_rows(url)) == 8
    name = store.quarantine(units[2].key)
    assert name.startswith("corrupt/")
    assert store.files.exists(store.path(name))
    assert not store.has(units[2].key)
    assert len(read_rows(url)) == 8


def test_any_changed_byte_is_noticed_or_harmless():
    data = encode(rows_for(UNIT))
    wanted = decode(data)
    for place in range(0, len(data), 61):
        changed = data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]
        try:
            found = decode(changed)
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError):
            continue
        assert found.equals(wanted)


def test_failed_images_have_a_row_for_every_metric():
    lines = failed_rows(UNIT, {"b": "gone"}, labels={"b": 4})
    assert [(line["image"], line["metric"], line["flag"]) for line in lines] == [
        ("b", "insertion", "failed: gone"), ("b", "deletion", "failed: gone"),
    ]  # fmt: skip
    assert all(math.isnan(line["value"]) and line["label"] == 4 for line in lines)


def test_a_half_written_file_is_never_seen(tmp_path):
    store, units = filled(tmp_path)
    small, large = encode(rows_for(units[0])), encode(rows_for(units[0]) * 400)
    stop = threading.Event()

    def write():
        while not stop.is_set():
            store.write(units[0].key, small)
            store.write(units[0].key, large)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(40):
            assert store.read(units[0].key) is not None
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert not list(tmp_path.rglob("*.part"))


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    store, units = filled(tmp_path)
    before = sorted(tmp_path.rglob("*"))

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OutputError, match="the disk is full"):
        store.write("f" * 32, encode(rows_for(units[0])))
    assert sorted(tmp_path.rglob("*")) in (before, sorted([*before, tmp_path / "units" / "ff"]))


def test_files_of_dead_writers_are_swept_and_of_living_ones_not(tmp_path):
    store, _ = filled(tmp_path)
    dead = subprocess.Popen(["true"])
    dead.wait()
    folder = tmp_path / "units" / "aa"
    folder.mkdir(exist_ok=True)
    host = files.host_name()
    temporaries = {
        name: folder / f".x.parquet.{name}.part"
        for name in (f"{host}.{dead.pid}.1", f"{host}.{os.getpid()}.1", "elsewhere.1.1", "elsewhere.2.1")
    }
    for path in temporaries.values():
        path.write_bytes(b"half")
    long_ago = time.time() - 2 * files.STALE
    os.utime(temporaries["elsewhere.2.1"], (long_ago, long_ago))
    store.prepare()
    assert sorted(path for path in temporaries.values() if path.exists()) == sorted(
        [temporaries[f"{host}.{os.getpid()}.1"], temporaries["elsewhere.1.1"]]
    )
    assert len(read_rows(tmp_path)) == 10


def test_maps_come_back_by_image(tmp_path):
    import numpy as np
    from safetensors.numpy import save

    store, units = filled(tmp_path)
    store.write(units[0].key, encode(rows_for(units[0])), save({"a/b": np.ones((2, 3), dtype=np.float16)}))
    assert read_maps(tmp_path, units[0].key)["a/b"].shape == (2, 3)
    assert read_maps(tmp_path, units[1].key) == {}


# ---- real disks ----------------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path):
    """Mount a small file system; skip where that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    place = tmp_path / "disk"
    place.mkdir()

    def mount(flags, options):
        if libc.mount(b"tmpfs", str(place).encode(), b"tmpfs", flags, options) != 0:
            pytest.skip("mounting is not allowed here")
        return place

    yield mount
    libc.umount2(str(place).encode(), 2)


READ_ONLY, AGAIN = 1, 32


def test_a_full_disk_is_told_and_the_store_stays_readable(disk):
    place = disk(0, b"size=128k")
    store, units = filled(place)
    (place / "ballast").write_bytes(b"x" * 4096 * ((os.statvfs(place).f_bavail) - 1))
    with pytest.raises(OutputError, match="the disk is full"):
        store.write("e" * 32, encode(rows_for(units[0]) * 400))
    assert not list(place.rglob("*.part"))
    assert len(read_rows(place)) == 10
    (place / "ballast").unlink()
    store.write("e" * 32, encode(rows_for(units[0]) * 400))


def test_a_read_only_store_is_told_before_any_work_and_can_be_read(disk):
    place = disk(0, b"size=1m")
    filled(place)
    disk(READ_ONLY | AGAIN, b"")
    with pytest.raises(OutputError, match=r"cannot write into the store .*: read-only file system; choose another"):
        Store(str(place)).prepare()
    assert len(read_rows(place)) == 10


def test_a_store_below_a_file_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="it is a file, or lies in one"):
        Store(str(tmp_path / "file" / "store")).prepare()


@pytest.mark.parametrize("layout", ["loose", "packed", "mixed", "many", "damaged", "no plan"])
def test_parts_are_the_rows_by_model_and_metric(tmp_path, monkeypatch, layout):
    from sightline.bench.store import store as module
    from sightline.bench.store.compact import compact

    store, plan = Store(str(tmp_path)), manifest(CHUNKS, models=2)
    store.prepare()
    store.write_manifest(plan)
    units = list(plan.units())
    for place, unit in enumerate(units):
        store.write(unit.key, encode(rows_for(unit, value=float(place))))
        if layout in ("packed", "mixed") and place == (len(units) - 1 if layout == "packed" else 3):
            compact(str(tmp_path))
    if layout == "many":
        monkeypatch.setattr(module, "FEW", 3)
    if layout == "damaged":
        Path(store.unit_path(units[1].key)).write_bytes(b"PAR1" * 30)
    if layout == "no plan":
        (tmp_path / "plan.json").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SightlineWarning)
        parts, wanted = list(read_parts(tmp_path)), read_rows(tmp_path)
    assert [(part["model"].iloc[0], part["metric"].iloc[0]) for part in parts] == [
        ("m0", "insertion"), ("m1", "insertion"),
    ]  # fmt: skip
    order = ["model", "recipe", "metric", "image"]
    pd.testing.assert_frame_equal(pd.concat(parts).sort_values(order, ignore_index=True), wanted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SightlineWarning)
        compact_parts = list(read_parts(tmp_path, compact=True))
    same = pd.concat(compact_parts).sort_values(order, ignore_index=True)
    pd.testing.assert_frame_equal(same.astype(wanted.dtypes.to_dict()).assign(curve=wanted["curve"]), wanted)
