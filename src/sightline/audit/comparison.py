"""Compare models, methods and targets: their maps side by side, with scores, and how far they agree."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from sightline import api
from sightline.audit.agreement import agreements
from sightline.audit.panel import ExplainedImage, ScoredMap, map_cost, picture_targets, reseed, short
from sightline.audit.ranking import rank_image, single_images
from sightline.data.dataset import Dataset, dataset_sources
from sightline.errors import InputError, UnsupportedMethod, UnsupportedModel, warn
from sightline.extras import require
from sightline.files import write_by_suffix
from sightline.models.adapter import Adapter
from sightline.models.inputs import Picture, adapt, prepare
from sightline.progress import Advance, progress_bar
from sightline.recipe import text
from sightline.types import Enlarge, Method, check_enlarge

__all__ = ["ComparedImage", "Comparison", "Side", "compare", "compare_image", "sides_of"]


@dataclass(frozen=True, eq=False)
class Side:
    """A model of a comparison, and the methods it is explained with."""

    name: str
    model: Adapter
    methods: tuple[Method, ...]

    @property
    def cost(self) -> float:
        """What one image and one target cost, in forward passes; an estimate, for the time left."""
        return sum(map_cost(method, self.model, fills=False) for method in self.methods)


@dataclass(frozen=True, eq=False)
class ComparedImage:
    """One image as several models see it.

    Attributes:
        name: what to call the image.
        views: the name of a model and what it makes of the image, one entry per model and target.
    """

    name: str
    views: tuple[tuple[str, ExplainedImage], ...]

    @property
    def maps(self) -> list[tuple[str, ExplainedImage, ScoredMap]]:
        """Every map with the name of its model and what that explains, in the order they were asked for."""
        return [(name, explained, scored) for name, explained in self.views for scored in explained.maps]

    @property
    def agreement(self) -> list[list[float]]:
        """Spearman's rank correlation of every two maps, over the part of the image that both models see."""
        return agreements([(scored.map, explained.view.box) for _, explained, scored in self.maps])

    def json(self) -> dict[str, Any]:
        """Return everything but the maps, as plain data."""
        names = [{"model": name, "label": of.target.label, "recipe": scored.recipe} for name, of, scored in self.maps]
        models = [
            {"model": name, **explained.target_json(), "maps": [scored.json() for scored in explained.maps]}
            for name, explained in self.views
        ]
        return {"models": models, "agreement": {"maps": names, "spearman": self.agreement}}


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Maps over models, methods and targets, and how far they agree; plain data, no model inside."""

    images: tuple[ComparedImage, ...]

    @property
    def agreement(self) -> list[list[list[float]]]:
        """Per image, Spearman's rank correlation of every two maps."""
        return [image.agreement for image in self.images]

    def to_pandas(self) -> Any:
        """Return a data frame with one row per image, model, target and recipe."""
        pandas = require("pandas")
        return pandas.DataFrame([row for index, image in enumerate(self.images) for row in _rows(index, image)])

    def json(self) -> dict[str, Any]:
        """Return everything but the maps, as plain data."""
        return {"images": [{"name": image.name, **image.json()} for image in self.images]}

    def save(self, path: str | PathLike[str], index: int = 0) -> Path:
        """Write the picture of one image (.png), all of them on a page (.html), or the numbers (.csv, .json)."""
        from sightline.report.views import comparison_page, comparison_picture, png_bytes

        return write_by_suffix(
            path,
            {
                ".png": lambda: png_bytes(comparison_picture(self.images[index])),
                ".html": lambda: comparison_page(self),
                ".csv": lambda: str(self.to_pandas().to_csv(index=False)),
                ".json": lambda: json.dumps(self.json(), indent=2),
            },
            "a comparison",
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> ComparedImage:
        return self.images[index]

    def __repr__(self) -> str:
        count = len(self.images)
        models = ", ".join(dict.fromkeys(name for image in self.images for name, _ in image.views))
        maps = len(self.images[0].maps) if self.images else 0
        return f"Comparison({models}: {count} image{'s' * (count != 1)}, {maps} maps each)"

    def _repr_html_(self) -> str:
        from sightline.report.views import comparison_html

        return comparison_html(self)


def compare(
    models: Any,
    images: Any,
    methods: Sequence[Any] | str | None = None,
    targets: Sequence[Any] | None = None,
    *,
    seed: int | None = None,
    step: int | None = None,
    enlarge: Enlarge | None = None,
    progress: bool = False,
) -> Comparison:
    """Explain images with every model, method and target, score each map, and measure how far the maps agree.

    Args:
        models: one model as for `explain`, a list of them, or a dictionary from names to them.
        images: as for `explain`; paths and PIL images where the models are prepared differently. Or a data set, as
            `sightline.data.open_dataset` returns it, such as quads or a folder with labels.
        methods: recipes or built methods; one that only some models can be explained with is left out for the others.
        targets: what to explain, each for every model and method; None for each model's predicted class, or for the
            classes that the pictures of a data set show.
        seed: of every method that draws random numbers and leaves its seed at the default.
        step: pixels per step of insertion and deletion.
        enlarge: how cells become pixels, as for `explain`.
        progress: show a progress bar on stderr.

    >>> import sightline
    >>> from sightline.data.shapes import Shapes
    >>> model = sightline.load("bundled/shapes-cnn")
    >>> images = model.normalise(Shapes(seed=1).draw(1).images)
    >>> len(sightline.compare(model, images, ["grad_cam", "ixg"], targets=["star", "circle"])[0].maps)
    4
    """
    named = [methods] if isinstance(methods, str) else methods
    sides = sides_of(_named_models(models), None if named is None else reseed(named, seed), seed)
    if enlarge is not None:
        check_enlarge(enlarge)
    listed = list(_listed(sides, images, targets))
    total = sum(side.cost for side in sides) * sum(len(wanted) for *_, wanted in listed)
    compared = []
    with progress_bar(total, "comparing", enabled=progress) as advance:
        for name, batches, wanted in listed:
            compared.append(compare_image(name, batches, wanted, step=step, enlarge=enlarge, advance=advance))
    return Comparison(tuple(compared))


Prepared = tuple[Side, Picture | None, Tensor]


def _listed(sides: Sequence[Side], images: Any, targets: Any) -> Iterator[tuple[str, list[Prepared], list[Any]]]:
    """Yield the name of each image, what each model takes of it, and what is explained of it."""
    given = list(targets) if isinstance(targets, list | tuple) else [targets]
    if isinstance(images, Dataset):
        for source in dataset_sources(images):
            prepared = [(side, *prepare(side.model, source)) for side in sides]
            yield source.name, prepared, picture_targets(source, () if targets is None else given, sides[0].model)
        return
    for of_image in zip(*(single_images(side.model, images) for side in sides), strict=True):
        yield of_image[0][0], [(side, *row[1:]) for side, row in zip(sides, of_image, strict=True)], given


def sides_of(models: Mapping[str, Any], methods: Sequence[Method] | None, seed: int | None = None) -> list[Side]:
    """Pair models with methods; a method that only some of them can be explained with is left out for the others."""
    sides = []
    refused: dict[str, list[UnsupportedMethod | UnsupportedModel]] = {}
    for name, given in models.items():
        model = adapt(given)
        kept = []
        for method in methods or reseed(short(model), seed):
            try:
                api.check_needs(method, model)
                method.cost(model)  # an operator that cannot work on this model has none
                kept.append(method)
            except (UnsupportedMethod, UnsupportedModel) as error:
                refused.setdefault(text(method), []).append(error)
        sides.append(Side(name, model, tuple(kept)))
    for refusals in refused.values():
        if len(refusals) == len(sides):
            raise refusals[0]
        for refusal in refusals:
            warn(f"left out: {refusal}", stacklevel=2)
    return sides


def compare_image(
    name: str,
    prepared: Sequence[Prepared],
    targets: Sequence[Any] = (None,),
    *,
    step: int | None = None,
    enlarge: Enlarge | None = None,
    advance: Advance | None = None,
) -> ComparedImage:
    """Explain one image with every model, in the order the methods were asked for."""
    views = []
    for side, photograph, batch in prepared:
        order = {text(method): position for position, method in enumerate(side.methods)}
        for target in targets:
            explained = rank_image(
                side.model,
                batch,
                side.methods,
                target,
                photograph=photograph,
                name=name,
                step=step,
                fills=False,
                enlarge=enlarge,
                advance=advance,
            )
            maps = tuple(sorted(explained.maps, key=lambda scored: order[scored.recipe]))
            views.append((side.name, replace(explained, maps=maps)))
    return ComparedImage(name, tuple(views))


def _named_models(models: Any) -> dict[str, Any]:
    if isinstance(models, Mapping):
        return dict(models)
    adapters = [adapt(model) for model in (models if isinstance(models, list | tuple) else [models])]
    if not adapters:
        raise InputError("got no model to compare; give one at least")
    names = [adapter.name for adapter in adapters]
    return {
        name if names.count(name) == 1 else f"{name} ({index})": adapter
        for index, (name, adapter) in enumerate(zip(names, adapters, strict=True), 1)
    }


def _rows(index: int, image: ComparedImage) -> Iterator[dict[str, Any]]:
    """Return the rows of one image in a data frame."""
    for model, explained, scored in image.maps:
        yield {
            "image": index,
            "name": image.name,
            "model": model,
            "target": explained.target.index,
            "label": explained.target.label,
            "probability": explained.target.probability,
            "recipe": scored.recipe,
            "ins_del": scored.ins_del,
            "insertion": scored.insertion,
            "deletion": scored.deletion,
            "forward": scored.passes.forward,
            "backward": scored.passes.backward,
            "seconds": scored.seconds,
            "flags": "; ".join(scored.flags),
        }
