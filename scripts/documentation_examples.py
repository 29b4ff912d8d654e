"""Run one example for every name in the registries on the bundled models, and draw what comes out.

`run_all` shares the work among the processes of `workers`, one per core.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing.pool import Pool
from pathlib import Path

import torch
from PIL import Image

import sightline
from sightline.data.dataset import open_dataset
from sightline.data.shapes import Batch, Shapes
from sightline.errors import SightlineError, SightlineWarning
from sightline.models.inputs import as_picture
from sightline.recipe import example
from sightline.registry import METHODS, METRICS, OPERATORS, Spec
from sightline.report.layout import Tile, panel

__all__ = ["Example", "dataset_picture", "metric_example", "recipe_of", "run_all", "shown_example", "workers"]

MODELS = ("bundled/shapes-vit", "bundled/shapes-cnn")
# Where the defaults take thousands of passes, or an operator does not go with input times gradient.
RECIPES = {
    "d_rise": "d_rise(samples=500)",
    "extremal_perturbation": "extremal_perturbation(steps=40)",
    "finer_cam": "finer_cam(grad_cam)",
    "guided_ig": "guided_ig(steps=50)",
    "full_grad_plus": "full_grad_plus(ixg)",
    "is_cam": "is_cam(samples=3)",
    "kernel_shap": "kernel_shap(samples=300)",
    "lime": "lime(samples=300)",
    "mda": "mda(seed=caap)",
    "pami": "pami(segments=(('slic', 30),), samples=2)",
    "refine_cam": "refine_cam(layer_cam)",
    "rise": "rise(samples=800)",
    "shapley_sampling": "shapley_sampling(samples=5)",
    "sobol": "sobol(samples=8)",
    "ss_cam": "ss_cam(samples=3)",
    "var": "var(caap, classes='top3')",
}
JUDGED = ("plus(libra(ixg))", "rollout", "random")  # three maps that every metric scores
SLOW = frozenset({"mda"})  # shown on the first model alone
SEED = 1
INDEX = 0


@dataclass(frozen=True)
class Example:
    """What an example gave.

    Attributes:
        recipe: what was run.
        lines: what it printed, a line for each model or map.
        picture: the file that was drawn; None where neither bundled model offers what it needs.
    """

    recipe: str
    lines: tuple[str, ...]
    picture: Path | None


@cache
def batch() -> Batch:
    """Return the drawn picture that all examples explain."""
    return Shapes(seed=SEED).draw(1, start=INDEX)


@cache
def model(name: str) -> sightline.Adapter:
    """Return a bundled model, loaded once."""
    return sightline.load(name)


def recipe_of(spec: Spec) -> str:
    """Return the recipe that the page of a method, operator or metric runs."""
    return RECIPES.get(spec.name) or example(spec)


@cache
def explained(name: str, recipe: str) -> sightline.Attribution | None:
    """Explain the drawn picture; None where the model does not offer what the recipe needs."""
    adapter = model(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SightlineWarning)
        try:
            return sightline.explain(adapter, adapter.normalise(batch().images), recipe, target=batch().labels)
        except SightlineError:
            return None


def _refusal(recipe: str) -> str:
    """Return the sentence with which the first bundled model refuses a recipe."""
    adapter = model(MODELS[0])
    try:
        sightline.explain(adapter, adapter.normalise(batch().images), recipe, target=batch().labels)
    except SightlineError as error:
        return str(error)
    return ""


def shown_example(spec: Spec, folder: Path) -> Example:
    """Run a method or operator on both bundled models and draw the maps side by side.

    Where neither offers what it needs, the example is the sentence that says so.
    """
    recipe = recipe_of(spec)
    models = MODELS[:1] if spec.name in SLOW else MODELS
    given = {name: attribution for name in models if (attribution := explained(name, recipe)) is not None}
    if not given:
        return Example(recipe, (_refusal(recipe),), None)
    tiles = [_tile(name, attribution) for name, attribution in given.items()]
    lines = tuple(f"{name}: {attribution}" for name, attribution in given.items())
    return Example(recipe, lines, _drawn(tiles, recipe, folder / f"{spec.name}.webp"))


def metric_example(spec: Spec, folder: Path, scores: Mapping[str, Mapping[str, float]]) -> Example:
    """Draw three maps of one picture with their scores by a metric; `scores` has those of each map by all metrics."""
    tiles, lines = [], []
    recipe = recipe_of(spec)
    for method in JUDGED:
        score = scores[method][recipe]
        attribution = explained(MODELS[0], method)
        assert attribution is not None
        tiles.append(Tile(method, _values(attribution), f"{spec.name} {score:.3g}"))
        lines.append(f"{method}: {score:.4g}")
    return Example(recipe, tuple(lines), _drawn(tiles, f"{spec.name} of three maps", folder / f"{spec.name}.webp"))


def scores_of(method: str) -> dict[str, float]:
    """Score a map by all metrics at once: they share their model passes."""
    adapter = model(MODELS[0])
    attribution = explained(MODELS[0], method)
    assert attribution is not None
    recipes = [recipe_of(METRICS[name]) for name in METRICS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        images, masks = adapter.normalise(batch().images), batch().evidence.to(torch.int8)
        scores = sightline.evaluate(adapter, images, attribution, recipes, masks=masks)
    return {recipe: float(scores[recipe][0]) for recipe in recipes}


def dataset_picture(name: str, folder: Path) -> Path | None:
    """Draw the first images of a data set that is drawn by code; None for sets that lie in files."""
    drawn = {"shapes": "shapes(count=5, seed=1)", "quads": "quads(of=shapes(count=20, seed=1))"}
    if name not in drawn:
        return None
    samples = list(open_dataset(drawn[name]))[:5]
    side = 128
    sheet = Image.new("RGB", (len(samples) * (side + 8) - 8, side), "white")
    for index, sample in enumerate(samples):
        sheet.paste(sample.image.convert("RGB").resize((side, side), Image.Resampling.BICUBIC), (index * (side + 8), 0))
    return _saved(sheet, folder / f"dataset_{name}.webp")


def _tile(name: str, attribution: sightline.Attribution) -> Tile:
    passes = attribution.passes
    cost = f"{passes.forward:.3g} forward, {passes.backward:.3g} backward"
    return Tile(name, _values(attribution), cost)


def _values(attribution: sightline.Attribution):  # type: ignore[no-untyped-def]
    return attribution.pixels()[0].detach().float().cpu().numpy()


def _drawn(tiles: Sequence[Tile], title: str, path: Path) -> Path:
    image = as_picture((batch().images[0] * 255).round().byte()).resize((168, 168), Image.Resampling.BICUBIC)
    return _saved(panel(image, tiles, title=title, width=168, scale=1), path)


def _saved(picture: Image.Image, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, format="WEBP", quality=90, method=2)
    return path


@contextmanager
def workers() -> Iterator[Pool]:
    """Provide one process per core, of one thread each: the bundled models, loaded before they part, are small."""
    torch.set_num_threads(1)
    for name in MODELS:
        model(name)
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    with context.Pool(os.cpu_count(), initializer=partial(torch.set_num_threads, 1)) as pool:
        yield pool


def run_all(pool: Pool, folder: Path) -> dict[tuple[str, str], Example]:
    """Run the examples of all methods, operators and metrics, and return what each gave, by kind and name."""
    scoring = {method: pool.apply_async(scores_of, (method,)) for method in JUDGED}
    shown = {
        (kind, name): pool.apply_async(_shown, (kind, name, folder / kind))
        for kind, registry in (("methods", METHODS), ("operators", OPERATORS))
        for name in sorted(registry, key=lambda name: name not in RECIPES)  # the long ones first
    }
    scores = {method: result.get() for method, result in scoring.items()}
    shown |= {("metrics", name): pool.apply_async(_scored, (name, folder / "metrics", scores)) for name in METRICS}
    return {key: result.get() for key, result in shown.items()}


def _shown(kind: str, name: str, folder: Path) -> Example:
    return shown_example((METHODS if kind == "methods" else OPERATORS)[name], folder)


def _scored(name: str, folder: Path, scores: Mapping[str, Mapping[str, float]]) -> Example:
    return metric_example(METRICS[name], folder, scores)


if __name__ == "__main__":
    with workers() as pool:
        for example in run_all(pool, Path("docs/generated/pictures")).values():
            print(example)
