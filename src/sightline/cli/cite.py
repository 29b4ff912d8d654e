"""``sightline cite``: the papers to cite for a recipe."""

from __future__ import annotations

from typing import Annotated

import typer

from sightline.cli import console

__all__ = ["cite"]


def cite(
    recipes: Annotated[
        list[str],
        typer.Argument(metavar="NAME", help="Names, or whole recipes.", show_default=False),
    ],
    bibtex: Annotated[bool, typer.Option("--bibtex", help="Print BibTeX entries, ready for a .bib file.")] = False,
) -> None:
    """Print the papers that recipes stand on, and how to cite sightline itself."""
    from sightline.citations import bibtex_of, itself, keys_of, references, specs_of

    specs = [spec for recipe in recipes for spec in specs_of(recipe)]
    if bibtex:
        typer.echo(bibtex_of(specs))
        return
    known = references()
    for key in keys_of(specs):
        typer.echo(f"[{key}] {known[key]}")
    for name in dict.fromkeys(spec.name for spec in specs if not spec.cite):
        console.note(f"{name} has no paper of its own")
    typer.echo(f"[sightline] {itself()}")
