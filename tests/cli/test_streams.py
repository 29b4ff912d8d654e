"""A closed stdout, a reader that has gone and a full disk: an exit code, a sentence at most, never a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = ("list methods", "list metrics --json", "cite ig", "--help", "bench --help", "--version")  # none loads torch


def run(command: str, ending: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Type a command in a shell, which answers with the exit code of the command itself."""
    typed = f'"{sys.executable}" -m sightline {command} {ending}'
    shell = ["bash", "-c", f"{typed}; exit ${{PIPESTATUS[0]}}"]
    return subprocess.run(shell, capture_output=True, text=True, cwd=folder, check=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_closed_stdout_is_nowhere(command: str, tmp_path: Path) -> None:
    done = run(command, ">&-", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_has_gone_ends_the_command_without_a_word(command: str, tmp_path: Path) -> None:
    done = run(command, "| true", tmp_path)
    assert done.returncode in (0, 1)  # 0 where everything was written before the reader went
    assert done.stderr == ""


def test_the_first_line_can_be_had(tmp_path: Path) -> None:
    done = run("list methods", "| head -1", tmp_path)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_told_in_a_sentence(tmp_path: Path) -> None:
    done = run("list methods", ">/dev/full", tmp_path)
    assert done.returncode == 1
    assert done.stderr == "error: the disk is full, so that the results could not be written; make room\n"


def test_with_every_stream_closed_the_exit_code_still_answers(tmp_path: Path) -> None:
    assert run("list methods", "<&- >&- 2>&-", tmp_path).returncode == 0
    assert run("cite nothing", "<&- >&- 2>&-", tmp_path).returncode == 2


def test_json_in_parts_is_the_same_text(capsys, monkeypatch):
    from sightline.bench.tables.formats import Records
    from sightline.bench.unit import Package
    from sightline.cli import console

    monkeypatch.setattr(console, "TOGETHER", 2)
    packages = [Package(f"ü{index}", "1\n2", "d") for index in range(5)]
    parts = {"run": "a", "none": Records([]), "some": Records(packages), "table": [{"x": float("nan")}], "empty": {}}
    console.print_json_parts(parts)
    found = capsys.readouterr().out
    plain = {name: list(part) if isinstance(part, Records) else part for name, part in parts.items()}
    console.print_json(plain)
    assert found == capsys.readouterr().out
