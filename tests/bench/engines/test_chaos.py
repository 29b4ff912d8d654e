"""Chaos: kill -9 of a worker, the driver, the Ray node, at random moments; a resume gives the undisturbed table."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.bench.processes import alive, below, end, named, until
from typer.testing import CliRunner

from sightline.bench.plan import make_plan
from sightline.bench.run import run
from sightline.bench.store.store import read_rows
from sightline.cli.main import app

pytestmark = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")

CLI = [sys.executable, "-c", "from sightline.cli.main import main; main()"]
PLAN = {
    "name": "chaos",
    "models": ["bundled/shapes-cnn"],
    "methods": ["ixg", "smooth_grad(samples=2)", "sobel"],
    "metrics": ["insertion(step=128)", "average_precision"],
    "dataset": "shapes(count=8)",
    "batch": 2,
    "controls": False,
}
UNITS = 12
VICTIMS = {"worker": ("sightline.bench.engines.process", "ray::RayWorker"), "node": ("/raylet/raylet",)}
AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")  # Ray's own; they wait for their dead node for a minute or two
ENGINES = {"local": ("worker", "driver"), "ray": ("worker", "driver", "node")}
EVERY = [(engine, victim) for engine, victims in ENGINES.items() for victim in victims]


@pytest.fixture
def wanted(tmp_path, rows):
    """The rows of a run in which nothing went wrong."""
    run(make_plan(PLAN), str(tmp_path / "undisturbed"), workers=0)
    return rows(tmp_path / "undisturbed")


class Round:
    """One run that is disturbed, and one resume after it."""

    def __init__(self, folder, engine, victim, dice):
        self.folder, self.engine, self.victim, self.dice = folder, engine, victim, dice
        self.store = folder / "s"
        self.seen = []  # every process that the driver was seen to have started

    def stored(self):
        return len(list(self.store.glob("units/*/*.parquet")))

    def disturb(self):
        """Start a run, and kill after a random number of units, or on the way there."""
        file = self.folder / "plan.toml"
        file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in PLAN.items()))
        words = ["bench", "run", str(file), "--store", str(self.store), "--engine", self.engine, "--workers", "2"]
        path = os.pathsep.join(filter(None, sys.path))
        self.driver = subprocess.Popen(
            [*CLI, *words, "--json"],
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        units = self.dice.randrange(UNITS)
        until(lambda: self.driver.poll() is not None or (self.stored() >= units and self.victims()), 300)
        time.sleep(self.dice.uniform(0, 0.3))
        self.seen = below(self.driver.pid) if self.driver.poll() is None else []
        victims = self.victims()
        self.at = self.stored()
        if victims:  # the driver may have been done before
            end([self.dice.choice(victims)])
        if self.victim == "driver":
            self.driver.wait()

    def victims(self):
        if self.driver.poll() is not None:
            return []
        if self.victim == "driver":
            return [one for one in below(os.getpid()) if one.id == self.driver.pid]
        return named(below(self.driver.pid), *VICTIMS[self.victim])

    def look(self):
        """See what became of the driver, and that nothing is left behind."""
        told = self.driver.communicate(timeout=300)
        if self.victim == "worker":  # the driver went on by itself
            assert self.driver.returncode == 0, told[1]
            assert json.loads(told[0])["complete"]
            assert self.stored() == UNITS
        elif self.victim == "node" and self.driver.returncode:  # it may have been done before
            assert self.driver.returncode > 0, told[1]
            assert "Traceback" not in told[1], told[1]
        until(lambda: not self.left(), 60, told=lambda: [(one, one.line) for one in self.left()])

    def left(self):
        """Return what still runs of all that the driver had started."""
        running = alive(self.seen)
        return [one for one in running if one not in named(running, *AGENTS)]

    def resume(self):
        """Go on with the run as a user would."""
        if not (self.store / "plan.json").exists():  # it died before it had written down what to do
            assert not self.stored()
            run(make_plan(PLAN), str(self.store), workers=0)
            return
        told = CliRunner().invoke(app, ["bench", "resume", str(self.store), "--workers", "0", "--json"])
        assert told.exit_code == 0, told.output
        found = json.loads(told.stdout)
        assert found["complete"]
        assert (found["units"]["total"], found["damaged"]) == (UNITS, [])
        assert found["units"]["before"] + found["units"]["computed"] == UNITS

    def clean_up(self):
        if self.driver.poll() is None:  # its number is its own until it has been waited for
            self.seen += below(self.driver.pid)
            self.driver.kill()
            self.driver.communicate()
        end(self.seen)


def check(folder, engine, victim, dice, wanted, rows):
    """Disturb a run, resume it, and compare."""
    folder.mkdir()
    one = Round(folder, engine, victim, dice)
    try:
        one.disturb()
        one.look()
        one.resume()
    finally:
        one.clean_up()
    assert rows(one.store) == wanted
    found = read_rows(one.store)
    assert not found.duplicated(["model", "recipe", "metric", "image"]).any()
    assert one.stored() == UNITS
    assert not list(one.store.rglob("*.part"))
    return one.at


@pytest.mark.slow  # test_faults.py kills a worker and a driver in every run
@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", ENGINES["local"])
def test_a_run_that_is_disturbed_once_gives_the_same_table(tmp_path, wanted, rows, victim):
    check(tmp_path / victim, "local", victim, random.Random(7), wanted, rows)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_kills_at_random_moments_lose_nothing(tmp_path, wanted, rows):
    """Every engine and every victim, four times each; ``pytest -s`` tells of each round."""
    pytest.importorskip("ray")
    dice = random.Random(20)
    for index in range(20):
        engine, victim = EVERY[index % len(EVERY)]
        begun = time.monotonic()
        at = check(tmp_path / f"r{index}", engine, victim, dice, wanted, rows)
        took = time.monotonic() - begun
        sys.stdout.write(f"round {index + 1}, {engine} {victim}: killed after {at} of {UNITS} units; {took:.0f} s\n")
        sys.stdout.flush()
