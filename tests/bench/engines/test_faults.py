"""Faults: whatever goes wrong is told, the rest is done, and a resume gives the table of an undisturbed run."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.bench.test_run import Listening

from sightline.bench import driver as driving
from sightline.bench import run as module
from sightline.bench.engines import queue
from sightline.bench.run import resume, run
from sightline.bench.store.status import status_of
from sightline.bench.store.store import Store, read_rows
from sightline.errors import OutputError

CLI = [sys.executable, "-c", "from sightline.cli.main import main; main()"]


@pytest.fixture
def undisturbed(plan, tmp_path, rows):
    """The rows of a run in which nothing went wrong."""

    def make(**changes):
        run(plan(**changes), str(tmp_path / "undisturbed"), workers=0)
        return rows(tmp_path / "undisturbed")

    return make


def failed(store):
    frame = read_rows(store)
    return {(line.image, line.metric): line.flag for line in frame.itertuples() if line.flag.startswith("failed: ")}


# ---- images, models, methods and metrics -----------------------------------------------------------------------------


def test_a_model_that_returns_nan_on_one_image_fails_that_image_alone(plan, tmp_path, white):
    white(2)
    outcome = run(plan(models=["tests/nan"]), str(tmp_path / "s"), workers=0)
    assert {(one.image, one.reason.split(";")[0]) for one in outcome.failures} == {
        ("photo2", "tests/nan returned NaN or infinite logits")
    }
    rows = read_rows(tmp_path / "s")
    assert rows[rows["image"] != "photo2"]["flag"].isin(["", "no mask"]).all()
    assert rows[rows["image"] == "photo2"]["value"].isna().all()
    assert list(rows[rows["image"] == "photo2"]["label"].unique()) == [2]
    assert not outcome.complete


def test_a_method_that_fails_on_one_image_is_asked_for_each_alone(plan, tmp_path, white):
    white(3)
    run(plan(methods=["picky"], batch=6), str(tmp_path / "s"), workers=0)
    found = failed(tmp_path / "s")
    assert {image for image, _ in found} == {"photo3"}
    assert set(found.values()) == {"failed: picky was shown a white image"}
    assert len(found) == 3


def test_a_metric_that_fails_on_one_image_fails_there_alone(plan, tmp_path, white):
    white(3)
    run(plan(metrics=["squeamish", "deletion(step=128)"], batch=6), str(tmp_path / "s"), workers=0)
    found = failed(tmp_path / "s")
    assert found == {("photo3", "squeamish"): "failed: ZeroDivisionError: a white image has no edges"}


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:60])])
def test_an_image_lost_during_a_run_is_told_and_the_rest_is_done(plan, tmp_path, photos, rows, undisturbed, harm):
    wanted = undisturbed()
    path = photos / "images" / "photo3.png"
    kept = path.read_bytes()
    outcome = run(plan(), str(tmp_path / "s"), workers=0, callback=_once(Listening(), lambda: harm(path), planned=True))
    assert {one.image for one in outcome.failures} == {"photo3"}
    assert outcome.computed == 6
    assert {image for image, _ in failed(tmp_path / "s")} == {"photo3"}
    gone = resume(str(tmp_path / "s"), workers=0)  # still gone: tried again, told again, nothing else is touched
    assert (gone.before, gone.computed, len(gone.failures)) == (4, 2, 2)
    assert status_of(str(tmp_path / "s")).failed == 2
    path.write_bytes(kept)
    healed = resume(str(tmp_path / "s"), workers=0)
    assert (healed.before, healed.computed, healed.complete) == (4, 2, True)
    assert rows(tmp_path / "s") == wanted


def _once(listening, act, *, planned=False):
    """Do something once: when the plan is made, before the first unit."""
    if planned:
        listening.planned = lambda *_: act()
    return listening


def test_a_constant_map_is_flagged_and_scored(plan, tmp_path, white):
    white(0)
    run(plan(methods=["sobel"], limit=1), str(tmp_path / "s"), workers=0)
    assert read_rows(tmp_path / "s")["flag"].str.contains("constant map").all()


# ---- the store -------------------------------------------------------------------------------------------------------


def test_a_damaged_file_is_put_aside_and_made_anew(plan, tmp_path, rows, undisturbed):
    wanted = undisturbed()
    run(plan(), str(tmp_path / "s"), workers=0)
    store = Store(str(tmp_path / "s"))
    keys = sorted(store.keys())
    for key, size in zip(keys[:2], (40, 0), strict=True):
        path = Path(store.unit_path(key))
        path.write_bytes(path.read_bytes()[:size])
    assert len(status_of(str(tmp_path / "s")).damaged) == 2
    listening = Listening()
    outcome = resume(str(tmp_path / "s"), workers=0, callback=listening)
    assert (outcome.before, outcome.computed, len(outcome.damaged)) == (4, 2, 2)
    assert "is damaged; it was put aside as corrupt/" in listening.notes[0]
    assert len(list((tmp_path / "s" / "corrupt").iterdir())) == 2
    assert rows(tmp_path / "s") == wanted


def test_a_file_of_another_unit_is_not_believed(plan, tmp_path, rows, undisturbed):
    wanted = undisturbed()
    run(plan(), str(tmp_path / "s"), workers=0)
    store = Store(str(tmp_path / "s"))
    one, other = sorted(store.keys())[:2]
    Path(store.unit_path(one)).write_bytes(Path(store.unit_path(other)).read_bytes())
    assert resume(str(tmp_path / "s"), workers=0).computed == 1
    assert rows(tmp_path / "s") == wanted


def full_disk(monkeypatch, is_full):
    """Let writing units fail while the disk is full."""
    real = Store._write

    def write(self, name, data):
        if name.startswith("units/") and is_full():
            raise OSError(28, "No space left on device")
        real(self, name, data)

    monkeypatch.setattr(Store, "_write", write)


def test_a_disk_that_is_full_for_a_while_loses_nothing(plan, tmp_path, monkeypatch, rows, undisturbed):
    wanted = undisturbed()
    calls = []
    full_disk(monkeypatch, lambda: calls.append(0) or 2 <= len(calls) <= 5)
    listening = Listening()
    outcome = run(plan(), str(tmp_path / "s"), workers=0, callback=listening)
    assert outcome.complete
    assert "the disk is full; finished units wait in memory" in listening.notes[0]
    assert len(listening.notes) == 1
    assert rows(tmp_path / "s") == wanted


def test_a_disk_that_stays_full_is_told_and_resume_finishes(plan, tmp_path, rows, undisturbed):
    wanted = undisturbed()
    with pytest.MonkeyPatch.context() as patch:
        calls = []
        full_disk(patch, lambda: calls.append(0) or len(calls) > 2)
        outcome = run(plan(), str(tmp_path / "s"), workers=0)
        assert (outcome.computed, len(outcome.unstored), outcome.complete) == (6, 4, False)
        patch.setattr(driving, "MAX_UNSAVED", 0)  # nor is there room in memory
        assert len(resume(str(tmp_path / "s"), workers=0).unstored) == 4
    assert status_of(str(tmp_path / "s")).done == 2
    assert resume(str(tmp_path / "s"), workers=0).complete
    assert rows(tmp_path / "s") == wanted


def test_a_store_that_cannot_be_written_is_told_before_a_model_is_loaded(plan, tmp_path, monkeypatch):
    monkeypatch.setattr(Store, "_write", lambda *_: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
    monkeypatch.setattr(module, "open_engine", lambda *_, **__: pytest.fail("an engine was started"))
    with pytest.raises(OutputError, match="read-only file system; choose another --store"):
        run(plan(), str(tmp_path / "s"), workers=0)


# ---- processes -------------------------------------------------------------------------------------------------------


def test_a_worker_that_dies_is_replaced_and_a_unit_that_kills_is_given_up(plan, tmp_path, rows, monkeypatch):
    """kill -9 inside a unit: once, after which it is done; and every time, after which it is recorded."""
    monkeypatch.setattr(queue, "TRIES", 2)  # one start of a worker less to wait for
    once, always = tmp_path / "once", tmp_path / "always"
    for folder in (once, always):
        folder.mkdir()
    recipes = ["ixg", f"fatal(folder={str(once)!r})", f"fatal(folder={str(always)!r}, times=99)"]
    outcome = run(plan(methods=recipes, limit=2), str(tmp_path / "s"), workers=1)
    assert len(list(once.iterdir())) == 1
    assert len(list(always.iterdir())) == 2
    assert {(one.image, one.recipe) for one in outcome.failures} == {
        (image, f"fatal(folder={str(always)!r}, times=99)") for image in ("photo0", "photo1")
    }
    assert outcome.failures[0].reason.startswith("the worker died three times")
    found = read_rows(tmp_path / "s")
    assert len(found) == 3 * 2 * 3
    run(plan(methods=recipes[:2], limit=2), str(tmp_path / "t"), workers=0)
    assert [line for line in rows(tmp_path / "s") if "times=99" not in line[4]] == rows(tmp_path / "t")


DRIVERS = []  # that a test has started


@pytest.fixture(autouse=True)
def no_driver_is_left():
    """End the drivers that a test which failed left behind."""
    yield
    while DRIVERS:
        driver = DRIVERS.pop()
        if driver.poll() is None:
            driver.kill()
            driver.communicate()


def started(tmp_path, settings, *words):
    """Start ``sightline bench run`` on a plan file, as a user would."""
    file = tmp_path / "plan.toml"
    file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
    command = [*CLI, "bench", "run", str(file), "--store", str(tmp_path / "s"), *words]
    path = os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)])
    driver = subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    DRIVERS.append(driver)
    return driver


def workers_of(store):
    """Return the ids of the worker processes that were told of this test's own folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"sightline.bench.engines.process" in words and str(store).encode() in b"".join(words):
            found.append(int(path.parent.name))
    return found


