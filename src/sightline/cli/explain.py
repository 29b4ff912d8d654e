"""``sightline explain``: what did the model look at, and which of these pictures can be believed?"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sightline.cli import console
from sightline.cli.options import (
    Answer,
    AsJson,
    Classes,
    Dataset,
    Device,
    Enlargement,
    Labels,
    Limit,
    Methods,
    MetricStep,
    NumClasses,
    OneModel,
    OptionalImages,
    Out,
    Output,
    Pretrained,
    Prompt,
    Seed,
    Targets,
    Templates,
    Texts,
)
from sightline.cli.request import ErrorLog, Request
from sightline.files import check_folder
from sightline.formatting import format_seconds

if TYPE_CHECKING:
    from sightline.cli.console import Advance
    from sightline.data.images import ImageSource
    from sightline.report.explain_files import FileRun

__all__ = ["explain"]

FEW = 8  # images that get a table each in the terminal
PER_PAGE = 20  # images; with more of them the page becomes an index and several pages

Page = Annotated[bool, typer.Option("--page/--no-page", help="Write a page with everything, to open in a browser.")]
PerPage = Annotated[
    int, typer.Option(metavar="N", min=1, help="With more images than this, an index and pages of so many.")
]
Resume = Annotated[
    bool, typer.Option("--resume/--no-resume", help="Leave out images that a stopped run of this command has done.")
]
AsLines = Annotated[
    bool, typer.Option("--jsonl", help="Print a JSON object per image on stdout, as soon as it is done.")
]


def explain(
    paths: OptionalImages = None,
    model: OneModel = None,
    method: Methods = None,
    target: Targets = None,
    data: Dataset = None,
    limit: Limit = 8,
    enlarge: Enlargement = None,
    out: Out = Path("sightline-out"),
    page: Page = True,
    as_json: AsJson = False,
    as_lines: AsLines = False,
    per_page: PerPage = PER_PAGE,
    resume: Resume = True,
    seed: Seed = None,
    metric_step: MetricStep = None,
    classes: Classes = None,
    device: Device = "auto",
    text: Texts = None,
    template: Templates = None,
    num_classes: NumClasses = None,
    labels: Labels = None,
    output: Output = None,
    pretrained: Pretrained = True,
    prompt: Prompt = None,
    answer: Answer = None,
) -> None:
    """Explain what a model looked at: a map per method, ranked by how faithful each is on that very image.

    Faithful means: the answer comes back early as the pixels a map calls important are put into a blurred image
    (insertion), and goes early as they are removed (deletion), under several ways of removing pixels. Controls that
    know nothing of the model are ranked too; where one of them wins, or the ways of removing disagree, no map should be
    believed.

    Each image is written as soon as it is done. A run that was stopped goes on when the same command is given again.
    """
    request = Request.of(
        paths, model, method, classes, command="explain", needs_images=True, target=target, out=out, seed=seed,
        step=metric_step, device=device, texts=text, templates=template, num_classes=num_classes, labels=labels,
        output=output, pretrained=pretrained, data=data, limit=limit, enlarge=enlarge, prompt=prompt,
        answer=answer,
    )  # fmt: skip
    options: dict[str, Any] = {"page": page, "per_page": per_page, "resume": resume}
    if as_lines:
        failed = False
        for record in _records(request, **options):
            console.print_json_line(record)
            failed = failed or "error" in record
        raise typer.Exit(console.FAILED if failed else 0)
    outcome = explain_files(request, **options)
    if as_json:
        console.print_json(outcome)
    else:
        _show(outcome)
    if outcome["errors"]:
        raise typer.Exit(console.FAILED)


def explain_files(request: Request, *, page: bool = True, **options: Any) -> dict[str, Any]:
    """Explain every image, write overlays and the page, and return what ``--json`` prints.

    A file that cannot be read is reported and the others are done. `options` are those of `_records`.
    """
    from sightline import __version__

    (model_id,) = request.models
    outcome: dict[str, Any] = {"model": model_id, "images": [], "page": None, "errors": [], "version": __version__}
    for record in _records(request, page=page, **options):
        outcome["errors" if "error" in record else "images"].append(record)
    if page and outcome["images"]:
        outcome["page"] = str((request.out or Path()) / "index.html")
    return outcome


def _records(
    request: Request, *, page: bool = True, per_page: int = PER_PAGE, resume: bool = True
) -> Iterator[dict[str, Any]]:
    """Yield what is known of each image as soon as it is written; errors are said on stderr as well."""
    from sightline.recipe import parse
    from sightline.report.page import load_template

    for method in request.methods:
        parse(method)  # a typo is found before anything is loaded
    errors = ErrorLog()
    sources = request.sources(errors)
    yield from errors
    if not sources:
        return
    check_folder(request.out or Path())
    if page:
        load_template()
    run = _run(request, sources, page=page, per_page=per_page, resume=resume)
    done = 0
    try:
        with _progress(run) as advance:
            for record in replace(run, advance=advance):
                if "error" in record:
                    _say(record)
                done += "error" not in record
                yield record
    except KeyboardInterrupt:
        if not done:
            raise
        console.note(f"stopped; {done} of {len(run)} images are done, and the same command goes on from there")
        raise typer.Exit(console.STOPPED) from None
    if run.resumed:
        console.note(f"{len(run.resumed)} of {len(run)} images were explained before; --no-resume does them again")


def _run(request: Request, sources: Sequence[ImageSource], **options: Any) -> FileRun:
    """Load the model and return the images to explain with it."""
    from sightline.audit.panel import is_control
    from sightline.report.explain_files import explain_files as run_of

    model, targets = request.opened()
    run = run_of(
        model,
        sources,
        request.methods or None,
        targets,
        out=request.out or Path(),
        enlarge=request.enlarge,
        seed=request.seed,
        step=request.step,
        command=request.command,
        **options,
    )
    if not request.methods and all(map(is_control, run.panel)):
        console.note(f"{model.name} shows nothing of its inside, so only the controls can be run on it")
    return run


def _say(record: dict[str, Any]) -> None:
    """Report in a sentence what could not be read or explained."""
    where, error, recipe = record["path"], record["error"], record.get("recipe")
    sentence = error if where in error else f"{where}: {error}"
    console.note(f"{recipe} on {sentence}" if recipe else sentence, "error")


@contextmanager
def _progress(run: FileRun) -> Iterator[Advance | None]:
    """Show a bar with the time left on a terminal; elsewhere a line for every hundredth of many images."""
    if console.err.is_terminal:
        with console.progress(len(run) * run.cost, "explaining") as advance:
            yield advance
    elif len(run) > FEW:
        yield _line_per_hundredth(len(run) * run.cost)
    else:
        yield None


def _line_per_hundredth(total: float) -> Advance:
    """Return what says how far a run is, where no terminal shows a bar."""
    begun, spent, said = time.monotonic(), 0.0, 0

    def advance(amount: float, text: str) -> None:
        nonlocal spent, said
        spent += amount
        share = min(int(100 * spent / total + 1e-6), 100)
        if share > said:
            said = share
            left = (time.monotonic() - begun) * (total / spent - 1)
            console.err.print(f"{share} % done, about {format_seconds(left)} left", markup=False)

    return advance


def _show(outcome: dict[str, Any]) -> None:
    """Print a table per image, or a line per image when there are many."""
    from rich.text import Text

    from sightline.cli.tables import fill_table, image_table, overview

    if len(outcome["images"]) > FEW:
        console.show(overview(outcome["images"]))
    else:
        for image in outcome["images"]:
            console.show(image_table(image), "")
            if image["fills"]:
                console.show(fill_table(image), "")
    if outcome["page"] is not None:
        console.show(Text(f"page: {console.plain(outcome['page'])}"))
