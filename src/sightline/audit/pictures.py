"""Images to explain together with what is known of them: a file, or a sample of a data set with classes and masks."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sightline import api
from sightline.data.dataset import Dataset, Sample, open_dataset
from sightline.data.images import find_images
from sightline.data.mask_transform import transform_mask
from sightline.errors import InputError
from sightline.models.adapter import Adapter
from sightline.models.inputs import Picture, open_picture
from sightline.types import Logit

__all__ = ["ImageSource", "LabelledImage", "dataset_pictures", "image_files", "image_sources", "picture_targets"]


@dataclass(frozen=True, eq=False)
class LabelledImage:
    """One image, and what its data set knows of it.

    Attributes:
        name: what to call it.
        photograph: as stored, to be prepared as the model says; None where there are only pixels.
        pixels: (3, height, width) in 0..1 where the data set composes them, which are normalised and not resized.
        classes: that it shows, by number; empty where that is not known.
        masks: of its objects, each (height, width), where the data set has them.
    """

    name: str
    photograph: Picture | None = None
    pixels: Tensor | None = None
    classes: tuple[int, ...] = ()
    masks: tuple[Tensor, ...] = ()

    def batch(self, model: Adapter) -> Tensor:
        """Return the model's input, a batch of one."""
        return api.as_batch(model, self.photograph) if self.pixels is None else model.normalise(self.pixels[None])

    def masks_for(self, model: Adapter) -> tuple[Tensor, ...]:
        """Return the masks as the model sees the image: resized and cropped alike; none where that is not known."""
        if self.pixels is not None:
            return self.masks
        if model.preprocess is None:
            return ()
        return tuple(transform_mask(mask, model.preprocess) for mask in self.masks)


@dataclass(frozen=True, eq=False)
class ImageSource:
    """One image that is read when its turn comes.

    Attributes:
        path: of the file, or the name in the data set: what records and errors call it.
        name: what pictures and pages call it; different for each.
        stem: what the files written of it begin with.
        read: reads it as a model takes images.
    """

    path: str
    name: str
    stem: str
    read: Callable[[Adapter], LabelledImage]


def image_sources(
    paths: Sequence[str | PathLike[str]], data: str | Dataset | None = None, limit: int | None = None
) -> tuple[list[ImageSource], list[tuple[str, InputError]]]:
    """List the images of paths, folders and patterns, then those of a data set; return also the paths that name none.

    `limit` is how many of the data set.
    """
    files, errors = image_files(paths)
    names = Counter(path.name for path in files)
    sources = [_of_file(path, path.name if names[path.name] == 1 else str(path)) for path in files]
    if data is not None:
        dataset = open_dataset(data) if isinstance(data, str) else data
        sources += map(_of_picture, dataset_pictures(dataset, limit))
    return sources, errors


def image_files(paths: Sequence[str | PathLike[str]]) -> tuple[list[Path], list[tuple[str, InputError]]]:
    """List the images that paths, folders and patterns name, each once; return also those that name none, and why."""
    files: dict[Path, Path] = {}
    errors = []
    for path in [os.fspath(path) for path in paths]:
        try:
            for file in find_images(path):
                files.setdefault(file.resolve(), file)
        except InputError as error:
            errors.append((path, error))
    return list(files.values()), errors


def _of_file(path: Path, name: str) -> ImageSource:
    return ImageSource(str(path), name, path.stem, lambda model: LabelledImage(name, open_picture(model, path)))


def _of_picture(picture: LabelledImage) -> ImageSource:
    return ImageSource(picture.name, picture.name, picture.name, lambda _: picture)


def dataset_pictures(dataset: Dataset, limit: int | None = None) -> list[LabelledImage]:
    """Return the first pictures of a data set; a quad, which it lists once for each cell, comes once with four masks.

    >>> from sightline.data.dataset import open_dataset
    >>> first, _ = dataset_pictures(open_dataset("quads(of=shapes(count=8), side=64)"))
    >>> first.name, len(first.masks)
    ('quad-0000-top-left', 4)
    """
    found: list[LabelledImage] = []
    for sample in dataset:
        picture = _picture(sample)
        if found and _same_pixels(picture, found[-1]):
            found[-1] = replace(found[-1], masks=found[-1].masks + picture.masks)
        elif limit is not None and len(found) == limit:
            break
        else:
            found.append(picture)
    return found


def _picture(sample: Sample) -> LabelledImage:
    shown = sample.classes or (() if sample.label is None else (sample.label,))
    masks = () if sample.mask is None else (torch.as_tensor(sample.mask),)
    photograph = sample.image if sample.tensor is None else None
    return LabelledImage(sample.id, photograph, sample.tensor, tuple(dict.fromkeys(shown)), masks)


def _same_pixels(one: LabelledImage, other: LabelledImage) -> bool:
    return one.pixels is not None and other.pixels is not None and torch.equal(one.pixels, other.pixels)


def picture_targets(picture: LabelledImage, given: Sequence[Any] = (), model: Adapter | None = None) -> list[Any]:
    """Return what is explained of a picture: what is given, else the classes that it shows, else the predicted class.

    Where these are several classes each target knows all of them, for ``var(…, classes='picture')``. Of a segmentation
    or a detector they are labels, whose region or box is looked for.

    >>> picture_targets(LabelledImage("a", classes=(3, 5)))
    [Logit(index=(3,)), Logit(index=(5,))]
    >>> picture_targets(LabelledImage("a"), [None])
    [None]
    """
    wanted = list(given) or list(picture.classes)
    numbers = [one for one in wanted if isinstance(one, int)]
    shown = tuple(numbers) if len(numbers) > 1 else picture.classes
    if len(shown) < 2 or (model is not None and model.declared_output in ("dense", "boxes")):
        return wanted or [None]
    return [Logit((one,), classes=(shown,)) if isinstance(one, int) else one for one in wanted]
