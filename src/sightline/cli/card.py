"""``sightline card``: everything about one method, operator or metric."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sightline.cli import console

if TYPE_CHECKING:
    from sightline.registry import Spec

__all__ = ["card", "facts_of"]

_MATH = re.compile(
    r"^\.\. math::[ ]*(?P<first>[^\n]*)\n?(?P<rest>(?:[ \t]+[^\n]*\n|[ \t]*\n(?=[ \t]))*)", flags=re.MULTILINE
)
_ROLE = re.compile(r":(?P<role>cite:\w+|\w+):`(?P<text>[^`]*)`")


def card(
    name: Annotated[str, typer.Argument(help="The name of a method, an operator or a metric.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Show what a method, operator or metric is: formula, options, cost, needs, citation, and how it was checked."""
    from sightline.citations import specs_of

    facts = facts_of(specs_of(name)[0])
    if as_json:
        console.print_json(facts)
    else:
        _show(facts)


def facts_of(spec: Spec) -> dict[str, Any]:
    """Gather what is known of a name."""
    from sightline.citations import keys_of, references
    from sightline.recipe import example, options

    recipe = example(spec)
    known = references()
    return {
        "name": spec.name,
        "kind": spec.kind,
        "family": spec.family,
        "summary": readable(spec.summary),
        "formula": formulas(spec.doc),
        "description": description(spec.doc),
        "options": options(spec),
        "cost": spec.cost,
        "needs": sorted(spec.needs),
        "direction": spec.direction or None,
        "class_agnostic": spec.agnostic,
        "citations": {key: str(known[key]) for key in keys_of([spec]) if key in known},
        "parity": spec.parity,
        "command": _command(spec, recipe),
        "python": _python(spec, recipe),
    }


def formulas(doc: str) -> list[str]:
    """Return the LaTeX of every displayed formula of a docstring."""
    found = ((match["first"] + "\n" + textwrap.dedent(match["rest"])).strip() for match in _MATH.finditer(doc))
    return [formula for formula in found if formula]


def description(doc: str) -> str:
    """Return a docstring's text for reading: no summary line, no formulas, no markup."""
    body = _MATH.sub("\n", doc).partition("\n")[2]
    paragraphs = (" ".join(part.split()) if "\n  " not in part else part for part in body.strip().split("\n\n"))
    return readable("\n\n".join(part.strip("\n") for part in paragraphs if part.strip()))


def readable(text: str) -> str:
    """Return text without Sphinx's roles and quotes: citations in brackets, the rest bare."""
    plain = _ROLE.sub(lambda m: f"[{m['text']}]" if m["role"].startswith("cite") else m["text"], text)
    return plain.replace("``", "").replace("`", "")


def _command(spec: Spec, recipe: str) -> str:
    if spec.kind != "metric":
        return f'sightline explain dog.jpg --model timm/vit_base_patch16_224 --method "{recipe}"'
    return "sightline demo" if "masks" in spec.needs else "sightline explain dog.jpg --model timm/vit_base_patch16_224"


def _python(spec: Spec, recipe: str) -> str:
    if spec.kind != "metric":
        return f'sightline.explain(model, images, "{recipe}").map'
    masks = ", masks=masks" if "masks" in spec.needs else ""
    return f'sightline.evaluate(model, images, attribution, "{recipe}"{masks})["{recipe}"]'


def _show(facts: dict[str, Any]) -> None:
    head = Text.assemble((facts["name"], "bold"), f"  {facts['kind']}, {facts['family']}")
    console.show(head, Text(facts["summary"]), "")
    for formula in facts["formula"]:
        console.show(Panel(Text(formula), title="formula (LaTeX)", title_align="left", expand=False))
    if facts["description"]:
        console.show(Text(facts["description"]), "")
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, line in _lines(facts).items():
        if line:
            table.add_row(name, Text(line))
    console.show(table)


def _lines(facts: dict[str, Any]) -> dict[str, str]:
    """Return what the card says below the text, a word or two before each line."""
    settings = (f"{name}={value}".replace("=required", " (required)") for name, value in facts["options"].items())
    return {
        "options": ", ".join(settings),
        "cost": facts["cost"],
        "needs": ", ".join(facts["needs"]),
        "better": facts["direction"] or "",
        "class": "the same map for every class" if facts["class_agnostic"] else "",
        "cite": "\n".join(f"[{key}] {text}" for key, text in facts["citations"].items()),
        "checked": facts["parity"],
        "command": facts["command"],
        "python": facts["python"],
    }
