"""Rank the maps of images by what was measured on those images: which of these maps should I believe?"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sightline import api
from sightline.audit.explained_image import ExplainedImage, explain_image
from sightline.audit.panel import panel_of
from sightline.audit.scored_map import map_cost
from sightline.data.images import read_image
from sightline.errors import (
    USAGE_ERRORS,
    SightlineWarning,
    TargetError,
    UnsupportedMethod,
    UnsupportedModel,
)
from sightline.extras import require
from sightline.files import write_by_suffix
from sightline.models.adapter import Adapter
from sightline.models.families import adapt
from sightline.models.inputs import batches_of, is_batches
from sightline.progress import progress_bar
from sightline.types import Method

__all__ = ["Ranking", "rank", "rank_image", "single_images"]


@dataclass(frozen=True, eq=False, repr=False)
class Ranking(Sequence[ExplainedImage]):
    """The maps of each image, the most faithful first, with controls among them; plain data, no model inside.

    ``ranking[0]`` is the first image with all its maps. In a notebook the ranked panel shows itself.

    Attributes:
        model: what the model is called.
        images: one entry per image.
    """

    model: str
    images: tuple[ExplainedImage, ...]

    @property
    def best(self) -> list[str | None]:
        """Per image, the recipe to believe; None where nothing beats the controls."""
        return [image.verdict.best for image in self.images]

    @property
    def verdicts(self) -> list[str]:
        """Per image, one sentence with its reason."""
        return [image.verdict.sentence for image in self.images]

    def to_pandas(self) -> Any:
        """Return a data frame with one row per image and recipe."""
        pandas = require("pandas")
        return pandas.DataFrame([row for index, image in enumerate(self.images) for row in _rows(index, image)])

    def json(self) -> dict[str, Any]:
        """Return everything but the pictures, as plain data."""
        return {"model": self.model, "images": [{"name": image.name, **image.json()} for image in self.images]}

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the ranking: a page with every overlay (.html), or the numbers alone (.csv, .json)."""
        return write_by_suffix(
            path,
            {
                ".html": self._page,
                ".csv": lambda: str(self.to_pandas().to_csv(index=False)),
                ".json": lambda: json.dumps(self.json(), indent=2),
            },
            "a ranking",
        )

    def _page(self) -> str:
        from sightline.report.views import ranking_page

        return ranking_page(self)

    @overload
    def __getitem__(self, index: int) -> ExplainedImage: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[ExplainedImage]: ...

    def __getitem__(self, index: int | slice) -> ExplainedImage | Sequence[ExplainedImage]:
        return self.images[index]

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        count = len(self.images)
        best = ", ".join(str(recipe) for recipe in self.best[:3]) + (", …" if count > 3 else "")
        return f"Ranking({self.model}: {count} image{'s' * (count != 1)}; best: {best})"

    def _repr_html_(self) -> str:
        from sightline.report.views import ranking_html

        return ranking_html(self)


def rank(
    model: Any,
    images: Any,
    methods: Sequence[Any] | str | None = None,
    target: Any = None,
    *,
    seed: int | None = None,
    step: int | None = None,
    progress: bool = False,
) -> Ranking:
    """Explain images with several methods and rank the maps of each image by insertion minus deletion on that image.

    Controls that know nothing of the model are ranked with the default panel; a map is worth believing only where it
    beats them.

    Args:
        model: as for `explain`.
        images: as for `explain`.
        methods: recipes or built methods; by default a panel that suits the model, controls included.
        target: as for `explain`.
        seed: of every method that draws random numbers and leaves its seed at the default.
        step: pixels per step of insertion and deletion; by default 1/28 of the image, 57 passes per map.
        progress: show a progress bar on stderr.

    >>> import sightline
    >>> from sightline.data.shapes import Shapes
    >>> model = sightline.load("bundled/shapes-cnn")
    >>> images = model.normalise(Shapes(seed=1).draw(1).images)
    >>> sightline.rank(model, images, ["grad_cam", "random"]).best
    ['grad_cam']
    """
    adapter = adapt(model)
    panel = panel_of(adapter, methods, seed)
    named = methods is not None
    single = list(single_images(adapter, images))
    targets = _one_each(target, len(single))
    total = len(single) * sum(map_cost(method, adapter) for method in panel)
    with progress_bar(total, "ranking", enabled=progress) as advance:
        explained = [
            rank_image(
                adapter, batch, panel, each, named=named, photograph=photo, name=name, step=step, advance=advance
            )
            for (name, photo, batch), each in zip(single, targets, strict=True)
        ]
    return Ranking(adapter.name, tuple(explained))


def rank_image(
    model: Adapter, batch: Tensor, methods: Sequence[Method], target: Any = None, *, named: bool = True, **options: Any
) -> ExplainedImage:
    """Explain one image; stop at a named method that cannot work, leave out what the panel offered in vain."""
    image = explain_image(model, batch, methods, target, **options)
    for failure in image.failures:
        if named and isinstance(failure.error, USAGE_ERRORS):
            raise failure.error
        if isinstance(failure.error, UnsupportedMethod | UnsupportedModel):
            warnings.warn(f"left out {failure.recipe}: {failure.error}", SightlineWarning, stacklevel=2)
        elif not image.maps:
            raise failure.error
    return image


def single_images(model: Adapter, images: Any) -> Iterator[tuple[str, Image.Image | None, Tensor]]:
    """Yield a name, the photograph where there is one, and the prepared batch of one, for each image."""
    count = 0
    for batch in batches_of(images) if is_batches(images) else [images]:
        listed = batch if isinstance(batch, list | tuple) else [batch]
        for given in listed:
            name = Path(given).name if isinstance(given, str | Path) else ""
            photograph = _photograph(given)
            for row in api.as_batch(model, [given if photograph is None else photograph]).split(1):
                yield name or f"image {count}", photograph, row
                count += 1


def _photograph(given: Any) -> Image.Image | None:
    if isinstance(given, str | Path):
        return read_image(given)
    return given if isinstance(given, Image.Image) else None


def _one_each(target: Any, count: int) -> list[Any]:
    """Return the target of each image."""
    if isinstance(target, torch.Tensor | np.ndarray):
        target = target.tolist()
    if isinstance(target, list | tuple) and len(target) != 1:
        if len(target) != count:
            raise TargetError(f"got {len(target)} targets for {count} images; give one, or one per image")
        return list(target)
    if hasattr(target, "take"):
        return [target.take([row]) for row in range(count)]
    return [target[0] if isinstance(target, list | tuple) else target] * count


def _rows(index: int, image: ExplainedImage) -> Iterator[dict[str, Any]]:
    """Return the rows of one image in a data frame."""
    for scored in image.maps:
        yield {
            "image": index,
            "name": image.name,
            "target": image.target.index,
            "label": image.target.label,
            "probability": image.target.probability,
            "recipe": scored.recipe,
            "rank": scored.rank,
            "ins_del": scored.ins_del,
            "insertion": scored.insertion,
            "deletion": scored.deletion,
            "control": scored.control,
            "class_agnostic": scored.agnostic,
            "forward": scored.passes.forward,
            "backward": scored.passes.backward,
            "seconds": scored.seconds,
            "flags": "; ".join(scored.flags),
        }
