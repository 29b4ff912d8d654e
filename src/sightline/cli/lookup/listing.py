"""``sightline list``: what there is."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sightline.catalogue.footprint import footprint
from sightline.cli import console

if TYPE_CHECKING:
    from sightline.catalogue.index import IndexEntry

__all__ = ["Kind", "listing"]

ROOMY = 120  # columns; in a narrower terminal needs and cost are left to the cards


class Kind(StrEnum):
    """What can be listed."""

    METHODS = "methods"
    OPERATORS = "operators"
    METRICS = "metrics"
    MODELS = "models"
    DATASETS = "datasets"


def listing(
    kind: Annotated[Kind, typer.Argument(help="What to list.", show_default=False)],
    pattern: Annotated[str, typer.Argument(help="Only names that hold this text.", show_default=False)] = "",
    family: Annotated[str, typer.Option(help="Only this family, such as attention or cam.", show_default=False)] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """List methods, operators, metrics, models or datasets, a line each."""
    rows = _models() if kind is Kind.MODELS else _registered(kind)
    rows = [row for row in rows if pattern.casefold() in row["name"].casefold()]
    if family:
        rows = [row for row in rows if row["family"] == _known_family(family, rows, kind)]
    if as_json:
        console.print_json(rows)
    else:
        _show(kind, rows)


def _models() -> list[dict[str, Any]]:
    from sightline.catalogue.model_ids import list_models

    return [{"name": name, "family": name.partition("/")[0]} for name in list_models()]


def _registered(kind: Kind) -> list[dict[str, Any]]:
    from sightline.catalogue.index import entries

    by_family = sorted(entries(kind.removesuffix("s")).values(), key=lambda entry: (entry.family, entry.name))
    return [(_dataset_row if kind is Kind.DATASETS else _row)(entry) for entry in by_family]


def _row(entry: IndexEntry) -> dict[str, Any]:
    row: dict[str, Any] = {"name": entry.name, "family": entry.family, "cost": entry.cost, "needs": sorted(entry.needs)}
    row |= {"memory": footprint(entry.cost, entry.needs)} if entry.kind != "metric" else {}
    row |= {"direction": entry.direction} if entry.kind == "metric" else {}
    row |= {"class_agnostic": entry.agnostic} if entry.kind == "method" else {}
    return row | {"summary": entry.summary}


def _dataset_row(entry: IndexEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "family": entry.family,
        "needs": [name for name, default in entry.options.items() if default == "required"],
        "summary": entry.summary,
        "layout": entry.layout,
        "options": dict(entry.options),
        "protocols": sorted(entry.protocols),
        "filters": entry.filters,
        "cite": entry.cite,
    }


def _known_family(family: str, rows: list[dict[str, Any]], kind: Kind) -> str:
    families = sorted({row["family"] for row in rows})
    if family not in families:
        from sightline.errors import RecipeError
        from sightline.registry import unknown

        known = f"the families of {kind} are {', '.join(families)}"
        raise RecipeError(unknown(family, "family", families, otherwise=known))
    return family


def _show(kind: Kind, rows: list[dict[str, Any]]) -> None:
    from sightline.cli.tables import fields_table

    if kind is Kind.MODELS:
        for row in rows:
            typer.echo(row["name"])
        console.note(
            "also hf/OWNER/NAME, openclip/NAME:TAG and file:PATH.safetensors@timm/NAME; "
            "`sightline list models vit` shows only names with vit"
        )
        return
    heads: tuple[str, ...] = {
        Kind.METHODS: ("name", "family", "class", "needs", "cost", "summary"),
        Kind.OPERATORS: ("name", "family", "needs", "cost", "summary"),
        Kind.METRICS: ("name", "family", "better", "needs", "cost", "summary"),
        Kind.DATASETS: ("name", "family", "needs", "summary"),
    }[kind]
    if console.out.width < ROOMY:
        heads = tuple(head for head in heads if head not in ("needs", "cost"))
    console.show(fields_table([[_cell(row, head) for head in heads] for row in rows], heads))


def _cell(row: dict[str, Any], head: str) -> str:
    if head == "class":
        return "agnostic" if row["class_agnostic"] else ""
    if head == "better":
        return str(row["direction"])
    value = row[head]
    return ", ".join(value) if isinstance(value, list) else str(value)
