"""Read the pages people read: their code, their commands, their links."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PRINTS = re.compile(r"# prints: (?P<text>.*)$")


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """Return the code of a page in one language, block by block."""
    return re.findall(rf"```{language}\n(.*?)```", read(page), re.DOTALL)


def commands(page: str, program: str) -> list[str]:
    """Return the lines of a page that call a program, without their comments."""
    lines = (line for block in blocks(page, "sh") for line in block.splitlines())
    return [line.split("  #")[0].strip() for line in lines if line.startswith(f"{program} ")]


def links(page: str) -> list[str]:
    """Return the files a page links to or shows, seen from the root of the repository."""
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", read(page))
    folder = (ROOT / page).parent
    return [os.path.relpath(folder / target, ROOT) for target in targets if "://" not in target]


def run(page: str) -> list[str]:
    """Run the Python of a page from top to bottom, and return where it does not print what its comments say."""
    wrong: list[str] = []
    names: dict[str, Any] = {}
    for number, code in enumerate(blocks(page, "python")):
        lines = code.splitlines()

        def check(*values: object, lines: list[str] = lines) -> None:
            line = lines[sys._getframe(1).f_lineno - 1]
            said, printed = PRINTS.search(line), " ".join(map(str, values))
            if said is not None and said["text"] != printed:
                wrong.append(f"{line.strip()} printed {printed}")

        names["print"] = check
        exec(compile(code, f"{page}, block {number}", "exec"), names)
    return wrong


def missing_options(command: str) -> list[str]:
    """Return the options of a line that the command does not have; the command itself must exist."""
    words = shlex.split(command)
    named = words[1:3] if words[1] == "bench" else words[1:2]
    program = [sys.executable, "-c", "from sightline.cli.main import main; main()", *named, "--help"]
    answer = subprocess.run(program, capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "200"})
    assert answer.returncode == 0, answer.stderr
    return [word for word in words if word.startswith("--") and word not in answer.stdout]
