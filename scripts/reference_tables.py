"""Write the pages docs/reference/methods.md, operators.md and metrics.md from the registries.

Run it after adding, renaming or rewording one: ``python scripts/reference_tables.py``. A test compares the two.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from sightline.registry import METHODS, METRICS, OPERATORS, Registry, Spec

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
NOTE = "% Written by scripts/reference_tables.py from the registries; change the docstrings, not this page."
PAGES: dict[str, tuple[str, Registry, str]] = {
    "methods.md": (
        "Methods",
        METHODS,
        "A method turns a model, images and a target into an attribution. Its name is its shortest recipe: "
        '`sightline.explain(model, images, "gae")`. `sightline card NAME` prints the formula, the options, the '
        "citation and what the implementation was checked against.",
    ),
    "operators.md": (
        "Operators",
        OPERATORS,
        "An operator turns a method into another method, and operators nest: "
        '`sightline.explain(model, images, "plus(libra(ixg))")`.',
    ),
    "metrics.md": (
        "Metrics",
        METRICS,
        "A metric gives one number per image: "
        '`sightline.evaluate(model, images, attribution, ["insertion", "deletion"])`. The arrow says which way is '
        "better.",
    ),
}
ARROWS = {"higher": " ↑", "lower": " ↓", "": ""}


def row(spec: Spec) -> str:
    """Return the row of one name."""
    papers = f"{{cite:p}}`{spec.cite}`" if spec.cite else ""
    cells = (f"`{spec.name}`{ARROWS[spec.direction]}", spec.summary, spec.cost, papers)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def page(name: str) -> str:
    """Return a page as Markdown: one table per family."""
    title, registry, introduction = PAGES[name]
    specs = sorted((registry[each] for each in registry), key=lambda spec: (spec.family, spec.name))
    lines = [NOTE, "", f"# {title}", "", introduction, ""]
    for family, members in groupby(specs, key=lambda spec: spec.family):
        lines += [f"## {family.replace('_', ' ')}", "", "| name | what it is | passes per image | paper |"]
        lines += ["| --- | --- | --- | --- |", *map(row, members), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in PAGES:
        (FOLDER / each).write_text(page(each), encoding="utf-8")
