"""The pictures of the experiments.

They come from the shared folder (``SIGHTLINE_SHARED``, by default ``../shared``), whose licences do not allow them to
be given away with the library; a bundled model is judged on the synthetic shapes instead, which need no folder.

============  =========================================================================================================
photographs   ImageNet photographs that ViT-Tiny gets right with p ≥ 0.5, in the table's order, class by class
pets          pet photographs with a mask and the animal in the frame, in the table's order, breed by breed
quads         2×2 quads of the photographs that ViT-Tiny gets right (40 of 160), once for each of their four classes;
              the mask is the cell
pet_quads     the same of pets, four breeds each; the mask is the animal in the cell
============  =========================================================================================================
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import sightline
from sightline.data.images import read_image
from sightline.data.labels_csv import LabelledImage, read_labels_csv
from sightline.data.masks import fit_mask, read_mask
from sightline.data.quads import Quad, Tile, quads, tiles
from sightline.data.shapes import Shapes
from sightline.errors import InputError

SHARED = Path(os.environ.get("SIGHTLINE_SHARED", "../shared"))
USUAL = {"photographs": 31, "pets": 56, "quads": 40, "pet_quads": 36}  # how many, unless --limit says otherwise
SURE = 0.5


@dataclass(frozen=True, eq=False)
class Shot:
    """One picture to be explained.

    Attributes:
        name: its own; several of one image are called image#0, image#1, …
        image: (3, height, width), normalised.
        label: the class to explain.
        mask: (height, width), where its evidence is, None where nobody knows.
        classes: all classes in the picture, for recipes with ``{classes}`` in them.
    """

    name: str
    image: Tensor
    label: int
    mask: Tensor | None = None
    classes: tuple[int, ...] = ()


def load_shots(
    kind: str, model: sightline.Adapter, limit: int | None = None, folder: Path = SHARED, shuffle: int | None = None
) -> list[Shot]:
    """Return the pictures of a set, at most `limit` images, of photographs and pets those a shuffle puts first."""
    count = USUAL[kind] if limit is None else limit
    if model.name.startswith("bundled/"):
        return list(_shapes(kind, model, count))
    reader: dict[str, Callable[[], Iterator[Shot]]] = {
        "photographs": lambda: _photographs(model, folder, shuffle),
        "pets": lambda: _pets(model, folder, shuffle),
        "quads": lambda: _cells(_quads(model, folder), objects=False),
        "pet_quads": lambda: _cells(_pet_quads(model, folder), objects=True),
    }
    return list(islice(reader[kind](), count * (4 if "quads" in kind else 1)))


def _photographs(model: sightline.Adapter, folder: Path, shuffle: int | None) -> Iterator[Shot]:
    for one in _ordered(read_labels_csv(folder / "data" / "imagenet-samples"), shuffle):
        if one.correct and (one.confidence or 0) >= SURE:
            yield Shot(one.name, _prepared(model, one), one.label)


def _pets(model: sightline.Adapter, folder: Path, shuffle: int | None) -> Iterator[Shot]:
    for one in _ordered(read_labels_csv(folder / "data" / "pets"), shuffle):
        mask = None if one.mask is None else _framed(model, one)
        if mask is not None and (mask == 1).any():
            yield Shot(one.name, _prepared(model, one), one.label, mask)


def _ordered(listed: list[LabelledImage], shuffle: int | None) -> list[LabelledImage]:
    """Keep the order of the table, which goes class by class, or mix it by a seed."""
    return listed if shuffle is None else random.Random(shuffle).sample(listed, len(listed))


def _quads(model: sightline.Adapter, folder: Path) -> Iterator[Quad]:
    known = [one for one in read_labels_csv(folder / "data" / "imagenet-samples") if one.correct]
    return quads(tiles(known), prepare=model.normalise)


def _pet_quads(model: sightline.Adapter, folder: Path) -> Iterator[Quad]:
    masked = [one for one in read_labels_csv(folder / "data" / "pets") if one.mask is not None]
    return quads(tiles(masked), distinct=True, prepare=model.normalise)


def _cells(found: Iterator[Quad], *, objects: bool) -> Iterator[Shot]:
    """Yield a quad once for each of its classes, the mask being its cell or the object in it."""
    for quad in found:
        masks = quad.objects if objects else quad.regions
        assert masks is not None
        for cell, (label, mask) in enumerate(zip(quad.classes, masks, strict=True)):
            yield Shot(f"{'+'.join(quad.names)}#{cell}", quad.image, label, mask, quad.classes)


def _shapes(kind: str, model: sightline.Adapter, count: int) -> Iterator[Shot]:
    """Yield synthetic pictures in place of any set."""
    batch = Shapes(seed=11, size=(model.input_size or (64, 64))[0]).draw(16 * count if "quads" in kind else count)
    masks = batch.evidence.to(torch.int8)
    labels: list[int] = batch.labels.tolist()
    if "quads" in kind:
        found = [
            Tile(image, label, f"{i:05d}", mask)
            for i, (image, label, mask) in enumerate(zip(batch.images, labels, masks, strict=True))
        ]
        side = batch.images.shape[-1]
        made = quads(found, side=side, distinct=True, limit=count, prepare=model.normalise)
        yield from _cells(made, objects=kind == "pet_quads")
        return
    for i, (image, label, mask) in enumerate(zip(model.normalise(batch.images), labels, masks, strict=True)):
        yield Shot(f"shapes-{i:05d}", image, label, mask if kind == "pets" else None)


def _prepared(model: sightline.Adapter, one: LabelledImage) -> Tensor:
    if model.preprocess is None:
        raise InputError(f"{model.name} does not say how its images are prepared; choose a model id that does")
    return model.preprocess(read_image(one.path))


def _framed(model: sightline.Adapter, one: LabelledImage) -> Tensor:
    """Return a mask in the frame that the model's preprocessing cuts out: a resize and a central crop."""
    steps = {type(step).__name__: getattr(step, "size", None) for step in getattr(model.preprocess, "transforms", ())}
    resize, crop = (_side(steps.get(name)) for name in ("Resize", "CenterCrop"))
    if resize is None or crop is None or one.mask is None:
        raise InputError(f"the preprocessing of {model.name} is no resize and central crop; masks cannot follow it")
    mask = read_mask(one.mask)
    return fit_mask(mask, image_size=(mask.shape[0], mask.shape[1]), resize=resize, crop=crop)


def _side(size: Any) -> int | None:
    return int(size[0]) if isinstance(size, list | tuple) else size
