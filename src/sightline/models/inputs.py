"""What users give, made into what methods take: a model into its adapter, images into a batch; and what a model sees.

A family is a function ``recognise(model, facts) -> Adapter | None``. The built-in ones are tried in order, after those
that `register_family` added; the first adapter returned is used. A module that no family recognises is searched for a
transformer inside it that some family does; failing that, it is a generic convolutional network if it has convolutions,
else opaque.

A map is laid over the pixels that the model saw, never over the whole of a photograph.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.data.bands import bands_of, read_bands, scaled_bands
from sightline.data.images import ImageSource, read_image
from sightline.errors import InputError, UnsupportedModel, warn
from sightline.models.adapter import Adapter
from sightline.models.blackbox import BlackBox, Opaque
from sightline.models.cnn.generic import recognise_generic
from sightline.models.signature import COLOURS
from sightline.models.vit.adapter import VisionTransformer
from sightline.models.vit.wrapped import WrappedTransformer

__all__ = [
    "Bands",
    "Box",
    "CalledBy",
    "Picture",
    "Recognise",
    "View",
    "adapt",
    "as_batch",
    "as_picture",
    "batches_of",
    "is_batches",
    "open_picture",
    "prepare",
    "register_family",
    "seen_pixels",
    "view_of",
]

# ---- a model --------------------------------------------------------------------------------------------------------

Recognise = Callable[[nn.Module, dict[str, Any]], Adapter | None]
BUILT_IN = (
    "vit.timm",
    "vit.torchvision",
    "vision_language.adapter",
    "vit.transformers",
    "vit.siglip2",
    "vit.openclip",
    "bcos",
    "cnn.families",
    "tasks.detectors",
)
_registered: list[Recognise] = []


def register_family(recognise: Recognise) -> Recognise:
    """Add a family of your own; it is tried before the built-in ones."""
    _registered.insert(0, recognise)
    return recognise


def adapt(model: Any, **facts: Any) -> Adapter:
    """Return the adapter of an `nn.Module` or of a callable images -> logits; an adapter is returned as it is.

    `facts` (name, labels, preprocess, mean, std, input_size, batch, output, link) say more than the model itself does:
    ``output="sigmoid"`` that several labels may be true at once, ``"value"`` that it is a regression;
    ``link="identity"`` that a function already returns probabilities. ``forward`` is how the model is called where it
    needs more than images: ``adapt(model, forward=lambda model, images: model(images, age))``. A vision-language model
    is given its ``processor`` and a ``prompt``, and perhaps the ``answer`` that is explained.
    """
    forward = facts.pop("forward", None)
    if forward is not None:
        model = _with_forward(model, forward, facts)
    if isinstance(model, Adapter):
        return model.with_facts(**facts) if facts else model
    if isinstance(model, nn.Module):
        return _recognise(_unwrap(model), facts)
    if callable(model):
        facts.setdefault("name", getattr(model, "__name__", "") or type(model).__name__)
        return BlackBox(model, **facts)
    raise UnsupportedModel(
        f"got {type(model).__name__} as a model; an nn.Module, an adapter or a function images -> logits is needed"
    )


class CalledBy(nn.Module):
    """A module that is called by a function of the user's, (module, images) -> output."""

    def __init__(self, model: nn.Module, call: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.model = model
        self.call = call
        self.training = model.training

    def forward(self, images: Tensor) -> Any:
        return self.call(self.model, images)


def _with_forward(model: Any, forward: Any, facts: dict[str, Any]) -> CalledBy:
    if not isinstance(model, nn.Module) or not callable(forward):
        raise UnsupportedModel(
            f"got {type(model).__name__} with forward={type(forward).__name__}; an nn.Module and a function "
            "(model, images) -> logits are needed"
        )
    facts.setdefault("name", type(model).__name__)
    return CalledBy(model, forward)


def _unwrap(model: nn.Module) -> nn.Module:
    if hasattr(model, "_orig_mod"):  # torch.compile's wrapper: hooks inside a compiled graph would not run
        warn("the model is compiled; sightline explains the original module inside", stacklevel=4)
        return _unwrap(cast(nn.Module, model._orig_mod))
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return _unwrap(model.module)
    return model


def _families() -> Iterator[Recognise]:
    yield from _registered
    for name in BUILT_IN:
        yield importlib.import_module(f"sightline.models.{name}").recognise


def _recognise(model: nn.Module, facts: dict[str, Any]) -> Adapter:
    for recognise in _families():
        if (adapter := recognise(model, facts)) is not None:
            return adapter
    return _inside(model, facts) or recognise_generic(model, facts) or Opaque(model, **facts)


def _inside(model: nn.Module, facts: dict[str, Any]) -> Adapter | None:
    """Look for the one transformer that a user's own module is built around."""
    for module in model.modules():
        if module is model:
            continue
        for recognise in _families():
            adapter = recognise(module, {})
            if isinstance(adapter, VisionTransformer):
                return WrappedTransformer(model, adapter, **facts)
    return None


# ---- images ----------------------------------------------------------------------------------------------------------


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
    (height, width, 3), one or a list of them, go through the model's own preprocessing. For a model of other bands than
    colours, files and 8 or 16 bit arrays of shape (height, width, band) are resized to its size and normalised.
    """
    if isinstance(images, np.ndarray):
        images = _from_array(images, model.image_channels)
    if isinstance(images, Tensor):
        with torch.inference_mode(False):
            return model.accept(images.clone() if images.is_inference() else images)
    given = list(images) if isinstance(images, list | tuple) else [images]
    if not given:
        raise InputError("got no images; give at least one")
    given = [_from_array(image, model.image_channels) if isinstance(image, np.ndarray) else image for image in given]
    if all(isinstance(image, Tensor) for image in given):
        return as_batch(model, _stacked(given))
    if all(isinstance(image, list) for image in given):
        given = [image for several in given for image in several]
    return model.accept(_stacked([_prepared(model, image) for image in given]))


def prepare(model: Adapter, source: ImageSource) -> tuple[Picture | None, Tensor]:
    """Return an image as the model takes it: the photograph, None where there are only pixels, and a batch of one."""
    if source.pixels is not None:
        return None, model.normalise(source.pixels[None])
    photograph = open_picture(model, source.path) if source.photograph is None else source.photograph
    return photograph, as_batch(model, photograph)


def open_picture(model: Adapter, path: str | Path) -> Picture:
    """Open an image file as the model takes images: as a colour or a grey picture, or as `Bands` of any number."""
    if model.image_channels == COLOURS:
        return read_image(path)
    return read_image(path).convert("L") if model.image_channels == 1 else Bands(read_bands(path), str(path))


@dataclass(frozen=True, slots=True, eq=False)
class Bands:
    """Pixel values of any number of bands, (band, height, width), before normalisation, and what to call them."""

    values: np.ndarray[Any, np.dtype[np.float32]]
    name: str


Picture = Image.Image | Bands


def _prepared(model: Adapter, given: Any) -> Tensor:
    """Prepare one image as the model's preprocessing does, or with its normalisation where there is none for bands."""
    image = open_picture(model, given) if isinstance(given, str | Path) else given
    if not isinstance(image, Image.Image | Bands):
        raise InputError(
            f"got {type(image).__name__} as an image; a tensor, a PIL image, a uint8 array or a path is needed"
        )
    if isinstance(image, Image.Image) and model.image_channels not in (1, COLOURS):
        image = Bands(scaled_bands(bands_of(image, "the image"), "the image"), "the image")
    if isinstance(image, Bands):
        return _prepared_bands(model, image)
    if model.preprocess is None:
        raise InputError(
            f"{model.name} does not say how its images are prepared; give a normalised (batch, {model.image_channels}, "
            "height, width) tensor, or adapt(model, preprocess=…)"
        )
    return model.preprocess(image.convert("L" if model.image_channels == 1 else "RGB"))


def _prepared_bands(model: Adapter, image: Bands) -> Tensor:
    if len(image.values) != model.image_channels:
        raise InputError(
            f"{image.name} has {len(image.values)} bands; {model.name} takes {model.image_channels}: give an image "
            "with as many"
        )
    bands = torch.from_numpy(np.ascontiguousarray(image.values))
    if model.preprocess is not None:
        return model.preprocess(bands)
    if not model.knows_normalisation:
        raise InputError(
            f"{model.name} does not say how its {model.image_channels} bands are normalised; say adapt(model, mean=…, "
            "std=…), or give a normalised tensor"
        )
    size = model.input_size
    if size is not None and tuple(bands.shape[-2:]) != size:
        bands = F.interpolate(bands[None], size, mode="bilinear", antialias=True)[0]
    return model.normalise(bands)


def _from_array(array: np.ndarray[Any, Any], channels: int = COLOURS) -> Any:
    """Turn an array into what it stands for: uint8 pixels into PIL images, normalised floats into a tensor."""
    if array.dtype in (np.uint8, np.uint16) and channels not in (1, COLOURS) and array.shape[-1:] == (channels,):
        each = [array] if array.ndim == 3 else list(array)
        return [Bands(scaled_bands(np.moveaxis(pixels, -1, 0), "the array"), "the array") for pixels in each]
    if array.dtype == np.uint8 and array.shape[-1:] in ((3,), (4,)) and array.ndim in (3, 4):
        return Image.fromarray(array) if array.ndim == 3 else [Image.fromarray(image) for image in array]
    if array.dtype == np.uint8 and array.ndim == 2:
        return Image.fromarray(array)
    if np.issubdtype(array.dtype, np.floating) and array.ndim >= 3 and array.shape[-3] in (channels, COLOURS):
        return torch.from_numpy(np.ascontiguousarray(array))
    raise InputError(
        f"got an array of {array.dtype} and shape {array.shape}; give uint8 pixels of shape (height, width, "
        f"{channels}), which the model's preprocessing prepares, or normalised floats of shape (batch, {channels}, "
        "height, width)"
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

    The model's own normalisation is undone; where it is not known and the values are colours already, they stay. Of
    more than three bands the first three are shown, of fewer the first in grey; where their normalisation is not known
    they are stretched from the lowest value of the image to the highest.
    """
    with torch.no_grad():
        raw = batch.detach().float().cpu()
        if raw.shape[1] != COLOURS:
            return _shown_bands(model, raw)
        colours = model.preprocess is None and bool(raw.amin() >= 0) and bool(raw.amax() <= 1)
        shown = raw.clone() if colours else model.denormalise(raw)
        return shown.clamp_(0, 1).mul_(255).round_().to(torch.uint8)


def _shown_bands(model: Adapter, raw: Tensor) -> Tensor:
    raw = model.denormalise(raw) if model.knows_normalisation else raw
    shown = raw[:, :COLOURS] if raw.shape[1] > COLOURS else raw[:, :1].expand(-1, COLOURS, -1, -1)
    if not model.knows_normalisation:
        low, high = shown.amin(dim=(1, 2, 3), keepdim=True), shown.amax(dim=(1, 2, 3), keepdim=True)
        shown = (shown - low) / (high - low).clamp(min=torch.finfo(shown.dtype).tiny)
    return (shown.clamp(0, 1) * 255).round().to(torch.uint8)


# ---- what the model sees --------------------------------------------------------------------------------------------


SMALLEST, LARGEST = 448, 560  # pixels of the longer side of the picture that is drawn on
SAME = 0.03  # mean difference, of 1, up to which a crop of the photograph counts as what the model was given

Box = tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class View:
    """What a model sees of a photograph.

    Attributes:
        picture: sharp, at a size for showing.
        box: left, upper, right and lower edge in the photograph, in pixels; None where it could not be found out.
    """

    picture: Image.Image
    box: Box | None


def view_of(model: Adapter, prepared: Tensor, photograph: Picture | None = None) -> View:
    """Find the part of a photograph that the model was given as `prepared`, (channel, height, width).

    The usual crop, a resize and a central crop as the preprocessing names them, is kept only if the photograph cut that
    way shows what the model was given; otherwise, and of bands or without a photograph, the picture is the
    model's own input.
    """
    seen = as_picture(seen_pixels(model, prepared[None])[0])
    photograph = photograph if isinstance(photograph, Image.Image) else None
    box = None if photograph is None else _usual_crop(model.preprocess, photograph.size)
    if photograph is not None and box is not None:
        cut = photograph.convert("RGB").resize(seen.size, Image.Resampling.BICUBIC, box=box, reducing_gap=None)
        if _difference(cut, seen) <= SAME:
            return View(_at_size(photograph, box), box)
    return View(_at_size(seen, (0, 0, *seen.size)), None)


def as_picture(pixels: Tensor) -> Image.Image:
    """Return uint8 pixels of shape (3, height, width) as a picture."""
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def _usual_crop(preprocess: Any, size: tuple[int, int]) -> Box | None:
    """Return the box of a resize followed by a central crop, read off the names and sizes of the transforms."""
    steps = {type(step).__name__: getattr(step, "size", None) for step in getattr(preprocess, "transforms", ())}
    resize, crop = steps.get("Resize"), steps.get("CenterCrop")
    if resize is None:
        return None
    short = min(size)
    width, height = (resize[1], resize[0]) if _is_pair(resize) else (_side(resize) * side / short for side in size)
    if crop is None:
        return (0.0, 0.0, float(size[0]), float(size[1]))
    kept = (crop[1], crop[0]) if _is_pair(crop) else (_side(crop), _side(crop))
    across, down = min(1.0, kept[0] / width), min(1.0, kept[1] / height)
    left, upper = size[0] * (1 - across) / 2, size[1] * (1 - down) / 2
    return left, upper, size[0] - left, size[1] - upper


def _is_pair(size: Any) -> bool:
    return isinstance(size, list | tuple) and len(size) == 2


def _side(size: Any) -> float:
    return float(size[0] if isinstance(size, list | tuple) else size)


def _difference(first: Image.Image, second: Image.Image) -> float:
    return float(np.abs(np.asarray(first, dtype=np.float32) - np.asarray(second, dtype=np.float32)).mean() / 255)


def _at_size(image: Image.Image, box: Box) -> Image.Image:
    """Cut a box out, and shrink or stretch it to a size for showing."""
    width, height = box[2] - box[0], box[3] - box[1]
    longer = max(width, height)
    scale = min(max(longer, SMALLEST), LARGEST) / longer
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return image.convert("RGB").resize(size, Image.Resampling.BICUBIC, box=box)
