"""Build notebooks from the scripts in examples/ whose cells begin with ``# %%``.

``python scripts/documentation_notebooks.py FOLDER``; the documentation has them in its folder notebooks/.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

__all__ = ["EXAMPLES", "cells", "notebook", "write"]

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = tuple(sorted(path for path in FOLDER.glob("*.py") if path.read_text(encoding="utf-8").startswith("# %%")))
MARK = re.compile(r"^# %%(?P<kind> \[markdown\])?\n", re.MULTILINE)


def cells(script: str) -> list[tuple[str, str]]:
    """Return the cells of a script: their kind, code or markdown, and their text.

    >>> cells("# %% [markdown]\\n# # Title\\n\\n# %%\\nx = 1\\n")
    [('markdown', '# Title'), ('code', 'x = 1')]
    """
    marks = list(MARK.finditer(script))
    ends = [mark.start() for mark in marks[1:]] + [len(script)]
    parts = []
    for mark, end in zip(marks, ends, strict=True):
        text = script[mark.end() : end].strip()
        if mark["kind"]:
            parts.append(("markdown", re.sub(r"^# ?", "", text, flags=re.MULTILINE)))
        else:
            parts.append(("code", text))
    return parts


def notebook(script: str) -> dict[str, Any]:
    """Return a notebook of a script, in version 4.5 of the format, without outputs."""
    made = []
    for number, (kind, text) in enumerate(cells(script)):
        cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": text}
        made.append(cell | ({"execution_count": None, "outputs": []} if kind == "code" else {}))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def write(folder: Path) -> list[Path]:
    """Write a notebook of every example into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for example in EXAMPLES:
        path = folder / f"{example.stem}.ipynb"
        text = json.dumps(notebook(example.read_text(encoding="utf-8")), indent=1, ensure_ascii=False)
        path.write_text(f"{text}\n", encoding="utf-8")
        paths.append(path)
    return paths


if __name__ == "__main__":
    for each in write(Path(sys.argv[1])):
        print(each)
