"""Write llms.txt, which lists the documentation for programs that read text, and a Markdown twin beside every page."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from documentation_text import plain

__all__ = ["foreign_pages", "llms_text", "write"]

FOREIGN = re.compile(r'<(?:script|link|img)\b[^>]*\b(?:src|href)="(?:https?:)?//')
PICTURES = "generated/pictures"  # Sphinx gathers them elsewhere; twins look for them here
SECTIONS = {
    "": "Start",
    "guide": "Guides",
    "reference": "Reference",
    "generated/examples": "Examples",
    "generated": "Tables",
    "generated/methods": "Methods",
    "generated/operators": "Operators",
    "generated/metrics": "Metrics",
    "generated/datasets": "Data sets",
}
HEAD = """# sightline

> sightline explains what a vision model looked at, and says how far that explanation can be trusted: attribution
> methods and operators as one algebra of recipes, metrics that judge a map on its own image, and benchmarks.

`sightline.explain(model, images, "plus(libra(ixg))")` explains, `sightline.rank(model, images)` says which of several
maps to believe, `sightline card NAME` prints what is known of a method, an operator or a metric. Every page below is
Markdown; the same address with .html is for people.
"""


def llms_text(pages: dict[str, str]) -> str:
    """Return llms.txt of pages by name: their titles and first sentences, section by section."""
    lines = [HEAD]
    for folder, title in SECTIONS.items():
        names = [name for name in pages if name.rpartition("/")[0] == folder]
        if names:
            lines += [f"## {title}", "", *(_line(name, pages[name]) for name in names), ""]
    return "\n".join(lines)


def _line(name: str, page: str) -> str:
    title = next((line[2:] for line in page.splitlines() if line.startswith("# ")), name)
    return f"- [{title}]({name}.md)" + (f": {sentence}" if (sentence := _first_sentence(page)) else "")


def _first_sentence(page: str) -> str:
    """Return the first sentence below the title, without links, which would be relative to the page."""
    paragraph = re.search(r"^# [^\n]*\n+(?![#|!$<]|- |```)(.+?)(?:\n\n|\Z)", page, re.MULTILINE | re.DOTALL)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph[1].split())) if paragraph else ""
    return re.split(r"(?<=[.:]) (?=[A-Z])", text)[0]


def write(source: Path, out: Path, names: Sequence[str]) -> None:
    """Write the twins of the pages of a built documentation, and llms.txt, into the folder it was built in."""
    pages = {
        name: plain((source / f"{name}.md").read_text(encoding="utf-8"))
        for name in names
        if (source / f"{name}.md").is_file()
    }
    for name, text in pages.items():
        twin = out / f"{name}.md"
        twin.parent.mkdir(parents=True, exist_ok=True)
        twin.write_text(text, encoding="utf-8")
    if (source / PICTURES).is_dir():
        shutil.copytree(source / PICTURES, out / PICTURES, dirs_exist_ok=True)
    (out / "llms.txt").write_text(llms_text(pages), encoding="utf-8")


def foreign_pages(out: Path) -> list[str]:
    """Return the pages of a built documentation that load a script, a style or a picture from another host."""
    pages = sorted(out.rglob("*.html"))
    return [path.relative_to(out).as_posix() for path in pages if FOREIGN.search(path.read_text(encoding="utf-8"))]
