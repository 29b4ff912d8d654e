"""A progress bar with the time left, for whatever takes long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

__all__ = ["Advance", "no_progress", "progress_bar"]

Advance = Callable[[float, str], None]  # how much was done, and what is being done


def no_progress(amount: float, text: str) -> None:
    """Show nothing."""


@contextmanager
def progress_bar(
    total: float | None, title: str, *, enabled: bool = True, console: Console | None = None
) -> Iterator[Advance]:
    """Show a bar with the time left on stderr, gone when done; `total` is None where it is not known."""
    if not enabled:
        yield no_progress
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console or Console(stderr=True, highlight=False),
        transient=True,
    )
    with bar:
        task = bar.add_task(_plain(title), total=None if total is None else max(total, 1e-9))

        def advance(amount: float, text: str) -> None:
            bar.update(task, advance=amount, description=_plain(text))

        yield advance


def _plain(text: str) -> str:
    """Return text that neither a terminal nor rich obeys."""
    return "".join(letter if letter.isprintable() else "?" for letter in text).replace("[", "\\[")
