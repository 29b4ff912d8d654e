"""The tracer of the walk from a command to its page."""

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "trace_walk.py"
LONGEST = 60  # files; a walk that grows past this has to be looked at


def test_the_walk_of_explain_goes_from_the_command_to_the_page_and_does_not_grow():
    run = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True)
    *files, last = run.stderr.strip().splitlines()
    count, steps = map(int, re.fullmatch(r"(\d+) files, (\d+) steps between files", last).groups())
    entered = [name for name in files if name.endswith(".py")]
    assert entered[0] == "cli/main.py"
    assert {"audit/explained_image.py", "methods/gradient/gradient.py", "report/page.py"} <= set(entered)
    assert len(entered) == count <= LONGEST
    assert steps > count
