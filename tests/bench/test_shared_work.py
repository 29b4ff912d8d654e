"""A run in simulated time: the real driver, queue, claims and leases; workers die, and a driver is killed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "shared_work.py"


@pytest.fixture(scope="module")
def simulation() -> Any:
    spec = importlib.util.spec_from_file_location("shared_work", SCRIPT)
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
