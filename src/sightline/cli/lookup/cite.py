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
    from sightline import citations

    references = citations.cite(*recipes)
    if bibtex:
        typer.echo("\n\n".join(reference.bibtex for reference in references))
        return
    for reference in references[:-1]:
        typer.echo(f"[{reference.key}] {reference}")
    named = [entry for recipe in recipes for entry in citations.specs_of(recipe)]
    for name in dict.fromkeys(entry.name for entry in named if not entry.cite):
        console.note(f"{name} has no paper of its own")
    typer.echo(f"[{references[-1].key}] {references[-1]}")
