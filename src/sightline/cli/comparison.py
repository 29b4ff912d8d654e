"""One run of ``sightline compare``: every method on every model, drawn in one picture per image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image
from rich.table import Table
from rich.text import Text

from sightline import __version__, api
from sightline.audit.agreement import agreements
from sightline.audit.panel import reseed, short
from sightline.audit.ranking import Look, Study
from sightline.cli import console
from sightline.cli.drawing import facts, named
from sightline.cli.error_log import Complaints
from sightline.cli.loading import gather, open_model
from sightline.cli.staged_output import Outbox, writing
from sightline.cli.tables import percent, score
from sightline.cli.target import find_class
from sightline.data.images import read_image
from sightline.errors import SightlineError, TargetError, UnsupportedModel
from sightline.recipe import text
from sightline.report.figure import Tile, panel
from sightline.types import Method

__all__ = ["Answer", "Question", "answer"]


@dataclass(frozen=True)
class Question:
    """What the user asked for."""

    paths: tuple[str, ...]
    models: tuple[str, ...]
    methods: tuple[str, ...] = ()
    target: str | None = None
    out: Path = Path("sightline-out")
    seed: int | None = None
    step: int | None = None
    classes: tuple[str, ...] = ()
    device: str = "auto"


@dataclass
class Answer:
    """What was found, as plain data."""

    images: list[dict[str, Any]] = field(default_factory=list)
    errors: Complaints = field(default_factory=Complaints)

    def json(self) -> dict[str, Any]:
        """Return everything for a script to read."""
        return {"images": self.images, "errors": self.errors, "version": __version__}

    def show(self) -> None:
        """Print a table per image, and where its picture is."""
        for image in self.images:
            console.show(_table(image), Text(f"picture: {console.plain(image['picture'])}"), "")


def answer(question: Question) -> Answer:
    """Do what was asked; a file that cannot be read is reported and the others are done."""
    methods = reseed(question.methods, question.seed)
    found = Answer()
    files = gather(question.paths, found.errors.add)
    if not files:
        return found
    with writing(question.out) as outbox:
        sides = _sides(question, methods)
        with console.progress(len(files) * sum(side.price for side in sides), "comparing") as advance:
            for path in files:
                try:
                    found.images.append(_compare(outbox, path, sides, found.errors, advance))
                except TargetError:
                    raise
                except SightlineError as error:
                    found.errors.add(path, error)
    return found


def _sides(question: Question, methods: Sequence[Method]) -> list[Study]:
    """Load the models; a method that only some of them can be explained with is left out for the others."""
    sides = []
    refused: dict[str, list[UnsupportedModel]] = {}
    for name in question.models:
        model = open_model(name, question.device, question.classes)
        kept = []
        for method in methods or reseed(short(model), question.seed):
            try:
                api.check_needs(method, model)
                kept.append(method)
            except UnsupportedModel as error:
                refused.setdefault(text(method), []).append(error)
        target = None if question.target is None else find_class(model, question.target)
        sides.append(Study(model, kept, target, question.step, name))
    for refusals in refused.values():
        if len(refusals) == len(sides):
            raise refusals[0]
        for refusal in refusals:
            console.note(f"left out: {refusal}")
    return sides


def _compare(
    outbox: Outbox, path: Path, sides: Sequence[Study], errors: Complaints, advance: console.Advance
) -> dict[str, Any]:
    """Look at one image with every model, and draw what was found."""
    image = read_image(path)
    looks = [(side, side.look(image, advance)) for side in sides]
    for side, seen in looks:
        for failure in seen.failures:
            if isinstance(failure.error, console.USAGE_ERRORS):
                raise failure.error
            errors.add(path, failure.error, f"{failure.recipe} on {side.name}")
    name = f"{outbox.subfolder(path.stem)}-compare.png"
    picture = outbox.png(name, _stack([_row(side, seen) for side, seen in looks]), {"image": path.name})
    maps = [(rated.map, seen.frame.box) for _, seen in looks for rated in seen.maps]
    names = [{"model": side.name, "recipe": rated.recipe} for side, seen in looks for rated in seen.maps]
    return {
        "path": str(path),
        "picture": str(picture),
        "models": [
            {"model": side.name, **named(seen), "maps": [facts(rated) for rated in seen.maps]} for side, seen in looks
        ],
        "agreement": {"maps": names, "spearman": agreements(maps)},
    }


def _row(side: Study, seen: Look) -> Image.Image:
    """Draw what one model sees, and its maps in the order they were asked for."""
    order = {text(method): place for place, method in enumerate(side.methods)}
    tiles = [
        Tile(rated.recipe, rated.map, f"insertion {score(rated.insertion)}  deletion {score(rated.deletion)}")
        for rated in sorted(seen.maps, key=lambda rated: order[rated.recipe])
    ]
    line = f"{seen.target.label}, {percent(seen.target.probability)}"
    return panel(seen.frame.picture, tiles, title=side.name, line=line)


def _stack(rows: Sequence[Image.Image]) -> Image.Image:
    """Put pictures below each other on white."""
    sheet = Image.new("RGB", (max(row.width for row in rows), sum(row.height for row in rows)), "white")
    upper = 0
    for row in rows:
        sheet.paste(row, (0, upper))
        upper += row.height
    return sheet


def _table(image: dict[str, Any]) -> Table:
    """Return the scores of every map, and how far each agrees with each."""
    table = Table(title=Text(console.plain(image["path"]), "bold"), title_justify="left", box=None, pad_edge=False)
    table.caption, table.caption_justify = "The numbered columns hold Spearman's correlation with that map.", "left"
    rows = [(model, rated) for model in image["models"] for rated in model["maps"]]
    for name in ("", "model", "explained", "map", "insertion", "deletion", "ins − del"):
        table.add_column(name, justify="left" if name in ("model", "explained", "map") else "right", overflow="fold")
    for place in range(len(rows)):
        table.add_column(str(place + 1), justify="right", no_wrap=True)
    for place, (model, rated) in enumerate(rows):
        table.add_row(
            str(place + 1),
            Text(console.plain(model["model"])),
            Text(f"{console.plain(model['label'])} {percent(model['probability'])}"),
            Text(rated["recipe"]),
            *(score(rated[name]) for name in ("insertion", "deletion", "ins_del")),
            *(_correlation(value) for value in image["agreement"]["spearman"][place]),
            style="dim" if rated["control"] else "",
        )
    return table


def _correlation(value: float) -> str:
    return "–" if value != value else f"{round(value, 2) + 0.0:.2f}".replace("-", "−")
