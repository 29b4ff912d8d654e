"""Processes of a run, as tests see them in /proc: found among a driver's descendants, killed, waited for."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["alive", "below", "end", "named", "until"]


def until(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Wait for something, and return it."""
    last = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < last, "waited in vain"
        time.sleep(0.02)
    return value


def below(ancestor: int) -> list[int]:
    """Return the descendants of a process."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found, added = [ancestor], [ancestor]
    while added:
        added = [child for child, parent in parents.items() if parent in added]
        found += added
    return found[1:]


def named(processes: list[int], *words: str) -> list[int]:
    """Return those whose command line holds one of the words."""
    found = []
    for process in processes:
        with suppress(OSError):
            line = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")
            if any(word in line for word in words):
                found.append(process)
    return found


def alive(processes: list[int]) -> list[int]:
    """Return those that have not ended; one that nobody has waited for has ended all the same."""
    found = []
    for process in processes:
        with suppress(OSError):
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(process)
    return found


def end(processes: list[int]) -> None:
    """kill -9 whatever is left of them."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
