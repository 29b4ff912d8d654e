"""Drivers on one store: in simulated time, where workers die and a driver is killed, and as processes on real files."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from sightline.bench.store.store import read_rows

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def simulation() -> Any:
    return load("shared_work")


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look their types up
    spec.loader.exec_module(module)
    return module


def test_one_driver_keeps_its_workers_busy_and_fills_the_table(simulation):
    found = simulation.World(1200, 1, 4, failures=0.02).run()
    assert (found["complete"], found["stored"], found["executed"]) == (1, 1200, 1200)
    assert found["workers_killed"] > 0
    assert found["utilisation"] > 0.9


def test_units_that_kill_three_workers_are_done_when_the_run_is_resumed(simulation):
    found = simulation.World(240, 1, 4, failures=0.5).run()
    assert found["complete"] == 1
    assert found["resumed"] > 0


def test_three_drivers_finish_what_a_fourth_that_was_killed_had_claimed(simulation):
    world = simulation.World(600, 4, 2, failures=0.01)
    found = world.run()
    assert (found["complete"], found["stored"]) == (1, 600)
    assert len(world.outcomes) == 3  # the fourth has none
    assert found["executed"] <= 600 * 1.01


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_of_a_hundred_units_processes_on_one_store_do_at_most_one_twice(tmp_path):
    script = load("shared_store")
    script.make_store(str(tmp_path), 600)
    found = script.measure(str(tmp_path), drivers=3, seconds=0.01)
    assert (found["complete"], found["units"]) == (1, 600)
    assert found["fewest_of_a_driver"] > 0
    assert found["share_done_twice"] <= 0.01
    assert len(read_rows(tmp_path)) == 2 * 600
