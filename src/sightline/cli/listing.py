"""``sightline list``: what there is."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from sightline.cli import console

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
    rows = {
        Kind.METHODS: _registered,
        Kind.OPERATORS: _registered,
        Kind.METRICS: _registered,
        Kind.MODELS: _models,
        Kind.DATASETS: _datasets,
    }[kind](kind)
    rows = [row for row in rows if pattern.casefold() in row["name"].casefold()]
    if family:
        rows = [row for row in rows if row["family"] == _known_family(family, rows, kind)]
    if as_json:
        console.print_json(rows)
    else:
        _show(kind, rows)


def _registered(kind: Kind) -> list[dict[str, Any]]:
    from sightline.registry import METHODS, METRICS, OPERATORS

    registry = {Kind.METHODS: METHODS, Kind.OPERATORS: OPERATORS, Kind.METRICS: METRICS}[kind]
    rows = []
    for spec in sorted(registry.values(), key=lambda spec: (spec.family, spec.name)):
        row: dict[str, Any] = {"name": spec.name, "family": spec.family, "cost": spec.cost, "needs": sorted(spec.needs)}
        row |= {"direction": spec.direction} if kind is Kind.METRICS else {}
        row |= {"class_agnostic": spec.agnostic} if kind is Kind.METHODS else {}
        rows.append(row | {"summary": spec.summary})
    return rows


def _models(_: Kind) -> list[dict[str, Any]]:
    from sightline.models import zoo

    return [{"name": name, "family": name.partition("/")[0]} for name in zoo.list_models()]


def _datasets(_: Kind) -> list[dict[str, Any]]:
    from sightline.data.dataset import DATASETS, options_of

    return [
        {
            "name": spec.name,
            "family": spec.family,
            "needs": [name for name, default in options_of(spec).items() if default == "required"],
            "summary": spec.summary,
            "layout": spec.layout,
            "options": options_of(spec),
            "protocols": sorted(spec.protocols),
            "filters": spec.filters,
            "cite": spec.cite,
        }
        for spec in sorted(DATASETS.values(), key=lambda spec: (spec.family, spec.name))
    ]


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
