"""Turn docstrings into Markdown for the documentation, and pages of the documentation into plain Markdown."""

from __future__ import annotations

import re
import textwrap

from sightline.catalogue.options import without_options

__all__ = ["body", "inline", "plain"]

_MATH = re.compile(
    r"^\.\. math::[ ]*(?P<first>[^\n]*)\n?(?P<rest>(?:[ \t]+[^\n]*\n|[ \t]*\n(?=[ \t]))*)", flags=re.MULTILINE
)
_INLINE = re.compile(r":(?P<role>[\w:]+):`(?P<text>[^`]*)`")
_DIRECTIVE = re.compile(
    r"^(?P<fence>`{3,}|:{3,})\{(?P<name>\w[\w-]*)\}[^\n]*\n.*?^(?P=fence)\n?", re.MULTILINE | re.DOTALL
)
_ROLE = re.compile(r"\{(?P<role>[\w:]+)\}`(?P<text>[^`]*)`")
_COMMENT = re.compile(r"^%[^\n]*\n", re.MULTILINE)


def inline(text: str) -> str:
    """Return a line of a docstring with the markup of Markdown: formulas, citations, code."""

    def role(match: re.Match[str]) -> str:
        name, inside = match["role"], match["text"]
        if name == "math":
            return f"${inside}$"
        if name.startswith("cite"):
            return f"{{{name}}}`{inside}`"
        return f"`{inside.rpartition('.')[2] if inside.startswith('~') else inside}`"

    return _INLINE.sub(role, text).replace("``", "`")


def body(doc: str) -> str:
    """Return a docstring after its first line as Markdown, without its options."""
    text = without_options(doc).partition("\n")[2].strip()

    def formula(match: re.Match[str]) -> str:
        return f"\n$$\n{(match['first'] + chr(10) + textwrap.dedent(match['rest'])).strip()}\n$$\n\n"

    displayed = _MATH.sub(formula, f"{text}\n")
    return re.sub(r"\n{3,}", "\n\n", inline(displayed)).strip()


def plain(page: str) -> str:
    """Return a page of the documentation without what only Sphinx understands.

    >>> plain("% written by a script\\n# Title\\n\\nAs in {cite:p}`a2020`.\\n")
    '# Title\\n\\nAs in [a2020].\\n'
    """
    text = _DIRECTIVE.sub("", _COMMENT.sub("", page))
    text = _ROLE.sub(lambda match: f"[{match['text']}]" if match["role"].startswith("cite") else match["text"], text)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
