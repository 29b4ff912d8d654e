"""Which part of a photograph the model sees, so that a map is laid over the sharp picture and not the small copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from sightline.models.adapter import Adapter

__all__ = ["Box", "Frame", "frame_of"]

SMALLEST, LARGEST = 448, 560  # pixels of the longer side of the picture that is drawn on
SAME = 0.03  # mean difference, of 1, up to which a crop of the photograph counts as what the model was fed

Box = tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class Frame:
    """What the model sees of a photograph.

    Attributes:
        picture: sharp, at a size for showing.
        box: left, upper, right and lower edge in the photograph, in pixels; None where it could not be found out.
    """

    picture: Image.Image
    box: Box | None


def frame_of(model: Adapter, photograph: Image.Image, fed: Tensor) -> Frame:
    """Find the part of a photograph that preprocessing fed to the model as `fed`, (3, height, width).

    The guess, a resize and a central crop as the preprocessing names them, is kept only if the photograph cut that way
    shows what the model was fed; otherwise the picture is the model's own input.
    """
    seen = _as_image(model, fed)
    box = _guess(model.preprocess, photograph.size)
    if box is not None:
        again = photograph.convert("RGB").resize(seen.size, Image.Resampling.BICUBIC, box=box, reducing_gap=None)
        if _difference(again, seen) <= SAME:
            return Frame(_at_size(photograph, box), box)
    return Frame(_at_size(seen, (0, 0, *seen.size)), None)


def _as_image(model: Adapter, fed: Tensor) -> Image.Image:
    values = model.denormalise(fed.detach().float().cpu()).clamp(0, 1) * 255
    return Image.fromarray(values.round().byte().permute(1, 2, 0).numpy())


def _guess(preprocess: Any, size: tuple[int, int]) -> Box | None:
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


def _difference(one: Image.Image, other: Image.Image) -> float:
    return float(np.abs(np.asarray(one, dtype=np.float32) - np.asarray(other, dtype=np.float32)).mean() / 255)


def _at_size(image: Image.Image, box: Box) -> Image.Image:
    """Cut a box out, and shrink or stretch it to a size for showing."""
    width, height = box[2] - box[0], box[3] - box[1]
    longer = max(width, height)
    scale = min(max(longer, SMALLEST), LARGEST) / longer
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return image.convert("RGB").resize(size, Image.Resampling.BICUBIC, box=box)
