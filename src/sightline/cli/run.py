"""One run of ``sightline explain``: from paths and a model id to pictures, a page and a record of everything."""

from __future__ import annotations

import platform
import shlex
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.text import Text

from sightline import __version__, api
from sightline.audit.panel import CONTROLS, choose, reseed
from sightline.audit.ranking import Failure, Study
from sightline.citations import bibtex_of, specs_of
from sightline.cli import console
from sightline.cli.drawing import record, section_of
from sightline.cli.error_log import Complaints
from sightline.cli.loading import gather, open_model
from sightline.cli.staged_output import Outbox, writing
from sightline.cli.tables import image_table, overview
from sightline.cli.target import find_class
from sightline.data.images import read_image
from sightline.errors import SightlineError, SightlineWarning, TargetError, UnsupportedMethod, UnsupportedModel
from sightline.extras import require
from sightline.models.adapter import Adapter
from sightline.recipe import text
from sightline.registry import METRICS
from sightline.report.page import ExplainPage, ImageSection, write_page
from sightline.types import Method

__all__ = ["Outcome", "Request", "run", "versions"]

FEW = 8  # images that get a table each in the terminal
ON_PAGE = 100  # images; a page with more of them no browser opens gladly


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    paths: tuple[str, ...]
    model: str
    methods: tuple[str, ...] = ()
    target: str | None = None
    out: Path = Path("sightline-out")
    page: bool = True
    seed: int | None = None
    step: int | None = None
    classes: tuple[str, ...] = ()
    device: str = "auto"

    @property
    def command(self) -> str:
        """The command line that asks for this again."""
        words = ["sightline", "explain", *self.paths, "--model", self.model]
        for recipe in self.methods:
            words += ["--method", recipe]
        options = {
            "target": self.target,
            "seed": self.seed,
            "metric-step": self.step,
            "classes": ", ".join(self.classes) or None,
        }
        for name, value in options.items():
            words += [] if value is None else [f"--{name}", str(value)]
        return shlex.join(words)


@dataclass
class Outcome:
    """What a run found, as plain data: `images` and `errors` are what ``--json`` prints."""

    model: str
    images: list[dict[str, Any]] = field(default_factory=list)
    errors: Complaints = field(default_factory=Complaints)
    page: Path | None = None

    def json(self) -> dict[str, Any]:
        """Return everything for a script to read."""
        page = None if self.page is None else str(self.page)
        return {"model": self.model, "images": self.images, "page": page, "errors": self.errors, "version": __version__}

    def show(self) -> None:
        """Print a table per image, or a line per image when there are many."""
        if len(self.images) > FEW:
            console.show(overview(self.images))
        else:
            for image in self.images:
                console.show(image_table(image), "")
        if self.page is not None:
            console.show(Text(f"page: {console.plain(self.page)}"))


def run(request: Request) -> Outcome:
    """Do what was asked; a file that cannot be read is reported and the others are done."""
    methods = reseed(request.methods, request.seed)  # a typo is found before anything is loaded
    outcome = Outcome(request.model)
    files = gather(request.paths, outcome.errors.add)
    if not files:
        return outcome
    if request.page:
        require("jinja2")
    with writing(request.out) as outbox:
        study = _study(request, methods)
        sections = _look(request, outcome, outbox, study, files)
        if outcome.images and request.page:
            write_page(_page(request, study, sections), outbox.staging / "index.html")
            outcome.page = outbox.folder / "index.html"
    return outcome


def _study(request: Request, methods: Sequence[Method]) -> Study:
    """Load the model, and see that the methods and the target suit it."""
    model = open_model(request.model, request.device, request.classes)
    methods = methods or _default(model, request.seed)
    for method in methods:
        api.check_needs(method, model)
    target = None if request.target is None else find_class(model, request.target)
    return Study(model, methods, target, request.step, request.model)


def _default(model: Adapter, seed: int | None) -> list[Method]:
    recipes = choose(model)
    if set(recipes) == set(CONTROLS):
        console.note(f"{model.name} shows nothing of its inside, so only the controls can be run on it")
    return reseed(recipes, seed)


def _look(
    request: Request, outcome: Outcome, outbox: Outbox, study: Study, files: Sequence[Path]
) -> list[ImageSection]:
    """Look at every image and write its overlays; return what the page shows of them."""
    sections: list[ImageSection] = []
    names = Counter(path.name for path in files)
    with console.progress(len(files) * study.price, "explaining") as advance:
        for path in files:
            try:
                found = study.look(read_image(path), advance)
            except TargetError:
                raise
            except SightlineError as error:
                outcome.errors.add(path, error)
                advance(study.price, path.name)
                continue
            _tell_failures(request, outcome, path, found.failures)
            if found.maps:
                section = section_of(path.name if names[path.name] == 1 else str(path), found)
                outcome.images.append({"path": str(path), **record(outbox, path.stem, found, section)})
                sections += [section] if request.page and len(sections) < ON_PAGE else []
    if request.page and len(outcome.images) > len(sections):
        shown = f"{len(sections)} of {len(outcome.images)}"
        console.note(f"the page shows the first {shown} images; the overlays are all there")
    return sections


def _tell_failures(request: Request, outcome: Outcome, path: Path, failures: Sequence[Failure]) -> None:
    """Stop at a recipe that cannot work; leave out what the panel offered in vain; report the rest."""
    for failure in failures:
        if request.methods and isinstance(failure.error, console.USAGE_ERRORS):
            raise failure.error
        if isinstance(failure.error, UnsupportedMethod | UnsupportedModel):
            warnings.warn(f"left out {failure.recipe}: {failure.error}", SightlineWarning, stacklevel=2)
        else:
            outcome.errors.add(path, failure.error, failure.recipe)


def _page(request: Request, study: Study, sections: Sequence[ImageSection]) -> ExplainPage:
    step = "1/28 of the pixels" if request.step is None else f"{request.step} pixels"
    notes = {name: f"{METRICS[name].summary} {step} per step." for name in ("insertion", "deletion")}
    notes["ins_del"] = f"{METRICS['ins_del'].summary} The maps are ranked by it."
    recipes = [*(text(method) for method in study.methods), "insertion", "deletion"]
    return ExplainPage(
        title="What did the model look at?",
        model=request.model,
        sections=sections,
        command=request.command,
        versions=versions(),
        metric_notes=notes,
        bibtex=bibtex_of(spec for recipe in recipes for spec in specs_of(recipe)),
    )


def versions() -> dict[str, str]:
    """Return the versions that decide a result: ours, and those of the libraries that took part."""
    libraries = ("torch", "torchvision", "timm", "transformers", "open_clip", "PIL")
    loaded = {name: getattr(sys.modules.get(name), "__version__", None) for name in libraries}
    found = {name: str(version) for name, version in loaded.items() if version}
    return {"sightline": __version__, "python": platform.python_version(), **found}
