"""``sightline explain``: what did the model look at, and which of these pictures can be believed?"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
)
from sightline.cli.request import ErrorLog, Request, needed, split_words

if TYPE_CHECKING:
    from sightline.audit.explained_image import ExplainedImage
    from sightline.cli.staged_output import StagedOutput
    from sightline.models.adapter import Adapter
    from sightline.report.page import ExplainPage, ImageSection
    from sightline.types import Method

__all__ = ["explain"]

FEW = 8  # images that get a table each in the terminal
ON_PAGE = 100  # images; a page with more of them no browser opens gladly

Page = Annotated[bool, typer.Option("--page/--no-page", help="Write a page with everything, to open in a browser.")]


def explain(
    paths: Images,
    model: OneModel = None,
    method: Methods = None,
    target: Target = None,
    out: Out = Path("sightline-out"),
    page: Page = True,
    as_json: AsJson = False,
    seed: Seed = None,
    metric_step: MetricStep = None,
    classes: Classes = None,
    device: Device = "auto",
) -> None:
    """Explain what a model looked at: a map per method, ranked by how faithful each is on that very image.

    Faithful means: the answer comes back early as the pixels a map calls important are put into a blurred image
    (insertion), and goes early as they are removed (deletion). Controls that know nothing of the model are ranked too;
    where one of them wins, no map should be believed.
    """
    request = Request(
        paths=tuple(paths),
        models=(needed(model),),
        methods=tuple(method or ()),
        target=target,
        out=out,
        seed=seed,
        step=metric_step,
        classes=split_words(classes),
        device=device,
    )
    outcome = explain_files(request, page=page)
    if as_json:
        console.print_json(outcome)
    else:
        _show(outcome)
    if outcome["errors"]:
        raise typer.Exit(console.FAILED)


def explain_files(request: Request, *, page: bool = True) -> dict[str, Any]:
    """Explain every image, write overlays and the page, and return what ``--json`` prints.

    A file that cannot be read is reported and the others are done.
    """
    from sightline import __version__
    from sightline.audit.panel import reseed
    from sightline.cli.staged_output import staged_output
    from sightline.extras import require
    from sightline.report.page import write_page

    methods = reseed(request.methods, request.seed)  # a typo is found before anything is loaded
    errors = ErrorLog()
    (model_id,) = request.models
    outcome: dict[str, Any] = {"model": model_id, "images": [], "page": None, "errors": errors, "version": __version__}
    files = request.files(errors.add)
    if not files:
        return outcome
    if page:
        require("jinja2")
    with staged_output(request.out or Path()) as output:
        model = request.open_model(model_id)
        panel = _panel(model, methods, request.seed)
        images, sections = _explain_all(request, model, panel, files, output, errors, page=page)
        outcome["images"] = images
        if images and page:
            write_page(_page(request, panel, sections), output.staging / "index.html")
            outcome["page"] = str(output.folder / "index.html")
    return outcome


def _panel(model: Adapter, methods: Sequence[Method], seed: int | None) -> list[Method]:
    """Return the methods, refusing those the model cannot be explained with, or the default panel."""
    from sightline.audit.panel import is_control, panel_of

    panel = panel_of(model, methods or None, seed)
    if all(is_control(method) for method in panel) and not methods:
        console.note(f"{model.name} shows nothing of its inside, so only the controls can be run on it")
    return panel


def _explain_all(
    request: Request,
    model: Adapter,
    panel: Sequence[Method],
    files: Sequence[Path],
    output: StagedOutput,
    errors: ErrorLog,
    *,
    page: bool,
) -> tuple[list[dict[str, Any]], list[ImageSection]]:
    """Explain every image and write its overlays; return the record of each and what the page shows of them."""
    from sightline import api
    from sightline.audit.explained_image import explain_image
    from sightline.audit.scored_map import map_cost
    from sightline.data.images import read_image
    from sightline.errors import SightlineError, TargetError
    from sightline.report.page import image_section

    target = request.target_of(model)
    cost = sum(map_cost(method, model) for method in panel)
    names = Counter(path.name for path in files)
    records: list[dict[str, Any]] = []
    sections: list[ImageSection] = []
    with console.progress(len(files) * cost, "explaining") as advance:
        for path in files:
            try:
                photograph = read_image(path)
                batch = api.as_batch(model, photograph)
                image = explain_image(
                    model,
                    batch,
                    panel,
                    target,
                    photograph=photograph,
                    name=path.name if names[path.name] == 1 else str(path),
                    step=request.step,
                    advance=advance,
                )
            except TargetError:
                raise
            except SightlineError as error:
                errors.add(path, error)
                advance(cost, path.name)
                continue
            _report_failures(request, path, image, errors)
            if image.maps:
                section = image_section(image)
                records.append({"path": str(path), **_record(output, path.stem, image, section)})
                sections += [section] if page and len(sections) < ON_PAGE else []
    if page and len(records) > len(sections):
        console.note(f"the page shows the first {len(sections)} of {len(records)} images; the overlays are all there")
    return records, sections


def _report_failures(request: Request, path: Path, image: ExplainedImage, errors: ErrorLog) -> None:
    """Stop at a recipe that cannot work; leave out what the panel offered in vain; report the rest."""
    from sightline.errors import USAGE_ERRORS, SightlineWarning, UnsupportedMethod, UnsupportedModel

    for failure in image.failures:
        if request.methods and isinstance(failure.error, USAGE_ERRORS):
            raise failure.error
        if isinstance(failure.error, UnsupportedMethod | UnsupportedModel):
            warnings.warn(f"left out {failure.recipe}: {failure.error}", SightlineWarning, stacklevel=2)
        else:
            errors.add(path, failure.error, failure.recipe)


def _record(output: StagedOutput, stem: str, image: ExplainedImage, section: ImageSection) -> dict[str, Any]:
    """Write an overlay per map, and return all that is known of the image as plain data."""
    from sightline.cli.staged_output import safe

    folder, width = output.subfolder(stem), len(str(len(image.maps)))
    record = image.json()
    for number, (entry, card) in enumerate(zip(record["maps"], section.maps, strict=True), 1):
        name = f"{folder}/{number:0{width}}-{safe(card.recipe)}.png"
        entry["overlay"] = str(output.png(name, card.picture, {"recipe": card.recipe, "target": image.target.label}))
    return record


def _page(request: Request, panel: Sequence[Method], sections: Sequence[ImageSection]) -> ExplainPage:
    from sightline.citations import bibtex_of, specs_of
    from sightline.recipe import text
    from sightline.registry import METRICS
    from sightline.report.page import ExplainPage
    from sightline.versions import versions

    step = "1/28 of the pixels" if request.step is None else f"{request.step} pixels"
    notes = {name: f"{METRICS[name].summary} {step} per step." for name in ("insertion", "deletion")}
    notes["ins_del"] = f"{METRICS['ins_del'].summary} The maps are ranked by it."
    recipes = [*(text(method) for method in panel), "insertion", "deletion"]
    return ExplainPage(
        title="What did the model look at?",
        model=request.models[0],
        sections=sections,
        command=request.command("explain"),
        versions=versions(),
        metric_notes=notes,
        bibtex=bibtex_of(spec for recipe in recipes for spec in specs_of(recipe)),
    )


def _show(outcome: dict[str, Any]) -> None:
    """Print a table per image, or a line per image when there are many."""
    from rich.text import Text

    from sightline.cli.tables import image_table, overview

    if len(outcome["images"]) > FEW:
        console.show(overview(outcome["images"]))
    else:
        for image in outcome["images"]:
            console.show(image_table(image), "")
    if outcome["page"] is not None:
        console.show(Text(f"page: {console.plain(outcome['page'])}"))
