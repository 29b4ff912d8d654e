"""``sightline explain``: what did the model look at, and which of these pictures can be believed?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sightline.cli import console

__all__ = ["MODEL_HELP", "explain", "needed"]

MODEL_HELP = "A model id, such as timm/vit_base_patch16_224 or bundled/shapes-vit."
SOME_MODELS = ("bundled/shapes-vit", "timm/vit_base_patch16_224", "torchvision/resnet50", "package/efficientnet_lite0")


def explain(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATHS…", help="Images, folders, or patterns such as 'photos/*.jpg'.", show_default=False),
    ],
    model: Annotated[
        str | None, typer.Option("--model", "-m", envvar="SIGHTLINE_MODEL", help=MODEL_HELP, show_default=False)
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method", help="A recipe such as 'skip_plus(ixg)'; may be repeated. Default: a panel with controls.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="The class to explain, by number or label. Default: the predicted one.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder for pictures and page.")] = Path("sightline-out"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout instead of tables.")] = False,
    page: Annotated[bool, typer.Option("--page/--no-page", help="Write OUT/index.html.")] = True,
    seed: Annotated[int | None, typer.Option(help="Seed of every method that draws random numbers.")] = None,
    metric_step: Annotated[
        int | None,
        typer.Option(
            "--metric-step", "--step", min=1,
            help="Pixels per step of insertion and deletion. Default: 1/28 of the image, 57 passes per map.",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda where there is one.")] = "auto",
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
        device=device,
    )
    done = run(request)
    if as_json:
        console.print_json(done.json())
    else:
        done.show()
    if done.errors:
        raise typer.Exit(console.FAILED)


def needed(model: str | None) -> str:
    """Return the model id, or say how to give one."""
    if not model:
        raise typer.BadParameter(
            f"name a model with --model, or set SIGHTLINE_MODEL; for instance {', '.join(SOME_MODELS)} "
            "(`sightline list models` shows more)"
        )
    return model
