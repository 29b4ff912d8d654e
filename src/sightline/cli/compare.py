"""``sightline compare``: methods and models side by side, and how far their maps agree."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sightline.cli import console
from sightline.cli.explain import MODEL_HELP, needed

__all__ = ["compare"]



def compare(
    images: Annotated[
        list[str],
        typer.Argument(metavar="IMAGE…", help="Images, folders, or patterns such as 'photos/*.jpg'.", show_default=False),
    ],
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", envvar="SIGHTLINE_MODEL", help=f"{MODEL_HELP} May be repeated.", show_default=False),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", help="A recipe; may be repeated. Default: a few that suit each model.", show_default=False),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="The class to explain, by number or label. Default: what each model predicts.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder for the pictures.")] = Path("sightline-out"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout instead of tables.")] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of every method that draws random numbers.")] = None,
    metric_step: Annotated[
        int | None, typer.Option("--metric-step", "--step", min=1, help="Pixels per step; as in explain.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda where there is one.")] = "auto",
) -> None:
    """Put methods and models side by side in one picture per image, with scores and the agreement of the maps.

    Agreement is Spearman's rank correlation of two maps over the part of the image that both models see: 1 when they
    order the pixels alike, 0 when they have nothing to do with each other.
    """
    from sightline.cli.comparison import Question, answer

    question = Question(
        paths=tuple(images),
        models=tuple(model or (needed(None),)),
        methods=tuple(method or ()),
        target=target,
        out=out,
        seed=seed,
        step=metric_step,
        device=device,
    )
    found = answer(question)
    if as_json:
        console.print_json(found.json())
    else:
        found.show()
    if found.errors:
        raise typer.Exit(console.FAILED)