def until(condition, seconds=240.0):
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return value


LINUX = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")


@LINUX
def test_a_driver_that_is_killed_takes_its_workers_along_and_loses_nothing(
    settings, tmp_path, photos, rows, undisturbed
):
    wanted = undisturbed(controls=True)
    driver = started(tmp_path, settings | {"controls": True}, "--workers", "1")
    until(lambda: list(tmp_path.glob("s/units/*/*.parquet")))
    assert workers_of(photos)
    driver.kill()
    driver.communicate()
    until(lambda: not workers_of(photos), 10)
    before = status_of(str(tmp_path / "s"))
    assert 1 <= before.done <= before.total
    outcome = resume(str(tmp_path / "s"), workers=0)
    assert outcome.computed == before.total - before.done
    assert rows(tmp_path / "s") == wanted
    assert not list((tmp_path / "s").rglob("*.part"))


@LINUX
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(settings, tmp_path, photos):
    driver = started(tmp_path, settings | {"metrics": ["insertion(step=1)"]}, "--workers", "2")
    until(lambda: list(tmp_path.glob("s/units/*/*.parquet")))
    driver.send_signal(signal.SIGINT)
    told = driver.communicate()[1]
    assert driver.returncode == 130
    assert f"go on with `sightline bench resume {tmp_path / 's'}`" in told
    assert "Traceback" not in told
    until(lambda: not workers_of(photos), 10)
    assert resume(str(tmp_path / "s"), workers=0).complete


