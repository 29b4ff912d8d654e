"""Rank the maps of images by what was measured on those images: which of these maps should I believe?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from sightline import api
from sightline.audit.panel import ExplainedImage, ScoredMap, explain_image, map_cost, panel_of
from sightline.errors import (
    USAGE_ERRORS,
    TargetError,
    UnsupportedMethod,
    UnsupportedModel,
    warn,
)
from sightline.extras import require
from sightline.files import write_by_suffix
from sightline.models.adapter import Adapter
from sightline.models.inputs import Picture, adapt, batches_of, is_batches, open_picture
from sightline.progress import progress_bar
from sightline.types import Enlarge, Method, check_enlarge

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
        """Per image, the recipe to believe; None where nothing beats the controls, or where the fills disagree."""
        return [image.verdict.best for image in self.images]

    @property
    def verdicts(self) -> list[str]:
        """Per image, one sentence with its reason."""
        return [image.verdict.sentence for image in self.images]

    def to_pandas(self) -> Any:
        """Return a data frame with one row per image and recipe.

        ``score`` is the mean of insertion minus deletion over the fills that have room, ``low`` and ``high`` its
        interval over fills and noise draws, ``share`` the share of them under which the map beats the best control,
        and each ``fill_…`` column the score under one fill.
        """
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

    def explore(self, index: int = 0) -> Any:
        """Return the ranked panel of an image as a widget for notebooks: open a map, scrub, read values.

        Needs the extra ``notebook``; works in Jupyter, VS Code, Colab and marimo, and fetches nothing.
        """
        from sightline.report.views import explore_image

        return explore_image(self.images[index])

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
    fills: bool | None = None,
    enlarge: Enlarge | None = None,
    progress: bool = False,
) -> Ranking:
    """Explain images with several methods and rank the maps of each image by insertion minus deletion on that image.

    Controls that know nothing of the model are ranked with the default panel; a map is worth believing only where it
    beats them. Several maps are judged under several fills, a weak and a strong blur, zero, noise and, on transformers,
    dropping tokens, since one fill can favour a map for reasons of its own. The verdict is withheld where the first map
    does not beat the best control under each of them ("contested"), or where most fills leave the class recognisable
    ("no room").

    Args:
        model: as for `explain`.
        images: as for `explain`.
        methods: recipes or built methods; by default a panel that suits the model, controls included.
        target: as for `explain`.
        seed: of every method that draws random numbers and leaves its seed at the default.
        step: pixels per step of insertion and deletion; by default 1/28 of the image, 54 passes per map.
        fills: judge under several fills, at most as many passes again; by default where there are several methods.
        enlarge: how cells become pixels, as for `explain`.
        progress: show a progress bar on stderr.

    >>> import sightline
    >>> from sightline.data.shapes import Shapes
    >>> model = sightline.load("bundled/shapes-cnn")
    >>> images = model.normalise(Shapes(seed=1).draw(1).images)
    >>> sightline.rank(model, images, ["grad_cam", "random"]).best
    ['grad_cam']
    """
    if enlarge is not None:
        check_enlarge(enlarge)
    adapter = adapt(model)
    panel = panel_of(adapter, methods, seed)
    named = methods is not None
    single = list(single_images(adapter, images))
    targets = _one_each(target, len(single))
    several = len(panel) > 1 if fills is None else fills
    total = len(single) * sum(map_cost(method, adapter, fills=several) for method in panel)
    with progress_bar(total, "ranking", enabled=progress) as advance:
        explained = [
            rank_image(
                adapter,
                batch,
                panel,
                each,
                named=named,
                photograph=photo,
                name=name,
                step=step,
                fills=several,
                enlarge=enlarge,
                advance=advance,
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
            warn(f"left out {failure.recipe}: {failure.error}", stacklevel=2)
        elif not image.maps:
            raise failure.error
    return image


def single_images(model: Adapter, images: Any) -> Iterator[tuple[str, Picture | None, Tensor]]:
    """Yield a name, the photograph where there is one, and the prepared batch of one, for each image."""
    count = 0
    for batch in batches_of(images) if is_batches(images) else [images]:
        listed = batch if isinstance(batch, list | tuple) else [batch]
        for given in listed:
            name = Path(given).name if isinstance(given, str | Path) else ""
            photograph = _photograph(model, given)
            for row in api.as_batch(model, [given if photograph is None else photograph]).split(1):
                yield name or f"image {count}", photograph, row
                count += 1


def _photograph(model: Adapter, given: Any) -> Picture | None:
    if isinstance(given, str | Path):
        return open_picture(model, given)
    return given if isinstance(given, Picture) else None


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
            **_judged(scored),
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


def _judged(scored: ScoredMap) -> dict[str, Any]:
    """Return what a map is ranked by: its score, the interval, the share, and a column for each fill."""
    if scored.fills is None:
        return {"score": scored.score}
    low, high = scored.fills.interval
    columns = {f"fill_{fill}": value for fill, value in scored.fills.means.items()}
    return {"score": scored.score, "low": low, "high": high, "share": scored.share, **columns}
