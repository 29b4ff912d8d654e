"""The options that several commands share, each written once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "Answer",
    "AsJson",
    "Classes",
    "Dataset",
    "Device",
    "EnlargeMode",
    "Enlargement",
    "Images",
    "Labels",
    "Limit",
    "Methods",
    "MetricStep",
    "Models",
    "NumClasses",
    "OneModel",
    "OptionalImages",
    "Out",
    "Output",
    "Pretrained",
    "Prompt",
    "Seed",
    "Target",
    "Targets",
    "Templates",
    "Texts",
]


class EnlargeMode(StrEnum):
    """The ways in which the cells of a map become pixels."""

    nearest = "nearest"
    bilinear = "bilinear"
    bicubic = "bicubic"


_MODEL = "A model id, such as timm/vit_base_patch16_224, bundled/shapes-vit or py:package.module:function."


def _model(text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        "--model", "-m", metavar="ID", envvar="SIGHTLINE_MODEL", help=text, show_default=False
    )
    return option


Images = Annotated[
    list[str],
    typer.Argument(metavar="PATHS", help="Images, folders, or patterns such as 'photos/*.jpg'.", show_default=False),
]
OptionalImages = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATHS", help="Images, folders, or patterns such as 'photos/*.jpg'.", show_default=False),
]
Dataset = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DATASET",
        help="A data set in place of paths, such as \"quads(of='photos', side=224)\", a folder of class folders or "
        "'shapes(count=2)'; the classes that its pictures show are explained unless some are given.",
        show_default=False,
    ),
]
Limit = Annotated[int, typer.Option(metavar="N", min=1, help="How many images of the data set.")]
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
    typer.Option(
        metavar="CLASS",
        help="The class to explain, by number or label; region:LABEL of a segmentation, box:0 or box:LABEL of a "
        "detector, a word of an answer. Default: the predicted one, or every word.",
    ),
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="CLASS",
        help="What to explain, a class by number or label; region:LABEL of a segmentation, box:0 or box:LABEL of a "
        "detector; may be repeated. Default: the predicted one, or what the data set says.",
        show_default=False,
    ),
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
        help="Pixels per step of insertion and deletion. Default: 1/28 of the image, 54 passes per map.",
    ),
]
Enlargement = Annotated[
    EnlargeMode | None,
    typer.Option(
        "--enlarge",
        help="How the cells of a map become pixels, where it is scored and drawn. Default: as each method says.",
        show_default=False,
    ),
]
Device = Annotated[str, typer.Option(metavar="NAME", help="cpu, cuda, mps, or auto: cuda where there is one.")]
NumClasses = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="How many classes the model is built with, where it can be.")
]
Labels = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Class names: one per line, or JSON, a list or an object of number and name."),
]
Output = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="What the numbers are: softmax, sigmoid (several labels at once) or value."),
]
Pretrained = Annotated[
    bool, typer.Option("--pretrained/--no-pretrained", help="Trained weights, or random ones to try a model out.")
]
Texts = Annotated[
    list[str] | None,
    typer.Option(
        "--text", metavar="TEXT", help="For a CLIP model: a text to explain; may be repeated.", show_default=False
    ),
]
Prompt = Annotated[
    str | None,
    typer.Option(
        metavar="QUESTION",
        help="For a vision-language model: what to ask about the picture; every word of the answer gets its map.",
    ),
]
Answer = Annotated[
    str | None,
    typer.Option(metavar="WORDS", help="For --prompt: the answer to explain. Default: what the model answers."),
]
Templates = Annotated[
    list[str] | None,
    typer.Option(
        "--template",
        metavar="SENTENCE",
        help="For --classes: a sentence with {} for the class; may be repeated. Default: 'a photo of a {}.'",
        show_default=False,
    ),
]


Classes = Annotated[
    str | None, typer.Option(metavar="WORDS", help="For a CLIP model: what to choose between, such as 'cat, dog'.")
]
