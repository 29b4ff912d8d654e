"""The README claims only what its own commands show."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
sys.path.insert(0, str(ROOT / "scripts"))


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def shell_lines() -> list[str]:
    return [
        line.split("  #")[0].split("#")[0].strip()
        for block in blocks("sh")
        for line in block.splitlines()
        if line.strip()
    ]


def test_the_table_is_what_the_registries_hold() -> None:
    import readme_table

    assert readme_table.with_table(README) == README, "run python scripts/readme_table.py"


@pytest.mark.parametrize("line", [line for line in shell_lines() if line.startswith("make ")])
def test_every_make_command_is_a_target(line: str) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert line.split()[1] in targets


@pytest.mark.parametrize("line", [line for line in shell_lines() if line.startswith("sightline ")])
def test_every_sightline_command_exists_with_its_options(line: str) -> None:
    words = shlex.split(line)
    named = words[1:3] if words[1] == "bench" else words[1:2]
    command = [sys.executable, "-c", "from sightline.cli.main import main; main()", *named, "--help"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "200"})
    assert run.returncode == 0, run.stderr
    for option in (word for word in words if word.startswith("--")):
        assert option in run.stdout, f"{option} is not an option of sightline {' '.join(named)}"


def test_the_python_example_runs_and_prints_what_it_says() -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(blocks("python")[0], "README.md", "exec"), {})
    assert "4 forward, 4 backward" in printed.getvalue()


def test_pictures_and_links_are_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target


def test_the_example_is_short() -> None:
    assert len([line for line in blocks("python")[0].splitlines() if line.strip()]) <= 10
