"""``sightline explain``: what did the model look at, and which of these pictures can be believed?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sightline.cli import console
from sightline.cli.options import (
    AsJson,
    Classes,
    Device,
    Images,
    Methods,
    MetricStep,
    OneModel,
    Out,
    Seed,
    Target,
    needed,
)

__all__ = ["explain"]


def explain(
    paths: Images,
    model: OneModel = None,
    method: Methods = None,
    target: Target = None,
    out: Out = Path("sightline-out"),
    as_json: AsJson = False,
    page: Annotated[bool, typer.Option("--page/--no-page", help="Write OUT/index.html.")] = True,
    seed: Seed = None,
    metric_step: MetricStep = None,
    classes: Classes = None,
    device: Device = "auto",
) -> None:
    """Explain images, score every map on its very image, and put the most faithful one first.

    Each map is judged by insertion minus deletion: how early the model's answer appears as the pixels the map calls
    important are shown, and how early it breaks as they are removed. Controls that know nothing of the model are ranked
    too; where one of them wins, no map should be believed.
    """
    from sightline.cli.run import Request, run

    request = Request(
        paths=tuple(paths),
        model=needed(model),
        methods=tuple(method or ()),
        target=target,
        out=out,
        page=page,
        seed=seed,
        step=metric_step,
        classes=tuple(word.strip() for word in (classes or "").split(",") if word.strip()),
        device=device,
    )
    outcome = run(request)
    if as_json:
        console.print_json(outcome.json())
    else:
        outcome.show()
    if outcome.errors:
        raise typer.Exit(console.FAILED)
