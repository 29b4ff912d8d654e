"""Load the images of the gallery: maps from the store, photographs from the data set, labels from the model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from sightline.bench.store.store import read_maps_and_enlarge
from sightline.errors import SightlineError, warn
from sightline.report.benchmark.gallery import GalleryImage, choose_images
from sightline.report.figure import Numbers

if TYPE_CHECKING:
    from sightline.bench.tables.table import Table
    from sightline.bench.unit import Manifest

__all__ = ["ModelView", "gallery_images", "gallery_metric", "load_view"]

_PREFERRED = ("ins_del", "insertion", "insertion_mda", "average_precision")
SHARP = 256  # pixels of the longer side at which cells are drawn as squares
Maps = dict[str, dict[str, Numbers]]  # image -> recipe -> map


@dataclass(frozen=True, eq=False)
class ModelView:
    """How a model sees images: its preprocessing and its labels.

    Attributes:
        picture: from an image's id to the pixels that the model is given; None where the image cannot be read.
        label: from a class index to its label.
    """

    picture: Callable[[str], Image.Image | None] = lambda image: None
    label: Callable[[int], str] = lambda index: f"class {index}"


def load_view(manifest: Manifest | None, model: str) -> ModelView:
    """Load a model's preprocessing and the data set of a run; where that fails, warn and show maps alone."""
    if manifest is None:
        return ModelView()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _load_view(manifest, model)
    except Exception as error:  # the model or the data may be on another machine; the numbers are not
        reason = str(error) if isinstance(error, SightlineError) else f"{type(error).__name__}: {error}"
        _warn(f"the gallery shows maps alone: {reason}")
        return ModelView()


def _load_view(manifest: Manifest, model: str) -> ModelView:
    from sightline.api.prepare import prepare
    from sightline.bench.images import open_images
    from sightline.models import zoo

    config = manifest.config
    classes = config.classes if model.startswith("openclip/") else ()
    adapter = zoo.load(model, classes=list(classes) or None)
    dataset = open_images(config.dataset, config.base)

    def picture(image: str) -> Image.Image | None:
        try:
            pixels, _ = prepare(adapter, dataset.read(image), config.resize)
            values = adapter.denormalise(pixels.float().cpu()).clamp(0, 1) * 255
        except SightlineError as error:
            _warn(f"{image} is shown without its photograph: {error}")
            return None
        return Image.fromarray(values.round().byte().permute(1, 2, 0).numpy())

    return ModelView(picture, adapter.label)


def gallery_metric(table: Table) -> str:
    """Return the metric that orders the gallery: a plain measure of faithfulness where one was run."""
    metrics = list(dict.fromkeys(row.metric for row in table.rows))
    preferred = (metric for name in _PREFERRED for metric in metrics if metric.partition("(")[0] == name)
    return next(preferred, metrics[0] if metrics else "")


def gallery_images(
    store: str, rows: Any, table: Table, metric: str, count: int, views: Mapping[str, ModelView]
) -> list[GalleryImage]:
    """Choose images for each model of `views`, evenly from easy to hard among those whose maps were kept."""
    images: list[GalleryImage] = []
    for model, view in views.items():
        of_model = rows[rows["model"] == model]
        if maps := _read_maps(store, of_model):
            images += _model_images(model, of_model, maps, table, metric, count, view)
    return images


def _read_maps(store: str, rows: Any) -> Maps:
    """Return image -> recipe -> map, of all units that kept maps."""
    maps: Maps = {}
    for unit, recipe in rows[["unit", "recipe"]].drop_duplicates().itertuples(index=False):
        try:
            of_unit, enlarge = read_maps_and_enlarge(store, unit)
        except Exception as error:  # a damaged file costs its maps, not the report
            _warn(f"the maps of {recipe} in unit {unit[:8]} cannot be read ({type(error).__name__}); left out")
            continue
        for image, map in of_unit.items():
            values = np.asarray(map, dtype=np.float64)
            values = values.reshape(values.shape[-2:])
            maps.setdefault(image, {})[recipe] = _in_squares(values) if enlarge == "nearest" else values
    return maps


def _in_squares(values: Numbers) -> Numbers:
    """Draw every cell as a square of pixels, so that a picture of the map keeps its edges."""
    side = max(1, -(-SHARP // max(values.shape)))
    return np.kron(values, np.ones((side, side)))


def _model_images(
    model: str, rows: Any, maps: Maps, table: Table, metric: str, count: int, view: ModelView
) -> list[GalleryImage]:
    ranked = [row for row in table.rows if row.model == model and row.metric == metric]
    controls = {row.recipe for row in ranked if row.control}
    sign = -1 if ranked and ranked[0].direction == "lower" else 1
    scored = rows[(rows["metric"] == metric) & rows["image"].isin(list(maps))]
    methods = scored[~scored["recipe"].isin(controls)]
    means = dict.fromkeys(maps, float("nan")) | (sign * methods.groupby("image")["value"].mean()).to_dict()
    first_rows = rows.drop_duplicates("image").set_index("image")
    scores = scored.set_index(["image", "recipe"])["value"]
    return [
        GalleryImage(
            model=model,
            image=image,
            maps=maps[image],
            picture=view.picture(image),
            caption=_caption(first_rows.loc[image], view),
            scores=scores.loc[image].to_dict() if image in scores.index.get_level_values(0) else {},
            order=[row.recipe for row in ranked],
        )
        for image in choose_images(means, count)
    ]


def _caption(row: Any, view: ModelView) -> str:
    """Say what the image shows and which class was explained, where it is known."""
    label, target = (None if _is_missing(row[name]) else int(row[name]) for name in ("label", "target"))
    if target is None:
        return "" if label is None else f"shows {view.label(label)}"
    if label is None:
        return f"explained: {view.label(target)}"
    if label == target:
        return f"{view.label(target)}, shown and explained"
    return f"shows {view.label(label)}, explained: {view.label(target)}"


def _is_missing(value: Any) -> bool:
    return bool(value is None or value != value or str(value) == "<NA>")


def _warn(message: str) -> None:
    warn(message, stacklevel=3)
