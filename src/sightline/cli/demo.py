"""``sightline demo``: see it work, without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["demo"]


def demo(
    out: Annotated[Path, typer.Option(help="The folder for pictures and pages.")] = Path("demo-out"),
    count: Annotated[int, typer.Option(min=1, help="How many synthetic images the table is measured on.")] = 16,
) -> None:
    """Explain synthetic images whose evidence is known, catch a shortcut, and explain photographs where possible."""
    from sightline.cli.tour import tour

    tour(out, count)
