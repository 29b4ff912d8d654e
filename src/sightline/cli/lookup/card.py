"""``sightline card``: everything about one method, operator or metric."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sightline.cli import console

if TYPE_CHECKING:
    from sightline.catalogue.cards import Card

__all__ = ["card"]


def card(
    name: Annotated[str, typer.Argument(help="The name of a method, an operator or a metric.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Show what a method, operator or metric is: formula, options, cost, needs, citation, and how it was checked."""
    from sightline.catalogue import cards

    facts = cards.card(name)
    if as_json:
        console.print_json(asdict(facts))
    else:
        _show(facts)


def _show(facts: Card) -> None:
    console.show(Text.assemble((facts.name, "bold"), f"  {facts.kind}, {facts.family}"), Text(facts.summary), "")
    for formula in facts.formula:
        console.show(Panel(Text(formula), title="formula (LaTeX)", title_align="left", expand=False))
    if facts.description:
        console.show(Text(facts.description), "")
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, line in _lines(facts).items():
        if line:
            table.add_row(name, Text(line))
    console.show(table)


def _lines(facts: Card) -> dict[str, str]:
    """Return what the card says below the text, a word or two before each line."""
    return {
        "options": "\n".join(_option(facts, name) for name in facts.options),
        "cost": facts.cost,
        "memory": facts.memory,
        "needs": ", ".join(facts.needs),
        "better": facts.direction or "",
        "class": "the same map for every class" if facts.class_agnostic else "",
        "cite": "\n".join(f"[{key}] {text}" for key, text in facts.citations.items()),
        "checked": facts.parity,
        "trust": facts.trust,
        "command": facts.command,
        "python": facts.python,
    }


def _option(facts: Card, name: str) -> str:
    default, text = facts.options[name], facts.option_texts.get(name, "")
    written = f"{name} (required)" if default == "required" else f"{name}={default}"
    return f"{written}  {text}" if text else written
