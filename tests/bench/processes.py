"""Processes of a run, as tests see them in /proc: found among a driver's descendants, killed, waited for.

A process is known by its number and by when it was started: numbers come back, and another's process is left alone.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Process", "alive", "below", "end", "everyone", "named", "until"]


class Process(NamedTuple):
    """A process, and nobody else who gets its number later."""

    id: int
    born: int  # ticks since the machine was started

    @property
    def line(self) -> str:
        """Its command line; empty when it has ended."""
        with suppress(OSError):
            return Path(f"/proc/{self.id}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return ""


def _facts(id: int | str) -> tuple[Process, int, str] | None:
    """Return a process, its parent's number and its state; None when there is none."""
    try:
        words = Path(f"/proc/{id}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return Process(int(id), int(words[19])), int(words[1]), words[0]


def _all() -> list[tuple[Process, int, str]]:
    return [facts for path in Path("/proc").glob("[0-9]*") if (facts := _facts(path.name))]


def everyone() -> list[Process]:
    """Return every process there is."""
    return [process for process, _, _ in _all()]


def below(ancestor: int) -> list[Process]:
    """Return the descendants of a process."""
    families: dict[int, list[Process]] = {}
    for process, parent, _ in _all():
        families.setdefault(parent, []).append(process)
    found, place = list(families.get(ancestor, [])), 0
    while place < len(found):
        found += families.get(found[place].id, [])
        place += 1
    return found


def named(processes: Iterable[Process], *words: str) -> list[Process]:
    """Return those whose command line holds one of the words."""
    return [process for process in processes if any(word in process.line for word in words)]


def alive(processes: Iterable[Process]) -> list[Process]:
    """Return those that have not ended; one that nobody has waited for has ended all the same."""
    found = [(process, _facts(process.id)) for process in processes]
    return [process for process, facts in found if facts and facts[0] == process and facts[2] != "Z"]


def end(processes: Iterable[Process]) -> None:
    """kill -9 whatever is left of them."""
    for process in alive(processes):
        with suppress(ProcessLookupError):
            os.kill(process.id, signal.SIGKILL)


def until(condition: Callable[[], Any], seconds: float = 120.0, *, told: Callable[[], Any] = str) -> Any:
    """Wait for something, and return it; `told` says what is the matter when it does not come."""
    last = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < last, f"waited in vain: {told()}"
        time.sleep(0.02)
    return value
