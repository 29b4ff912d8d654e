"""Images as users hold them, made into batches that a model can be given, and checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sightline.data.images import read_image
from sightline.errors import InputError

if TYPE_CHECKING:
    from sightline.models.adapter import Adapter

__all__ = ["as_batch", "batches_of", "check_batch", "check_range", "is_batches", "seen_pixels"]

# Pixels with the normalisation undone: 0 is black, 1 is white. No usual normalisation leaves an image without negative
# values and brighter than the first; none leaves one that is nowhere darker than black and brighter than the second,
# which is what normalising 0 to 255 without dividing does.
BRIGHTEST_WITHOUT_NEGATIVES = 5.0
BRIGHTEST = 100.0
ROUNDING = 0.01


def check_batch(images: Any) -> None:
    """Refuse what is no batch of finite floats of shape (batch, 3, height, width)."""
    if not isinstance(images, Tensor):
        raise InputError(f"got {type(images).__name__} as images; a (batch, 3, height, width) tensor is needed")
    if images.ndim != 4 or images.shape[1] != 3:
        hint = "; add a batch axis with images[None]" if images.ndim == 3 else ""
        raise InputError(f"got images of shape {tuple(images.shape)}; (batch, 3, height, width) is needed{hint}")
    if len(images) == 0:
        raise InputError("got a batch of no images; give at least one")
    if not images.is_floating_point():
        raise InputError(
            f"got {str(images.dtype).removeprefix('torch.')} images; normalised floats are needed: "
            "divide by 255 and call adapter.normalise, or give a PIL image"
        )
    if not torch.isfinite(images).all():
        raise InputError("the images hold NaN or infinite values; check how they were read and normalised")


def check_range(images: Tensor, pixels: Tensor, name: str) -> None:
    """Refuse pixel values of 0 to 255 that were given as normalised images.

    Args:
        images: as they were given.
        pixels: the same with the model's normalisation undone, so that 0 is black and 1 is white.
        name: of the model.
    """
    lowest, highest = images.flatten(1).amin(dim=1), images.flatten(1).amax(dim=1)
    darkest, brightest = pixels.flatten(1).amin(dim=1), pixels.flatten(1).amax(dim=1)
    raw = (lowest >= 0) & (brightest > BRIGHTEST_WITHOUT_NEGATIVES)
    not_divided = (darkest >= -ROUNDING) & (brightest > BRIGHTEST)
    wrong = raw | not_divided
    if wrong.any():
        raise InputError(
            f"got float images with values from {lowest[wrong].min().item():.4g} to {highest[wrong].max().item():.4g}; "
            f"{name} needs normalised ones: call adapter.normalise(images / 255), or, if the model itself takes 0 to "
            "255, say adapt(model, mean=(0, 0, 0), std=(1 / 255, 1 / 255, 1 / 255))"
        )


def is_batches(images: Any) -> bool:
    """Tell whether images come as an iterable of batches, such as a `DataLoader`, and not as one batch."""
    if isinstance(images, Tensor | np.ndarray | Image.Image | str | Path | list | tuple):
        return False
    return isinstance(images, Iterable)


def batches_of(images: Iterable[Any]) -> Iterator[Any]:
    """Yield the images of each batch; of a tuple, as data sets with labels give them, the first item."""
    empty = True
    for batch in images:
        empty = False
        if isinstance(batch, Mapping):
            raise InputError(
                f"got batches that are dictionaries with {', '.join(map(str, batch))}; give batches of images, "
                "for instance (batch['pixel_values'] for batch in loader)"
            )
        yield batch[0] if isinstance(batch, list | tuple) and isinstance(batch[0], Tensor | np.ndarray) else batch
    if empty:
        raise InputError("got an iterable without a single batch; give at least one image")


def as_batch(model: Adapter, images: Any) -> Tensor:
    """Return a batch that the model can be given.

    Normalised floats, tensor or array, are taken as they are; PIL images, paths and uint8 arrays of shape
    (height, width, 3), one or a list of them, go through the model's own preprocessing.
    """
    if isinstance(images, np.ndarray):
        images = _from_array(images)
    if isinstance(images, Tensor):
        with torch.inference_mode(False):
            return model.accept(images.clone() if images.is_inference() else images)
    given = list(images) if isinstance(images, list | tuple) else [images]
    if not given:
        raise InputError("got no images; give at least one")
    given = [_from_array(image) if isinstance(image, np.ndarray) else image for image in given]
    if all(isinstance(image, Tensor) for image in given):
        return as_batch(model, _stacked(given))
    if all(isinstance(image, list) for image in given):
        given = [image for several in given for image in several]
    if model.preprocess is None:
        raise InputError(
            f"{model.name} does not say how its images are prepared; give a normalised (batch, 3, height, "
            "width) tensor, or adapt(model, preprocess=…)"
        )
    opened = [read_image(image) if isinstance(image, str | Path) else image for image in given]
    for image in opened:
        if not isinstance(image, Image.Image):
            raise InputError(
                f"got {type(image).__name__} as an image; a tensor, a PIL image, a uint8 array or a path is needed"
            )
    return model.accept(_stacked([model.preprocess(image.convert("RGB")) for image in opened]))


def _from_array(array: np.ndarray[Any, Any]) -> Any:
    """Turn an array into what it stands for: uint8 pixels into PIL images, normalised floats into a tensor."""
    if array.dtype == np.uint8 and array.shape[-1:] in ((3,), (4,)) and array.ndim in (3, 4):
        return Image.fromarray(array) if array.ndim == 3 else [Image.fromarray(image) for image in array]
    if array.dtype == np.uint8 and array.ndim == 2:
        return Image.fromarray(array)
    if np.issubdtype(array.dtype, np.floating) and array.ndim >= 3 and array.shape[-3] == 3:
        return torch.from_numpy(np.ascontiguousarray(array))
    raise InputError(
        f"got an array of {array.dtype} and shape {array.shape}; give uint8 pixels of shape (height, width, 3), which "
        "the model's preprocessing prepares, or normalised floats of shape (batch, 3, height, width)"
    )


def _stacked(images: list[Tensor]) -> Tensor:
    """Stack images of one size into a batch."""
    sizes = list(dict.fromkeys(tuple(image.shape) for image in images))
    if len(sizes) > 1:
        raise InputError(
            f"got images of different sizes, {' and '.join(map(str, sizes[:2]))}; bring them to one size, or explain "
            "them one by one"
        )
    return torch.stack(images) if images[0].ndim == 3 else torch.cat(images)


def seen_pixels(model: Adapter, batch: Tensor) -> Tensor:
    """Return the pixels the model sees, shape (batch, 3, height, width), 0 to 255 as uint8 on the CPU.

    The model's own normalisation is undone; where it is not known and the values are colours already, they stay.
    """
    with torch.no_grad():
        raw = batch.detach().float().cpu()
        colours = model.preprocess is None and bool(raw.amin() >= 0) and bool(raw.amax() <= 1)
        return ((raw if colours else model.denormalise(raw)).clamp(0, 1) * 255).round().to(torch.uint8)
