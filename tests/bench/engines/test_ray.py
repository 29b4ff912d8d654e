"""The Ray engine: the rows of any other, to the last digit, and none lost with a worker, a node or a driver."""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from tests.bench.processes import Process, alive, below, end, everyone, named, until
from tests.bench.test_run import Listening

from sightline.bench import run as module
from sightline.bench.engines import ray as ray_engine
from sightline.bench.engines.engine import TRIES, open_engine
from sightline.bench.engines.queue import Task, TaskQueue
from sightline.bench.plan import make_plan
from sightline.bench.run import resume, run
from sightline.bench.unit import RunConfig
from sightline.errors import InputError, MissingExtra, SightlineError, UnsupportedModel

pytest.importorskip("ray")

LINUX = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")
CLI = [sys.executable, "-c", "from sightline.cli.main import main; main()"]
SMALL = {
    "name": "small",
    "models": ["bundled/shapes-cnn"],
    "methods": ["ixg", "smooth_grad(samples=2)"],
    "metrics": ["insertion(step=256)", "deletion(step=256)"],
    "dataset": "shapes(count=6)",
    "batch": 2,
    "controls": False,
}
LONGER = {**SMALL, "metrics": ["insertion(step=16)"], "dataset": "shapes(count=10)", "batch": 1}


# ---- a cluster of our own, on this machine ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home():
    """A cluster that the engine itself has started; engines after it are guests in it."""
    with ray_engine.RayEngine(RunConfig(SMALL["dataset"]), workers=2) as engine:
        yield engine
    assert not engine.ray.is_initialized()


@pytest.fixture
def opened(monkeypatch):
    """The engines that a run opens."""
    found = []

    def opening(*given, **options):
        found.append(open_engine(*given, **options))
        return found[-1]

    monkeypatch.setattr(module, "open_engine", opening)
    return found


@LINUX
@pytest.mark.timeout(600)
def test_a_worker_that_is_killed_is_replaced_and_nothing_is_lost(home, tmp_path, rows):
    killed = []

    def kill():
        """At the first unit, kill a worker that is at the next, or about to be."""
        if not killed:
            killed.extend(named(below(os.getpid()), "ray::RayWorker")[:1])
            end(killed)

    outcome = run(make_plan(SMALL), str(tmp_path / "s"), engine="ray", workers=2, callback=Listening(kill))
    assert (len(killed), outcome.computed, outcome.complete) == (1, 6, True)
    run(make_plan(SMALL), str(tmp_path / "t"), workers=0)
    assert rows(tmp_path / "s") == rows(tmp_path / "t")
    assert home.ray.is_initialized()  # a guest leaves the house as it is


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_engine_gives_the_same_rows_to_the_last_digit(home, tmp_path, rows, opened):
    plan = make_plan(SMALL)
    run(plan, str(tmp_path / "inline"), workers=0)
    wanted = rows(tmp_path / "inline")
    for workers in (1, 2):
        run(plan, str(tmp_path / f"local{workers}"), workers=workers)
        assert rows(tmp_path / f"local{workers}") == wanted
    outcome = run(plan, str(tmp_path / "ray"), engine="ray", workers=2)
    assert (outcome.computed, outcome.complete) == (6, True)
    assert rows(tmp_path / "ray") == wanted
    assert opened[-1].done.total() == 7  # the model was described, too


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_model_that_cannot_be_loaded_is_told_by_the_worker(home):
    with (
        open_engine("ray", RunConfig("shapes"), workers=1) as engine,
        pytest.raises(UnsupportedModel, match="no model called 'bundled/none'"),
    ):
        engine.describe(["bundled/none"], ["ixg"], ["insertion"])


def test_what_goes_wrong_at_the_start_is_told_in_a_sentence(home):
    with (
        pytest.raises(InputError, match="no node of the Ray cluster has 999 processors"),
        open_engine("ray", RunConfig("shapes", threads=999)),
    ):
        pass
    with pytest.raises(InputError, match="leave --workers 0 to the local engine"):
        open_engine("ray", RunConfig("shapes"), workers=0)


def test_threads_are_set_before_torch_is_loaded(home):
    engine = ray_engine.RayEngine(RunConfig("shapes", threads=2))
    assert engine._variables()["OMP_NUM_THREADS"] == "2"
    assert "PYTHONPATH" not in engine._variables()
    assert str(Path(pytest.__file__).parents[1]) in home._variables()["PYTHONPATH"].split(os.pathsep)


