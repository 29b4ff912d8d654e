"""The tracer of the walk from a command to its page."""

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "trace_walk.py"
FILES = 30  # a walk that grows past one of these has to be looked at
STEPS = 78
SWITCHES = 100


def test_the_walk_of_explain_goes_from_the_command_to_the_page_and_does_not_grow():
    run = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True)
    *files, last = run.stderr.strip().splitlines()
    counted = re.fullmatch(r"(\d+) files, (\d+) steps between files, (\d+) switches of file", last)
    count, steps, switches = map(int, counted.groups())
    entered = [name for name in files if name.endswith(".py")]
    assert entered[0] == "cli/main.py"
    assert {"audit/panel.py", "methods/gradient/gradient.py", "report/page.py"} <= set(entered)
    assert len(entered) == count <= FILES
    assert count < steps <= STEPS
    assert steps < switches <= SWITCHES
