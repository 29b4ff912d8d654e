"""A machine that runs out of things: disk, permission to write, file descriptors. Nothing is lost, and it is told."""

import ctypes
import json
import os
import resource
import subprocess
import sys

import pytest
from tests.bench.engines.test_faults import CLI
from tests.bench.test_driver import CHUNKS, FakeEngine, drive, opened
from tests.bench.test_unit import manifest

from sightline import files
from sightline.bench import driver as module
from sightline.bench.run import resume
from sightline.bench.store.status import status_of
from sightline.bench.store.store import read_rows
from sightline.errors import OutputError

LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {0}));"


def command(tmp_path, settings, *words, before=""):
    """Type a command in a process of its own, after some Python."""
    file = tmp_path / "plan.toml"
    file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
    path = os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)])
    code = before + CLI[2]
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def wanted(plan, tmp_path, rows):
    from sightline.bench.run import run

    run(plan(), str(tmp_path / "undisturbed"), workers=0)
    return rows(tmp_path / "undisturbed")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("many", [False, True])
def test_a_disk_that_is_full_at_any_one_write_loses_nothing(tmp_path, monkeypatch, many):
    """Every write in turn finds the disk full, alone or with all that follow; then there is room again."""
    monkeypatch.setattr(module, "FOLD_AT", 6)
    chunks, real = CHUNKS[:4], os.fsync
    monkeypatch.setattr("tests.bench.test_driver.CHUNKS", chunks)
    number, writes = 0, 1
    while number < writes:
        number, writes = number + 1, 0
        folder = tmp_path / f"{number}"
        opened(folder)

        def sync(descriptor, number=number):
            nonlocal writes
            writes += 1
            if writes == number or (many and writes > number):
                raise OSError(28, "No space left on device")
            real(descriptor)

        with monkeypatch.context() as patch:
            patch.setattr(files.os, "fsync", sync)
            outcome = drive(folder, FakeEngine(dict.fromkeys((u.key for u in manifest(chunks).units()), 0), 0.0))
        assert outcome.computed == 8
        stored = status_of(str(folder))
        assert stored.done + len(set(outcome.unstored)) >= 8
        again = drive(folder, FakeEngine(dict.fromkeys((u.key for u in manifest(chunks).units()), 0), 0.0))
        assert again.complete
        assert status_of(str(folder)).complete
        assert len(read_rows(folder)) == 16
        assert not list(folder.rglob("*.part"))
    assert number > 10


@pytest.fixture
def disk(tmp_path):
    """Mount a small file system; skip where that is not allowed."""
    libc, place = ctypes.CDLL(None, use_errno=True), tmp_path / "disk"
    place.mkdir()

    def mount(flags, options):
        if libc.mount(b"tmpfs", str(place).encode(), b"tmpfs", flags, options) != 0:
            pytest.skip("mounting is not allowed here")
        return place

    yield mount
    libc.umount2(str(place).encode(), 2)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_on_a_full_disk_says_so_and_resume_finishes_it(settings, tmp_path, disk, wanted, rows):
    place = disk(0, b"size=1m")
    store = place / "s"
    assert command(tmp_path, settings | {"limit": 2}, "bench", "run", tmp_path / "plan.toml", "--store", store,
                   "--workers", 0).returncode == 0  # fmt: skip
    (place / "ballast").write_bytes(b"x" * 4096 * (os.statvfs(place).f_bavail - 6))
    told = command(tmp_path, settings, "bench", "run", tmp_path / "plan.toml", "--store", store, "--workers", 1)
    assert told.returncode == 1
    assert "the disk is full" in told.stderr
    assert "Traceback" not in told.stderr
    (place / "ballast").unlink()
    told = command(tmp_path, settings, "bench", "run", tmp_path / "plan.toml", "--store", store, "--workers", 0)
    assert told.returncode == 0, told.stderr
    assert rows(store) == wanted


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_read_only_store_is_read_and_refused(settings, tmp_path, disk, wanted, rows):
    place = disk(0, b"size=4m")
    store = place / "s"
    words = ("bench", "run", tmp_path / "plan.toml", "--store", store, "--workers", 0)
    assert command(tmp_path, settings, *words).returncode == 0
    disk(1 | 32, b"")
    assert rows(store) == wanted
    for words in (("resume", store, "--workers", 0), ("compact", store)):
        told = command(tmp_path, settings, "bench", *words)
        assert told.returncode == 1
        assert "read-only file system" in told.stderr.lower()
        assert "Traceback" not in told.stderr
    assert command(tmp_path, settings, "bench", "status", store).returncode == 0
    with pytest.raises(OutputError, match="read-only"):
        resume(str(store), workers=0)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [24, 40, 64])
def test_few_file_descriptors_lose_nothing(settings, tmp_path, wanted, rows, count):
    """The run ends well, or says in a sentence what it lacks; with enough of them it is finished."""
    words = ("bench", "run", tmp_path / "plan.toml", "--store", tmp_path / "s", "--workers")
    told = command(tmp_path, settings, *words, 2, before=LIMITED.format(count))
    assert told.returncode in (0, 1), told.stderr
    assert (told.returncode == 0) or told.stderr.strip()
    if (tmp_path / "s" / "plan.json").exists():
        assert not status_of(str(tmp_path / "s")).damaged
    told = command(tmp_path, settings, *words, 0)
    assert told.returncode == 0, told.stderr
    assert rows(tmp_path / "s") == wanted
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > count
