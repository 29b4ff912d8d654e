"""``sightline sanity``: does a method depend on the model at all?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sightline.cli import console
from sightline.cli.options import (
    AsJson,
    Classes,
    Device,
    Enlargement,
    Labels,
    Methods,
    NumClasses,
    OneModel,
    Output,
    Pretrained,
    Seed,
    Target,
    Templates,
    Texts,
)
from sightline.cli.request import ErrorLog, Request

if TYPE_CHECKING:
    from rich.table import Table

    from sightline.audit.sanity import SanityCheck
    from sightline.models.adapter import Adapter
    from sightline.models.inputs import Picture

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
    enlarge: Enlargement = None,
    stages: Stages = 5,
    out: Folder = None,
    as_json: AsJson = False,
    seed: Seed = None,
    classes: Classes = None,
    text: Texts = None,
    template: Templates = None,
    device: Device = "auto",
    num_classes: NumClasses = None,
    labels: Labels = None,
    output: Output = None,
    pretrained: Pretrained = True,
) -> None:
    """Find out whether methods depend on the model, the class and the image; a verdict for each.

    The layers of a copy of the model are re-initialised from the output to the input, and each method explains the
    copy again: a map that explains a model cannot stay the same when the model forgets everything. Edge detectors
    and other controls do, and are checked along with the rest unless methods are named.

    The exit code is 1 when a method fails that was named, or that is no control.
    """
    request = Request.of(
        images, model, method, classes, target=target, out=out, seed=seed, device=device,
        texts=text, templates=template, num_classes=num_classes, labels=labels, output=output, pretrained=pretrained,
        enlarge=enlarge,
    )  # fmt: skip
    errors = ErrorLog()
    check = check_files(request, errors, count=count, stages=stages)
    pictures = [] if check is None or out is None else _draw(out, check, request.models[0])
    if as_json:
        console.print_json(_json(request, check, pictures, errors))
    elif check is not None:
        _show(check, request.models[0], pictures)
    if errors or (check is not None and _failed(check, named=bool(request.methods))):
        raise typer.Exit(console.FAILED)


def check_files(request: Request, errors: ErrorLog, *, count: int, stages: int) -> SanityCheck | None:
    """Check methods on the images that are named, or on drawn shapes; None where no image can be read."""
    from sightline.audit import sanity as audit
    from sightline.audit.panel import reseed

    methods = reseed(request.methods, request.seed)  # a typo is found before anything is loaded
    files = request.files(errors.add)
    if request.paths and not files:
        return None
    model, targets = request.opened()
    images: Sequence[Picture] = _read(model, files, errors) if files else audit.drawn_shapes(count, request.seed)
    if not images:
        return None
    check = audit.sanity(
        model,
        images,
        methods or None,
        next(iter(targets), None),
        stages=stages,
        seed=request.seed,
        enlarge=request.enlarge,
        progress=console.err.is_terminal,
    )
    for failure in check.failures:
        errors.add(request.models[0], failure.error, failure.recipe)
    return check


def _read(model: Adapter, files: Sequence[Path], errors: ErrorLog) -> list[Picture]:
    """Read the images; one that cannot be read is reported and the others are used."""
    from sightline.errors import SightlineError
    from sightline.models.inputs import open_picture

    images = []
    for path in files:
        try:
            images.append(open_picture(model, path))
        except SightlineError as error:
            errors.add(path, error)
    return images


def _failed(check: SanityCheck, *, named: bool) -> bool:
    """Tell whether a method failed that was named, or that is no control."""
    controls = {method.recipe for method in check.methods if method.control}
    return any(named or recipe not in controls for recipe in check.failed)


def _json(request: Request, check: SanityCheck | None, pictures: list[Path], errors: ErrorLog) -> dict[str, Any]:
    from sightline import __version__

    return {
        "model": request.models[0],
        "images": 0 if check is None else check.images,
        "methods": [] if check is None else [method.json() for method in check.methods],
        "pictures": [str(path) for path in pictures],
        "errors": errors,
        "version": __version__,
    }


def _draw(out: Path, check: SanityCheck, model_id: str) -> list[Path]:
    """Write a strip per method: the first image's map, then those of ever more random models."""
    from sightline.cli.request import staged_output
    from sightline.report.views import sanity_strip

    pictures = []
    with staged_output(out) as output:
        for method in check.methods:
            name = f"{output.subfolder(method.recipe)}-sanity.png"
            pictures.append(output.png(name, sanity_strip(check, method), {"model": model_id}))
    return pictures


def _show(check: SanityCheck, model_id: str, pictures: list[Path]) -> None:
    """Print the numbers, then a sentence per method."""
    from rich.text import Text

    from sightline.audit.sanity_verdict import DOUBTFUL, FAILS, PASSES

    if not check.methods:
        return
    console.show(_table(check, model_id), "")
    for method in check.methods:
        style = {PASSES: "green", DOUBTFUL: "yellow", FAILS: "red"}.get(method.verdict.word, "")
        mark = " (a control: it should fail)" if method.control else ""
        words = ((f"{method.recipe}{mark} ", "bold"), (method.verdict.word, style), f": {method.verdict.sentence}")
        console.show(Text.assemble(*words))
    console.show("", "Passing is necessary, not sufficient: a map may depend on the model and still be wrong.")
    for path in pictures:
        console.show(Text(f"picture: {console.plain(path)}"))


def _table(check: SanityCheck, model_id: str) -> Table:
    from rich.table import Table
    from rich.text import Text

    from sightline.formatting import format_score

    title = Text(f"{console.plain(model_id)}, {check.images} image{'s' * (check.images != 1)}", "bold")
    table = Table(title=title, title_justify="left", caption_justify="left", box=None, pad_edge=False)
    table.caption = (
        "Similarity of the map to those of randomised models, a mean over the stages ('all' with every layer random, "
        "'sizes' of absolute values), to the map for another class, and to other images' maps."
    )
    heads = ("method", "verdict", "spearman", "all", "sizes", "pearson", "cosine", "ssim", "other class", "other image")
    for head in heads:
        table.add_column(head, justify="left" if head in heads[:2] else "right", overflow="fold")
    for method in check.methods:
        scores = method.scores
        numbers = (scores.mean, scores.last, scores.absolute, scores.pearson, scores.cosine, scores.ssim)
        cells = [format_score(value) for value in (*numbers, scores.other_class, scores.other_image)]
        table.add_row(Text(method.recipe), method.verdict.word, *cells, style="dim" if method.control else "")
    return table