def test_a_missing_ray_is_named_with_its_pip_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=re.escape('ray is not installed; pip install "sightline[ray]"')):
        open_engine("ray", RunConfig("shapes"))


def test_a_task_is_given_up_after_its_third_worker():
    lost = []
    task = Task("m", b"", on_reply=lambda *_: None, on_lost=lambda: lost.append(1))
    queue = TaskQueue([task])
    for death in range(1, TRIES + 1):
        assert queue.next_task("m", Counter()) is task
        queue.worker_died(task)
        assert (len(queue), len(lost)) == ((1, 0) if death < TRIES else (0, 1))


class Stub:
    """As much of Ray as an engine asks of it, where every actor dies before it is ready, and the node lives or not."""

    class exceptions:  # noqa: N801
        class RayError(Exception):
            pass

        class RayTaskError(RayError):
            pass

    def __init__(self, alive):
        self.alive = alive

    def nodes(self):
        return [{"NodeID": "n", "Alive": self.alive, "Resources": {"CPU": 2.0}}]

    def wait(self, asked, **_):
        return asked[:1], asked[1:]

    def get(self, _):
        raise self.exceptions.RayError("the actor died\nand so on for pages")

    def kill(self, _):
        raise self.exceptions.RayError("it is gone")


@pytest.mark.parametrize(
    ("alive", "sentence", "started_actors"),
    [(True, "the workers end as soon as they start: the actor died$", 6), (False, "the Ray node .* is gone", 2)],
)
def test_a_cluster_where_nothing_lives_is_told_and_not_asked_for_ever(monkeypatch, alive, sentence, started_actors):
    engine = ray_engine.RayEngine(RunConfig("shapes"), workers=2)
    engine.ray, engine._node = Stub(alive), "n"
    asked = []
    monkeypatch.setattr(engine, "_start_worker", lambda: asked.append(object()) or (None, asked[-1]))
    with pytest.raises(SightlineError, match=sentence):
        engine.run_tasks(TaskQueue([Task("m", b"", on_reply=None, on_lost=None) for _ in range(5)]))
    assert len(asked) == started_actors


@pytest.mark.parametrize(
    ("device", "resources", "room"),
    [
        ("cpu", [{"CPU": 5.0}, {"CPU": 2.0, "GPU": 1.0}, {}], 3),
        ("cuda", [{"CPU": 8.0, "GPU": 3.0}, {"CPU": 2.0, "GPU": 4.0}, {"CPU": 8.0}], 4),
        ("cpu", [{"GPU": 8.0}, {"CPU": 1.0}], "has 2 processors"),
        ("cuda", [{"CPU": 8.0}], "has a GPU, which the plan's device needs"),
    ],
)
def test_there_is_a_worker_for_every_processor_or_gpu_of_the_cluster(monkeypatch, device, resources, room):
    engine = ray_engine.RayEngine(RunConfig("shapes", threads=2, device=device))
    monkeypatch.setattr(engine, "_nodes", lambda: [{"Resources": own} for own in resources])
    if isinstance(room, int):
        assert engine._room() == room
        return
    with pytest.raises(InputError, match=f"{room}.*give --workers where the cluster starts nodes by itself"):
        engine._room()


# ---- clusters that `ray start` has started ---------------------------------------------------------------------------


# Nodes in tests are missed within seconds, not half a minute.
EAGER = {
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "4",
}


