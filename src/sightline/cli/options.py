"""The options that several commands share, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "AsJson",
    "Classes",
    "Device",
    "Images",
    "Methods",
    "MetricStep",
    "Models",
    "OneModel",
    "Out",
    "Seed",
    "Target",
]

_MODEL = "A model id, such as timm/vit_base_patch16_224 or bundled/shapes-vit."


def _model(text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        "--model", "-m", metavar="ID", envvar="SIGHTLINE_MODEL", help=text, show_default=False
    )
    return option


Images = Annotated[
    list[str],
    typer.Argument(metavar="PATHS", help="Images, folders, or patterns such as 'photos/*.jpg'.", show_default=False),
]
OneModel = Annotated[str | None, _model(_MODEL)]
Models = Annotated[list[str] | None, _model(f"{_MODEL} May be repeated.")]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        metavar="RECIPE",
        help="A recipe such as 'plus(libra(ixg))'; may be repeated. Default: a few that suit the model.",
        show_default=False,
    ),
]
Target = Annotated[
    str | None,
    typer.Option(metavar="CLASS", help="The class to explain, by number or label. Default: the predicted one."),
]
Out = Annotated[Path, typer.Option(metavar="DIR", help="The folder for what is written.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Seed of every method that draws random numbers.")]
MetricStep = Annotated[
    int | None,
    typer.Option(
        "--metric-step",
        "--step",
        metavar="N",
        min=1,
        help="Pixels per step of insertion and deletion. Default: 1/28 of the image, 57 passes per map.",
    ),
]
Device = Annotated[str, typer.Option(metavar="NAME", help="cpu, cuda, or auto: cuda where there is one.")]


Classes = Annotated[
    str | None, typer.Option(metavar="WORDS", help="For a CLIP model: what to choose between, such as 'cat, dog'.")
]
