"""``sightline figure``: the figures of papers, drawn for a model and images of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sightline.cli import console
from sightline.cli.figures.charts import OVER_IMAGES
from sightline.cli.figures.kinds import KINDS, OF_MODELS, PER_IMAGE, Drawing, Kind, Options, Subject
from sightline.cli.figures.plans import PlannedFigure, is_plan, planned_figures
from sightline.cli.options import (
    AsJson,
    Classes,
    Dataset,
    Device,
    Enlargement,
    Methods,
    Models,
    OptionalImages,
    Out,
    Seed,
)
from sightline.cli.request import ErrorLog, Request
from sightline.files import file_name

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from sightline.cli.request import StagedOutput
    from sightline.data.images import ImageSource
    from sightline.models.adapter import Adapter

__all__ = ["draw_figures", "figure", "show_figures"]


_LISTED = "; ".join(f"{kind.value} ({text})" for kind, text in KINDS.items())
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help=f"Which figure: {_LISTED}; or a plan that describes one, such as mda-figure-8 or a TOML file.",
        show_default=False,
    ),
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="CLASS",
        help="A class to explain, by number or label; may be repeated. Default: the two most probable.",
        show_default=False,
    ),
]
Operator = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The operator of the lower rows, such as \"var(preset='recommended')\". Default: var.",
        show_default=False,
    ),
]
Vary = Annotated[
    str | None,
    typer.Option(
        metavar="WHAT",
        help="What an ablation varies: depth (default), neighbourhood, blank (CAAP), gamma, kappa, tau (MDA).",
        show_default=False,
    ),
]
Metric = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        metavar="NAME",
        help="A metric of an ablation or a radar chart; may be repeated. Default: insertion, deletion and ins_del.",
        show_default=False,
    ),
]
Frames = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Steps of a film. Default: 6.", show_default=False)
]
Gammas = Annotated[
    list[float] | None,
    typer.Option("--gamma", metavar="G", help="A density of MDA, 0 to 1; may be repeated.", show_default=False),
]
Kappas = Annotated[
    list[float] | None,
    typer.Option("--kappa", metavar="K", help="A threshold of MDA's density; may be repeated.", show_default=False),
]
Share = Annotated[
    float | None,
    typer.Option(
        metavar="P",
        min=0.0,
        max=1.0,
        help="Share of the pixels that masking removes. Default: 0.1",
        show_default=False,
    ),
]
Stages = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help="Randomised models, from the last layers to all. Default: 5.", show_default=False
    ),
]
Common = Annotated[
    bool | None, typer.Option("--common", help="One colour scale for all classes of a method.", show_default=False)
]
Images = Annotated[
    int | None,
    typer.Option(
        "--limit", metavar="N", min=1, help="How many images of the data set. Default: 1.", show_default=False
    ),
]


def figure(
    context: typer.Context,
    name: Name,
    paths: OptionalImages = None,
    model: Models = None,
    method: Methods = None,
    target: Targets = None,
    data: Dataset = None,
    limit: Images = None,
    enlarge: Enlargement = None,
    operator: Operator = None,
    common: Common = None,
    share: Share = None,
    stages: Stages = None,
    frames: Frames = None,
    gamma: Gammas = None,
    kappa: Kappas = None,
    vary: Vary = None,
    metric: Metric = None,
    out: Out = Path("sightline-out"),
    as_json: AsJson = False,
    seed: Seed = None,
    classes: Classes = None,
    device: Device = "auto",
) -> None:
    """Draw a figure: maps of several classes, methods or layers side by side, or a chart of how maps behave.

    Pictures are written as PNG, charts as SVG; the metadata of a PNG and --json say what was drawn. The options of a
    plan that describes a figure hold unless others are given.
    """
    options: dict[str, Any] = {
        "operator": operator, "common": common, "share": share, "stages": stages, "frames": frames, "gamma": gamma,
        "kappa": kappa, "vary": vary, "metric": metric, "seed": seed,
    }  # fmt: skip
    asked: dict[str, Any] = {"target": target, "seed": seed, "device": device}
    if is_plan(name):
        from sightline.bench.panels import read_plan_file

        enlarged = None if enlarge is None else str(enlarge)
        given_by = context.get_parameter_source("model")
        if given_by is not None and given_by.name == "ENVIRONMENT":
            model = None  # SIGHTLINE_MODEL stands in where no model is named, and a plan names its own
        settings: dict[str, Any] = {"models": model or None, "methods": method or None, "dataset": data}
        read = read_plan_file(name, **settings, limit=limit, enlarge=enlarged)
        planned = planned_figures(read, out, options=options, paths=paths or (), classes=classes, **asked)
    else:
        kind = _kind(name)
        known: dict[str, Any] = {"out": out, "data": data, "limit": limit or 1, "enlarge": enlarge, **asked}
        request = Request.of(paths, model, method, classes, needs_images=True, **known)
        planned = [PlannedFigure(kind, request, Options.of({**options, "enlarge": request.enlarge}))]
    show_figures(name, planned, as_json=as_json)


def _kind(name: str) -> Kind:
    if name not in set(Kind):
        raise typer.BadParameter(f"there is no figure and no plan {name!r}; figures are {', '.join(Kind)}")
    return Kind(name)


def show_figures(name: str, planned: Sequence[PlannedFigure], *, as_json: bool) -> None:
    """Draw figures, say where they are, and set the exit code."""
    errors = ErrorLog()
    drawn = [one for each in planned for one in draw_figures(each.kind, each.request, each.options, errors)]
    if as_json:
        from sightline import __version__

        console.print_json({"figure": name, "drawn": drawn, "errors": errors, "version": __version__})
    else:
        for one in drawn:
            console.show(f"picture: {console.plain(one['path'])}")
    if errors:
        raise typer.Exit(console.FAILED)


def draw_figures(name: Kind, request: Request, options: Options, errors: ErrorLog) -> list[dict[str, Any]]:
    """Draw a figure of every image for every model, write it, and return what ``--json`` lists.

    Models stand below each other in the figures that take several, and have a figure each elsewhere.
    """
    from sightline.audit.comparison import sides_of
    from sightline.audit.panel import reseed
    from sightline.cli.request import staged_output
    from sightline.recipe import text

    named = reseed(request.methods, request.seed)
    models = {model_id: request.open_model(model_id) for model_id in request.models}
    pictures = _read(request.sources(errors), models[request.models[0]], errors)
    drawings = [
        Drawing(side.model, tuple(map(text, side.methods)), options, _subjects(side.model, pictures, request))
        for side in sides_of(models, named or None, request.seed)
    ]
    with staged_output(request.out or Path()) as output:
        together = [drawings] if name in OF_MODELS else [[drawing] for drawing in drawings]
        return [one for group in together for one in _draw(name, group, request, output, errors)]


def _draw(
    name: Kind, drawings: Sequence[Drawing], request: Request, output: StagedOutput, errors: ErrorLog
) -> list[dict[str, Any]]:
    """Draw a figure of models that share it, over all images or of each of them."""
    from sightline.errors import SightlineError, TargetError

    subjects = drawings[0].subjects
    several = len(request.models) > 1 and name not in OF_MODELS
    suffix = f"-{file_name(drawings[0].model.name)}" if several else ""
    if name in OVER_IMAGES and subjects:
        picture, facts = OVER_IMAGES[name](drawings[0])
        path = _write(output, output.subfolder(f"{name.value}{suffix}"), picture, facts)
        return [{"images": len(subjects), "path": str(path), **facts}]
    listed: list[dict[str, Any]] = []
    for index, subject in enumerate(subjects):
        try:
            if name in OF_MODELS:
                picture, facts = OF_MODELS[name]([(drawing, drawing.subjects[index]) for drawing in drawings])
            else:
                picture, facts = PER_IMAGE[name](drawings[0], subject)
        except TargetError:
            raise
        except SightlineError as error:
            errors.add(subject.name, error)
            continue
        path = _write(output, f"{output.subfolder(subject.name + suffix)}-{name.value}", picture, facts)
        listed.append({"image": subject.name, "path": str(path), **facts})
    return listed


def _write(output: StagedOutput, stem: str, picture: Image.Image | str, facts: dict[str, Any]) -> Path:
    """Write a picture as PNG, a chart as SVG."""
    if isinstance(picture, str):
        return output.write(f"{stem}.svg", picture.encode())
    return output.png(f"{stem}.png", picture, {key: str(value) for key, value in facts.items()})


# ---- images ---------------------------------------------------------------------------------------------------------


def _read(sources: Sequence[ImageSource], model: Adapter, errors: ErrorLog) -> list[ImageSource]:
    """Read the images whose files are not read yet; one that cannot be read is reported."""
    from sightline.errors import SightlineError
    from sightline.models.inputs import open_picture

    found = []
    for source in sources:
        known = source.photograph is not None or source.pixels is not None
        try:
            found.append(source if known else replace(source, photograph=open_picture(model, source.path)))
        except SightlineError as error:
            errors.add(source.path, error)
    return found


def _subjects(model: Adapter, sources: Sequence[ImageSource], request: Request) -> tuple[Subject, ...]:
    """Prepare the images for a model, with the classes to explain: named, known to the data set, or most probable."""
    from sightline.audit.figures.class_maps import likeliest_classes
    from sightline.models.inputs import prepare
    from sightline.models.targets import find_class

    named = tuple(find_class(model, one) for one in request.targets)
    found = []
    for source in sources:
        _, batch = prepare(model, source)
        classes = named or source.classes or tuple(likeliest_classes(model, batch))
        found.append(Subject(source.stem, batch, classes, _masks(source, model)))
    return tuple(found)


def _masks(source: ImageSource, model: Adapter) -> tuple[Tensor, ...]:
    """Return the masks as the model sees the image: resized and cropped alike; none where that is not known."""
    from sightline.data.mask_transform import transform_mask

    if source.pixels is not None:
        return source.masks
    return () if model.preprocess is None else tuple(transform_mask(mask, model.preprocess) for mask in source.masks)
