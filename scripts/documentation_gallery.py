"""Run the scripts in examples/ cell by cell, and write a page of each with what every cell prints and shows."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import tempfile
import warnings
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

from documentation_notebooks import EXAMPLES, cells

__all__ = ["example_page", "gallery_pages", "run_cell", "run_example"]

Ran = tuple[str, str, str, str]  # the kind of a cell and its text, what it printed, what it showed as HTML


def run_cell(code: str, names: dict[str, Any]) -> str:
    """Run a cell as a notebook does: what its last expression is worth shows itself, as HTML where it can."""
    *rest, last = ast.parse(code).body
    if not isinstance(last, ast.Expr):
        rest, shown = [*rest, last], None
    else:
        shown = ast.Expression(last.value)
    exec(compile(ast.Module(rest, []), "cell", "exec"), names)
    value = None if shown is None else eval(compile(shown, "cell", "eval"), names)
    return value._repr_html_() if hasattr(value, "_repr_html_") else ""


def run_example(script: str) -> list[Ran]:
    """Run all cells of a script in a folder of its own."""
    names: dict[str, Any] = {"__name__": "__main__"}
    ran: list[Ran] = []
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.chdir(folder)
        try:
            for kind, text in cells(script):
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed):
                    shown = run_cell(text, names) if kind == "code" else ""
                ran.append((kind, text, printed.getvalue().rstrip(), shown))
        finally:
            os.chdir(before)
    return ran


def example_page(name: str, ran: list[Ran]) -> str:
    """Return the page of an example that was run."""
    parts = []
    for kind, text, printed, shown in ran:
        parts.append(text if kind == "markdown" else f"```python\n{text}\n```")
        if printed:
            parts.append(f"```text\n{printed}\n```")
        if shown:
            parts.append(f'````{{raw}} html\n<div class="shown">{shown}</div>\n````')
    parts.append(f"As a notebook: {{download}}`{name}.ipynb <../notebooks/{name}.ipynb>`.")
    return "\n\n".join(parts) + "\n"


def gallery_pages(pool: Pool) -> dict[str, str]:
    """Run the examples among the processes of a pool, and return their pages by name."""
    scripts = {path.stem: path.read_text(encoding="utf-8") for path in EXAMPLES}
    running = {name: pool.apply_async(run_example, (script,)) for name, script in scripts.items()}
    return {f"examples/{name}.md": example_page(name, result.get()) for name, result in running.items()}
