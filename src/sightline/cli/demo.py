"""``sightline demo``: see it work, without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sightline.cli import console

__all__ = ["demo"]


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder for pictures and pages.")] = Path("demo-out"),
    count: Annotated[int, typer.Option(metavar="N", min=1, help="Synthetic images to judge the maps on.")] = 16,
) -> None:
    """Explain synthetic images whose evidence is known, catch a shortcut, and explain photographs where possible."""
    from sightline.cli.tour import tour

    if not tour(out, count):
        raise typer.Exit(console.FAILED)