class Cluster:
    """Nodes on this machine, each started as an administrator would."""

    def __init__(self, folder):
        self.folder, self.address, self.processes, self.raylets = folder, "", [], []
        own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
        self.environment = os.environ | own | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def start(self, *, processors):
        """Start a node; the first is the head."""
        first = ["--head", "--port", "0", "--include-dashboard", "false"]
        place = ["--address", self.address] if self.address else first
        fixed = ["--num-cpus", str(processors), "--object-store-memory", "100000000", "--disable-usage-stats"]
        # On a busy machine Ray loses patience with itself.
        for _ in range(TRIES):
            before = self._of_ours()
            command = [sys.executable, "-m", "ray.scripts.scripts", "start", *place, *fixed, "--temp-dir", self.folder]
            try:
                told = subprocess.run(
                    command, env=self.environment | EAGER, capture_output=True, text=True, timeout=180
                )
                said = told.stdout + told.stderr
            except subprocess.TimeoutExpired as late:
                told, said = None, str(late)
            started = [process for process in self._of_ours() if process not in before]
            self.processes += started
            if told and not told.returncode and (raylets := named(started, "/raylet/raylet")):
                break
            end(started)
        else:
            pytest.fail(said)
        if not self.address:
            self.address = re.search(r"--address='([^']+)'", told.stdout)[1]
        self.raylets += raylets

    def _of_ours(self):
        """Return every process that was told of our folder."""
        return named(everyone(), self.folder)

    def workers(self):
        """Return the workers that live on any of the nodes."""
        return [one for raylet in alive(self.raylets) for one in named(below(raylet.id), "ray::RayWorker")]

    def stop(self):
        """End what was started here, and nothing else."""
        end([one for raylet in alive(self.raylets) for one in below(raylet.id)])
        end([*self.processes, *self._of_ours()])


@pytest.fixture
def cluster():
    with tempfile.TemporaryDirectory(prefix="sl", dir="/tmp", ignore_cleanup_errors=True) as folder:
        nodes = Cluster(folder)
        try:
            yield nodes
        finally:
            nodes.stop()


def drive(address, store, settings, victim, born):
    """Run a plan on a cluster of two nodes; when both have done a unit, kill one. Runs in a process of its own."""
    engines, killed = [], []
    module.open_engine = lambda *given, **options: engines.append(open_engine(*given, **options)) or engines[-1]

    def kill():
        if killed:
            return
        if len(engines[0].done) == 2:
            killed.append(engines[0].done.total())
            end([Process(victim, born)])
        else:  # one node may have done everything before a worker has started on the other: wait for both
            pending = [worker.pending for worker in engines[0].workers if worker.pending is not None]
            engines[0].ray.wait(pending, num_returns=len(pending), timeout=120)

    outcome = run(make_plan(settings), store, engine="ray", address=address, callback=Listening(kill))
    told = {"done": engines[0].done, "killed": killed, "total": outcome.total, "complete": outcome.complete}
    sys.stdout.write(json.dumps(told))


@LINUX
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("address", ["told", "auto"])
def test_a_run_spans_two_nodes_and_survives_the_death_of_one(cluster, tmp_path, rows, address):
    for _ in range(2):
        cluster.start(processors=1)
    given = ["auto" if address == "auto" else cluster.address, str(tmp_path / "s"), LONGER, *cluster.raylets[1]]
    told = subprocess.run(
        [sys.executable, "-c", f"from tests.bench.engines.test_ray import drive; drive(*{given!r})"],
        env=cluster.environment | {"RAY_TMPDIR": cluster.folder},  # where Ray looks for the cluster of this machine
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout.splitlines()[-1])
    assert found["complete"]
    assert len(found["done"]) == 2  # both nodes took part
    assert found["killed"][0] < found["total"]  # and one was killed on the way
    assert not alive(cluster.raylets[1:])
    run(make_plan(LONGER), str(tmp_path / "t"), workers=0)
    assert rows(tmp_path / "s") == rows(tmp_path / "t")


@LINUX
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGINT])
def test_no_worker_outlives_its_driver_on_a_cluster(cluster, tmp_path, rows, way):
    cluster.start(processors=2)
    file = tmp_path / "plan.toml"
    file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in LONGER.items()))
    options = ["--store", str(tmp_path / "s"), "--engine", "ray", "--address", cluster.address]
    driver = subprocess.Popen(
        [*CLI, "bench", "run", str(file), *options],
        env=cluster.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: driver.poll() is not None or list(tmp_path.glob("s/units/*/*.parquet")), 300)
        assert cluster.workers()
        driver.send_signal(way)
        told = driver.communicate()[1]
    finally:
        with suppress(ProcessLookupError):
            driver.kill()
    if way == signal.SIGINT:
        assert driver.returncode == 130
        assert "go on with `sightline bench resume" in told
        assert "Traceback" not in told
    until(lambda: not cluster.workers(), 60)
    assert alive(cluster.raylets)
    assert resume(str(tmp_path / "s"), workers=0).complete
    run(make_plan(LONGER), str(tmp_path / "t"), workers=0)
    assert rows(tmp_path / "s") == rows(tmp_path / "t")