@LINUX
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_drivers_at_once_give_the_table_of_one_and_do_nothing_twice(settings, tmp_path, rows, undisturbed):
    changes = {"controls": True, "batch": 1, "methods": ["ixg", "gradient", "smooth_grad(samples=2)", "grad_cam"]}
    wanted = undisturbed(**changes)
    drivers = [started(tmp_path, settings | changes, "--workers", "1", "--json") for _ in range(3)]
    told = [driver.communicate() for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0] * 3, told
    units = [json.loads(out)["units"] for out, _ in told]
    assert {one["total"] for one in units} == {48}
    assert 48 <= sum(one["computed"] for one in units) <= 48 * 1.01 + 1, units
    assert rows(tmp_path / "s") == wanted
    assert not list((tmp_path / "s").rglob("*.part"))
    assert not list((tmp_path / "s").rglob("*.claim"))


@LINUX
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_random_kills_of_workers_and_drivers_leave_the_table_as_it_was(settings, tmp_path, photos, rows, undisturbed):
    """Twenty-two times kill -9 of a worker or of the driver at a random moment; then a resume."""
    changes = {"controls": True, "batch": 1, "metrics": ["insertion(step=16)", "average_precision"]}
    wanted = undisturbed(**changes)
    dice = random.Random(5)
    for _ in range(22):
        driver = started(tmp_path, settings | changes, "--workers", "2")
        until(lambda: workers_of(photos))
        time.sleep(dice.uniform(0, 12))
        victims = workers_of(photos) if dice.random() < 0.5 else [driver.pid]
        with suppress(ProcessLookupError, IndexError):  # it may have ended by itself
            os.kill(dice.choice(victims), signal.SIGKILL)
        time.sleep(dice.uniform(0, 2))
        driver.kill()
        driver.communicate()
        until(lambda: not workers_of(photos), 20)
    outcome = resume(str(tmp_path / "s"), workers=0)
    assert outcome.complete
    assert rows(tmp_path / "s") == wanted
    assert not list((tmp_path / "s").rglob("*.part"))


@LINUX
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_memory_of_a_worker_does_not_grow(tmp_path, rows):
    """Twenty chunks of images, one after the other, in one worker."""
    from sightline.bench.images import open_images, split
    from sightline.bench.unit import Manifest, RunConfig
    from sightline.bench.worker import Worker

    def resident():
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    config = RunConfig("shapes(count=80)")
    worker = Worker(config)
    model = worker.describe("bundled/shapes-vit", ["gae", "smooth_grad(samples=4)"], ["insertion(step=256)"])
    chunks = split(open_images(config.dataset), 4, None)
    manifest = Manifest({"name": "memory", "maps": True}, config, "shapes", chunks, (model,))
    seen = []
    for unit in manifest.units():
        worker.compute(unit)
        seen.append(resident())
    early, late = max(seen[8:16]), max(seen[-8:])
    assert late < early + 40, seen
