"""The images of a report's gallery: maps from the store, laid over what the model saw where the data set is at hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from sightline.bench.store.store import read_maps
from sightline.bench.table import Table
from sightline.bench.unit import Manifest
from sightline.cli import console
from sightline.errors import SightlineError
from sightline.report.benchmark.gallery import Exhibit, spread

__all__ = ["Eye", "choose_metric", "exhibits", "see"]

_LIKED = ("ins_del", "insertion", "insertion_mda", "average_precision")
Numbers = Any


@dataclass(frozen=True, eq=False)
class Eye:
    """How a model sees images.

    Attributes:
        picture: from an image's id to the picture that the model is fed; None where it cannot be read.
        label: what the model calls a class.
    """

    picture: Callable[[str], Image.Image | None] = lambda image: None
    label: Callable[[int], str] = lambda index: f"class {index}"


def choose_metric(table: Table) -> str:
    """Return the metric that orders the gallery: a plain measure of faithfulness where one was run."""
    metrics = list(dict.fromkeys(line.metric for line in table.rows))
    liked = (metric for name in _LIKED for metric in metrics if metric.partition("(")[0] == name)
    return next(liked, metrics[0] if metrics else "")


def exhibits(store: str, rows: Any, table: Table, metric: str, count: int, eyes: Mapping[str, Eye]) -> list[Exhibit]:
    """Choose images for each model that `eyes` names, evenly from easy to hard among those whose maps were kept."""
    found: list[Exhibit] = []
    for model, eye in eyes.items():
        of_model = rows[rows["model"] == model]
        if maps := _maps(store, of_model):
            found += _hung(model, of_model, maps, table, metric, count, eye)
    return found


def _maps(store: str, rows: Any) -> dict[str, dict[str, Numbers]]:
    """Return image -> recipe -> map, of all units that kept some."""
    found: dict[str, dict[str, Numbers]] = {}
    for unit, recipe in rows[["unit", "recipe"]].drop_duplicates().itertuples(index=False):
        try:
            kept = read_maps(store, unit)
        except Exception as error:  # a damaged file costs its maps, not the report
            console.note(f"the maps of {recipe} in unit {unit[:8]} cannot be read ({type(error).__name__}); left out")
            continue
        for image, map in kept.items():
            values = np.asarray(map, dtype=np.float64)
            found.setdefault(image, {})[recipe] = values.reshape(values.shape[-2:])
    return found


def _hung(
    model: str, rows: Any, maps: dict[str, dict[str, Numbers]], table: Table, metric: str, count: int, eye: Eye
) -> list[Exhibit]:
    lines = [line for line in table.rows if line.model == model and line.metric == metric]
    controls = {line.recipe for line in lines if line.control}
    sign = -1 if lines and lines[0].direction == "lower" else 1
    judged = rows[(rows["metric"] == metric) & rows["image"].isin(list(maps))]
    methods = judged[~judged["recipe"].isin(controls)]
    ease = dict.fromkeys(maps, float("nan")) | (sign * methods.groupby("image")["value"].mean()).to_dict()
    facts = rows.drop_duplicates("image").set_index("image")
    scores = judged.set_index(["image", "recipe"])["value"]
    hung = []
    for image in spread(ease, count):
        hung.append(
            Exhibit(
                model=model,
                image=image,
                maps=maps[image],
                picture=eye.picture(image),
                caption=_caption(facts.loc[image], eye),
                scores=scores.loc[image].to_dict() if image in scores.index.get_level_values(0) else {},
                order=[line.recipe for line in lines],
            )
        )
    return hung


def _caption(row: Any, eye: Eye) -> str:
    """Say what the image shows and what was explained, where it is known."""
    label, target = (None if _missing(row[name]) else int(row[name]) for name in ("label", "target"))
    if target is None:
        return "" if label is None else f"shows {eye.label(label)}"
    if label is None:
        return f"explained: {eye.label(target)}"
    if label == target:
        return f"{eye.label(target)}, shown and explained"
    return f"shows {eye.label(label)}, explained: {eye.label(target)}"


def _missing(value: Any) -> bool:
    return bool(value is None or value != value or str(value) == "<NA>")


def see(manifest: Manifest | None, model: str) -> Eye:
    """Load a model's preprocessing and the data set; where that fails, maps are shown alone."""
    if manifest is None:
        return Eye()
    try:
        with console.waiting(f"loading {model}"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _seeing(manifest, model)
    except Exception as error:  # the model or the data may be on another machine; the numbers are not
        reason = str(error) if isinstance(error, SightlineError) else f"{type(error).__name__}: {error}"
        console.note(f"the gallery shows maps alone: {reason}")
        return Eye()


def _seeing(manifest: Manifest, model: str) -> Eye:
    from sightline.bench.images import open_images
    from sightline.bench.prepare import prepare
    from sightline.models import zoo

    config = manifest.config
    classes = config.classes if model.startswith("openclip/") else ()
    adapter = zoo.load(model, classes=list(classes) or None)
    data = open_images(config.dataset, config.base)

    def picture(image: str) -> Image.Image | None:
        try:
            prepared, _ = prepare(adapter, data.read(image), config.resize)
            values = adapter.denormalise(prepared.float().cpu()).clamp(0, 1) * 255
        except SightlineError as error:
            console.note(f"{image} is shown without its photograph: {error}")
            return None
        return Image.fromarray(values.round().byte().permute(1, 2, 0).numpy())

    return Eye(picture, adapter.label)
