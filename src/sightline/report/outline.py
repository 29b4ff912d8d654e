"""The outline of a target that has a place of its own: a box or a region, drawn over a picture."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy.ndimage import binary_dilation, binary_erosion

__all__ = ["outlined"]

INNER, OUTER = (255, 216, 77), (27, 29, 34)  # a bright line inside a dark one: seen on every ground
THICK = 1 / 150  # of the longer side


def outlined(picture: Image.Image, region: npt.NDArray[Any] | None) -> Image.Image:
    """Draw the outline of a region, bool, (height, width) at any resolution; the picture itself where there is none."""
    if region is None or not region.any():
        return picture
    stretched = Image.fromarray(np.asarray(region, dtype=np.uint8) * 255).resize(picture.size, Image.Resampling.NEAREST)
    inside = np.asarray(stretched) > 0
    thick = max(1, round(max(picture.size) * THICK))
    line = inside & ~binary_erosion(inside, iterations=thick, border_value=0)
    around = binary_dilation(line, iterations=max(1, thick // 2)) & ~line
    drawn = np.array(picture.convert("RGB"))
    drawn[around], drawn[line] = OUTER, INNER
    return Image.fromarray(drawn)
