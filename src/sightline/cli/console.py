"""How commands speak: results on stdout, everything else on stderr, every error in one sentence."""

from __future__ import annotations

import errno
import json
import math
import os
import sys
import traceback
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from sightline.errors import USAGE_ERRORS, SightlineError, SightlineWarning
from sightline.progress import Advance, progress_bar

__all__ = [
    "FAILED",
    "STOPPED",
    "USAGE",
    "Advance",
    "err",
    "finish",
    "note",
    "out",
    "plain",
    "print_json",
    "print_json_line",
    "print_json_parts",
    "progress",
    "report",
    "show",
    "told",
    "waiting",
]


TOGETHER = 1024  # entries of a long list that are printed at a time


def _open_closed_streams() -> None:
    """Send to nowhere what would be printed where a stream was closed by the caller, as in ``sightline … >&-``."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115  # the lowest free number: the stream's own


_open_closed_streams()
FAILED, USAGE, STOPPED = 1, 2, 130
WIDE = 200  # columns where stdout is a file or a pipe: a row is a line there

out = Console(highlight=False, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDE)
err = Console(stderr=True, highlight=False)


def show(*renderables: RenderableType) -> None:
    """Print results."""
    for renderable in renderables:
        out.print(renderable)


def finish(code: int) -> int:
    """Write out what is still buffered and return the exit code; FAILED where it cannot be written.

    Where the reader has gone, as in ``sightline list methods | head -1``, nothing is said.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # or Python tries again at its end, and complains
        return FAILED if isinstance(error, BrokenPipeError) else report(error)
    return code


def print_json(value: object) -> None:
    """Print one JSON object, and nothing else, on stdout; NaN and infinity become null."""
    typer.echo(_json_text(value))


def print_json_parts(parts: Mapping[str, Any]) -> None:
    """Print the same object part by part; a collection that is no list is printed entry by entry, as a list."""
    before = "{"
    for name, part in parts.items():
        typer.echo(f"{before}\n  {json.dumps(name)}: ", nl=False)
        if isinstance(part, Collection) and not isinstance(part, list | tuple | str | Mapping):
            _print_entries(part)
        else:
            typer.echo(_json_text(part, 2), nl=False)
        before = ","
    typer.echo("\n}")


def _print_entries(entries: Collection[object]) -> None:
    """Print a collection as a list inside an object, some entries at a time."""
    waiting, before = iter(entries), "["
    while some := list(islice(waiting, TOGETHER)):
        text = ",\n    ".join(_json_text(entry, 4) for entry in some)
        typer.echo(f"{before}\n    {text}", nl=False)
        before = ","
    typer.echo("[]" if before == "[" else "\n  ]", nl=False)


def _json_text(value: object, indent: int = 0) -> str:
    return json.dumps(_finite(value), indent=2, allow_nan=False).replace("\n", "\n" + " " * indent)


def print_json_line(value: object) -> None:
    """Print one JSON object on a line of its own, at once."""
    typer.echo(json.dumps(_finite(value), allow_nan=False))
    sys.stdout.flush()


def note(message: str, kind: str = "note") -> None:
    """Say a sentence on stderr."""
    style = {"error": "bold red", "note": "yellow"}[kind]
    line = Text.assemble((f"{kind}: ", style), plain(message))
    err.print(line, soft_wrap=True)


def plain(text: object) -> str:
    """Return text that no terminal obeys: a file name may hold escape codes, or bytes that are no letters."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in str(text))


def report(error: BaseException, *, debug: bool = False) -> int:
    """Say what went wrong in a sentence, and return the exit code."""
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        note("stopped; nothing half-written was left behind")
        return STOPPED
    if debug:
        err.print("".join(traceback.format_exception(error)), markup=False, soft_wrap=True)
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # typer's own: a wrong option or command
        note(_usage(error), "error")
        return USAGE
    if isinstance(error, SightlineError):
        note(str(error), "error")
        return USAGE if isinstance(error, USAGE_ERRORS) else FAILED
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        note("the disk is full, so that the results could not be written; make room", "error")
        return FAILED
    reason = str(error).strip().split("\n")[0]
    note(f"{type(error).__name__}: {reason}; this is unexpected, run with --debug for the traceback", "error")
    return FAILED


def _usage(error: Any) -> str:
    """Join what typer says of a wrong option with where to read on."""
    bare = getattr(error, "param", None) is None  # then "Invalid value:" would stand before a sentence of ours
    message = " ".join(str(error.message if bare else error.format_message()).split()).rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{message} (see `{context.command_path} --help`)" if context is not None else message


@contextmanager
def told() -> Iterator[None]:
    """Turn warnings into sentences on stderr, each said once."""
    said: set[str] = set()

    def tell(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in said:
            said.add(str(message))
            note(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", SightlineWarning)
        warnings.showwarning = tell
        yield


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show on a terminal that something without steps is being done."""
    if not err.is_terminal:
        yield
        return
    with err.status(plain(text)):
        yield


@contextmanager
def progress(total: float, title: str) -> Iterator[Advance | None]:
    """Show a bar with the time left on stderr, gone when done; None where stderr is no terminal and nobody sees it."""
    if not err.is_terminal:
        yield None
        return
    with progress_bar(total, title, console=err) as advance:
        yield advance


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
