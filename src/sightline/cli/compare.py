"""``sightline compare``: methods and models side by side, and how far their maps agree."""

from __future__ import annotations

from pathlib import Path

import typer

from sightline.cli import console
from sightline.cli.options import (
    AsJson,
    Classes,
    Device,
    Images,
    Methods,
    MetricStep,
    Models,
    Out,
    Seed,
    Target,
    needed,
)

__all__ = ["compare"]


def compare(
    paths: Images,
    model: Models = None,
    method: Methods = None,
    target: Target = None,
    out: Out = Path("sightline-out"),
    as_json: AsJson = False,
    seed: Seed = None,
    metric_step: MetricStep = None,
    classes: Classes = None,
    device: Device = "auto",
) -> None:
    """Put methods and models side by side in one picture per image, with scores and the agreement of the maps.

    Agreement is Spearman's rank correlation of two maps over the part of the image that both models see: 1 when they
    order the pixels alike, 0 when they have nothing to do with each other.
    """
    from sightline.cli.comparison import Question, answer

    question = Question(
        paths=tuple(paths),
        models=tuple(model or (needed(None),)),
        methods=tuple(method or ()),
        target=target,
        out=out,
        seed=seed,
        step=metric_step,
        classes=tuple(word.strip() for word in (classes or "").split(",") if word.strip()),
        device=device,
    )
    found = answer(question)
    if as_json:
        console.print_json(found.json())
    else:
        found.show()
    if found.errors:
        raise typer.Exit(console.FAILED)
