"""``sightline sanity``: does a method depend on the model at all?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sightline.cli import console
from sightline.cli.options import AsJson, Classes, Device, Methods, OneModel, Seed, Target, needed

__all__ = ["sanity"]

Paths = Annotated[
    list[str] | None,
    typer.Option(
        "--images",
        metavar="PATHS",
        help="Images, a folder or a pattern; may be repeated. Default: drawn shapes.",
        show_default=False,
    ),
]
Count = Annotated[int, typer.Option("--count", metavar="N", min=1, help="How many shapes to draw.")]
Stages = Annotated[
    int, typer.Option("--stages", metavar="N", min=1, help="Randomised models, from the last layers to all.")
]
Folder = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="A folder for a strip of maps per method.", show_default=False),
]


def sanity(
    model: OneModel = None,
    method: Methods = None,
    images: Paths = None,
    count: Count = 4,
    target: Target = None,
    stages: Stages = 5,
    out: Folder = None,
    as_json: AsJson = False,
    seed: Seed = None,
    classes: Classes = None,
    device: Device = "auto",
) -> None:
    """Find out whether methods depend on the model, the class and the image; a verdict for each.

    The layers of a copy of the model are re-initialised from the output to the input, and each method explains the
    copy again: a map that explains a model cannot stay the same when the model forgets everything. Edge detectors
    and other controls do, and are checked along with the rest unless methods are named.

    The exit code is 1 when a method fails that was named, or that is no control.
    """
    from sightline.cli.soundness import Question, answer

    question = Question(
        model=needed(model),
        methods=tuple(method or ()),
        paths=tuple(images or ()),
        count=count,
        target=target,
        stages=stages,
        seed=seed,
        classes=tuple(word.strip() for word in (classes or "").split(",") if word.strip()),
        device=device,
        out=out,
    )
    outcome = answer(question)
    if as_json:
        console.print_json(outcome.json())
    else:
        outcome.show()
    if outcome.failed:
        raise typer.Exit(console.FAILED)
