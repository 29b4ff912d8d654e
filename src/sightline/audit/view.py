"""The part of a photograph that a model sees: a map is laid over those pixels, never over the whole picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from sightline.models.adapter import Adapter
from sightline.models.inputs import seen_pixels

__all__ = ["Box", "View", "as_picture", "view_of"]

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


def view_of(model: Adapter, prepared: Tensor, photograph: Image.Image | None = None) -> View:
    """Find the part of a photograph that the model was given as `prepared`, (3, height, width).

    The usual crop, a resize and a central crop as the preprocessing names them, is kept only if the photograph cut that
    way shows what the model was given; otherwise, and without a photograph, the picture is the model's own input.
    """
    seen = as_picture(seen_pixels(model, prepared[None])[0])
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
