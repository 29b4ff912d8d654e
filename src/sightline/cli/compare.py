"""``sightline compare``: methods and models side by side, and how far their maps agree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sightline.cli import console
from sightline.cli.options import (
    AsJson,
    Classes,
    Dataset,
    Device,
    Enlargement,
    Labels,
    Limit,
    Methods,
    MetricStep,
    Models,
    NumClasses,
    OptionalImages,
    Out,
    Output,
    Pretrained,
    Seed,
    Targets,
    Templates,
    Texts,
)
from sightline.cli.request import ErrorLog, Request

if TYPE_CHECKING:
    from rich.table import Table

    from sightline.audit.comparison import ComparedImage, Side
    from sightline.audit.panel import ExplainedImage
    from sightline.cli.request import StagedOutput
    from sightline.data.images import ImageSource

__all__ = ["compare"]


def compare(
    paths: OptionalImages = None,
    model: Models = None,
    method: Methods = None,
    target: Targets = None,
    data: Dataset = None,
    limit: Limit = 8,
    enlarge: Enlargement = None,
    out: Out = Path("sightline-out"),
    as_json: AsJson = False,
    seed: Seed = None,
    metric_step: MetricStep = None,
    classes: Classes = None,
    text: Texts = None,
    template: Templates = None,
    device: Device = "auto",
    num_classes: NumClasses = None,
    labels: Labels = None,
    output: Output = None,
    pretrained: Pretrained = True,
) -> None:
    """Put methods and models side by side in one picture per image, with scores and the agreement of the maps.

    Agreement is Spearman's rank correlation of two maps over the part of the image that both models see: 1 when they
    order the pixels alike, 0 when they have nothing to do with each other.
    """
    request = Request.of(
        paths, model, method, classes, needs_images=True, target=target, out=out, seed=seed, step=metric_step,
        device=device, texts=text, templates=template, num_classes=num_classes, labels=labels, output=output,
        pretrained=pretrained, data=data, limit=limit, enlarge=enlarge,
    )  # fmt: skip
    outcome = compare_files(request)
    if as_json:
        console.print_json(outcome)
    else:
        _show(outcome)
    if outcome["errors"]:
        raise typer.Exit(console.FAILED)


def compare_files(request: Request) -> dict[str, Any]:
    """Explain every image with every model, write a picture of each, and return what ``--json`` prints."""
    from sightline import __version__
    from sightline.audit.comparison import sides_of
    from sightline.audit.panel import reseed
    from sightline.cli.request import staged_output
    from sightline.errors import SightlineError, TargetError

    methods = reseed(request.methods, request.seed)
    errors = ErrorLog()
    outcome: dict[str, Any] = {"images": [], "errors": errors, "version": __version__}
    sources = request.sources(errors)
    if not sources:
        return outcome
    with staged_output(request.out or Path()) as output:
        models = {model_id: request.open_model(model_id) for model_id in request.models}
        sides = sides_of(models, methods or None, request.seed)
        targets = {side.name: request.targets_of(side.model) for side in sides}
        maps = sum(side.cost * max(1, len(targets[side.name])) for side in sides)
        with console.progress(len(sources) * maps, "comparing") as advance:
            for source in sources:
                try:
                    image = _compare_one(source, sides, targets, request, errors, advance)
                except TargetError:
                    raise
                except SightlineError as error:
                    errors.add(source.path, error)
                    continue
                outcome["images"].append({"path": source.path, **_record(output, source, image)})
    return outcome


def _compare_one(
    source: ImageSource,
    sides: Sequence[Side],
    targets: dict[str, list[Any]],
    request: Request,
    errors: ErrorLog,
    advance: console.Advance | None,
) -> ComparedImage:
    """Explain one image with every model; what fails on one of them is reported, what cannot work stops the command."""
    from sightline.audit.comparison import ComparedImage, compare_image
    from sightline.audit.panel import picture_targets
    from sightline.models.inputs import prepare

    views: list[tuple[str, ExplainedImage]] = []
    for side in sides:
        prepared = [(side, *prepare(side.model, source))]
        wanted = picture_targets(source, targets[side.name], side.model)
        image = compare_image(
            source.name, prepared, wanted, step=request.step, enlarge=request.enlarge, advance=advance
        )
        views += image.views
        for name, explained in image.views:
            for failure in explained.failures:
                errors.add(source.path, failure.error, f"{failure.recipe} on {name}")
    return ComparedImage(source.name, tuple(views))


def _record(output: StagedOutput, source: ImageSource, image: ComparedImage) -> dict[str, Any]:
    """Write the picture of an image, and return all that is known of it as plain data."""
    from sightline.report.views import comparison_picture

    name = f"{output.subfolder(source.stem)}-compare.png"
    return {"picture": str(output.png(name, comparison_picture(image), {"image": source.name})), **image.json()}


def _show(outcome: dict[str, Any]) -> None:
    """Print a table per image, and where its picture is."""
    from rich.text import Text

    for image in outcome["images"]:
        console.show(_table(image), Text(f"picture: {console.plain(image['picture'])}"), "")


def _table(image: dict[str, Any]) -> Table:
    """Return the scores of every map, and how far each agrees with each."""
    from rich.table import Table
    from rich.text import Text

    from sightline.formatting import format_probability, format_score

    table = Table(title=Text(console.plain(image["path"]), "bold"), title_justify="left", box=None, pad_edge=False)
    table.caption, table.caption_justify = "The numbered columns hold Spearman's correlation with that map.", "left"
    rows = [(model, scored) for model in image["models"] for scored in model["maps"]]
    for name in ("", "model", "explained", "map", "insertion", "deletion", "ins − del"):
        table.add_column(name, justify="left" if name in ("model", "explained", "map") else "right", overflow="fold")
    for number in range(1, len(rows) + 1):
        table.add_column(str(number), justify="right", no_wrap=True)
    for index, (model, scored) in enumerate(rows):
        table.add_row(
            str(index + 1),
            Text(console.plain(model["model"])),
            Text(f"{console.plain(model['label'])} {format_probability(model['probability'])}"),
            Text(scored["recipe"]),
            *(format_score(scored[name]) for name in ("insertion", "deletion", "ins_del")),
            *(_correlation(value) for value in image["agreement"]["spearman"][index]),
            style="dim" if scored["control"] else "",
        )
    return table


def _correlation(value: float) -> str:
    return "–" if value != value else f"{round(value, 2) + 0.0:.2f}".replace("-", "−")
