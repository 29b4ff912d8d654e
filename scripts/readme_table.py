"""Write the table of methods, operators and metrics into README.md, from the registries.

Run it after adding or renaming one: ``python scripts/readme_table.py``. A test compares the two.
"""

from __future__ import annotations

from pathlib import Path

from sightline.registry import METHODS, METRICS, OPERATORS, Registry

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def rows(registry: Registry) -> list[str]:
    """Return one table row per name, by family."""
    specs = sorted((registry[name] for name in registry), key=lambda spec: (spec.family, spec.name))
    return [f"| `{spec.name}` | {spec.family} | {spec.cost} | {spec.summary} |" for spec in specs]


def table() -> str:
    """Return the whole table as Markdown."""
    parts = []
    for title, registry in (("Methods", METHODS), ("Operators", OPERATORS), ("Metrics", METRICS)):
        parts += [
            f"**{title}** ({len(registry)})",
            "",
            "| name | family | passes per image | what it is |",
            "| --- | --- | --- | --- |",
        ]
        parts += [*rows(registry), ""]
    return "\n".join(parts).rstrip()


def with_table(text: str) -> str:
    """Return the README with the table in its place."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    README.write_text(with_table(README.read_text()))
