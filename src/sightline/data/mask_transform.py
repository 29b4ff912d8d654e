"""Resize and crop a mask as a model's preprocessing does its image, by nearest neighbours.

The sizes of known transforms are read, so that the result is exactly that of nearest-neighbour resizing. Any other
preprocessing, a library's image processor for instance, is measured: ramps of grey are sent through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from sightline.data.masks import IGNORE, nearest_pixels
from sightline.errors import InputError

__all__ = ["source_pixels", "transform_mask"]

Preprocess = Callable[[Image.Image], Tensor]
Sources = tuple[Tensor, Tensor]  # for each row and each column of what the model sees, which one of the image's
PADDING = -1  # no pixel of the image

# Transforms that move no pixel.
_NO_GEOMETRY = frozenset(
    {"ToTensor", "MaybeToTensor", "PILToTensor", "MaybePILToTensor", "ConvertImageDtype", "ToDtype", "ToImage",
     "Normalize", "function"}
)  # fmt: skip
DARKEST, LIGHTEST = 8, 247  # greys of a ramp's ends, off black and white so that resampling cuts nothing off
WAVES = 5
TOLERANCE = 1.0  # pixels by which a preprocessing may stray from a resize and a crop before it is refused


def transform_mask(mask: Tensor | NDArray[Any], preprocess: Preprocess) -> Tensor:
    """Return the mask in the frame that the model sees, (height, width); no new value appears.

    What a preprocessing pads is no part of the image, and ignored.

    Args:
        mask: (height, width) of the image's own size.
        preprocess: what turns the image into the model's input, for instance `adapter.preprocess`.

    Raises:
        InputError: the preprocessing does something else than resize, crop and pad.
    """
    given = torch.as_tensor(np.ascontiguousarray(mask) if isinstance(mask, np.ndarray) else mask)
    if given.ndim != 2:
        raise InputError(f"got a mask of shape {tuple(given.shape)}; (height, width) is needed")
    sources = source_pixels(preprocess, (given.shape[0], given.shape[1]))
    rows, columns = (indices.to(given.device) for indices in sources)
    transformed = given[rows.clamp(min=0)][:, columns.clamp(min=0)].clone()
    transformed[rows == PADDING] = IGNORE
    transformed[:, columns == PADDING] = IGNORE
    return transformed


def source_pixels(preprocess: Preprocess, size: tuple[int, int]) -> Sources:
    """Return which row and column of an image of `size` (height, width) each one of the model's input shows."""
    steps = _steps(preprocess)
    if steps is None:
        return _measured(preprocess, size)
    sources = (torch.arange(size[0]), torch.arange(size[1]))
    for kind, wanted in steps:
        sources = _resized(sources, wanted) if kind == "resize" else _cropped(sources, wanted)
    return sources


def _steps(preprocess: Any) -> list[tuple[str, tuple[int, ...]]] | None:
    """Read resizes and crops off a chain of transforms; None where there is something unknown in it."""
    if type(preprocess).__name__ == "ImageClassification":  # torchvision's preset
        sizes = _sides(preprocess.resize_size), _sides(preprocess.crop_size)
        return None if None in sizes else [("resize", sizes[0]), ("crop", sizes[1])]  # type: ignore[list-item]
    if not hasattr(preprocess, "transforms"):
        return None
    steps = []
    for step in preprocess.transforms:
        name, wanted = type(step).__name__, _sides(getattr(step, "size", None))
        if name == "Resize" and wanted is not None and getattr(step, "max_size", None) is None:
            steps.append(("resize", wanted))
        elif name == "CenterCrop" and wanted is not None:
            steps.append(("crop", wanted))
        elif name not in _NO_GEOMETRY:
            return None
    return steps


def _sides(size: Any) -> tuple[int, ...] | None:
    if isinstance(size, int):
        return (size,)
    if isinstance(size, list | tuple) and len(size) in (1, 2) and all(isinstance(side, int) for side in size):
        return tuple(size)
    return None


def _resized(sources: Sources, wanted: tuple[int, ...]) -> Sources:
    """Resize the short side, or both, by nearest neighbours."""
    rows, columns = sources
    lengths = len(rows), len(columns)
    if len(wanted) == 1:
        wanted = tuple(int(wanted[0] * length / min(lengths)) for length in lengths)
    return rows[nearest_pixels(len(rows), wanted[0])], columns[nearest_pixels(len(columns), wanted[1])]


def _cropped(sources: Sources, wanted: tuple[int, ...]) -> Sources:
    """Keep the centre, or pad around it where it is smaller."""
    height, width = wanted * 2 if len(wanted) == 1 else wanted
    return _centre(sources[0], height), _centre(sources[1], width)


def _centre(indices: Tensor, length: int) -> Tensor:
    if len(indices) < length:
        before = (length - len(indices)) // 2
        padded = torch.full((length,), PADDING)
        padded[before : before + len(indices)] = indices
        return padded
    first = round((len(indices) - length) / 2)
    return indices[first : first + length]


def _measured(preprocess: Preprocess, size: tuple[int, int]) -> Sources:
    """Send black, white and two ramps through, and fit a line to where each row and column comes from."""
    height, width = size
    down, across = _ramp(height, width), _ramp(width, height).T
    black, white, rows, columns = _preprocessed(preprocess, [np.zeros(size), np.full(size, 255), down, across])
    span = white - black
    shown = span.abs() > 0.5 * span.abs().max()
    down_ramp, across_ramp = (
        _ramp_position(transformed, black, span, shown, dim) for transformed, dim in ((rows, 1), (columns, 0))
    )
    return _fitted_line(down_ramp, height), _fitted_line(across_ramp, width)


def _ramp(length: int, others: int) -> NDArray[np.float64]:
    """Return a ramp, (length, others), that goes up and down a grey along the other side in a few waves.

    What lies between two greys is then told by how many pixels round up, and a mean is finer than 256 greys.
    """
    grey = DARKEST + (np.arange(length) + 0.5) * (LIGHTEST - DARKEST) / length
    wave = np.arange(others) * WAVES / others % 1 - 0.5
    return np.rint(grey[:, None] + wave[None, :])


def _preprocessed(preprocess: Preprocess, greys: list[NDArray[Any]]) -> Iterator[Tensor]:
    """Yield what each grey image becomes, (height, width) of its first channel."""
    for grey in greys:
        transformed = preprocess(Image.fromarray(grey.astype(np.uint8)).convert("RGB"))
        if not isinstance(transformed, Tensor) or transformed.ndim != 3:
            raise InputError("the preprocessing gives no (3, height, width) tensor, so a mask cannot follow it")
        yield transformed[0].detach().double().cpu()


def _ramp_position(transformed: Tensor, black: Tensor, span: Tensor, shown: Tensor, dim: int) -> Tensor:
    """Return for each row or column how far along the ramp it is, 0..1; NaN where it is padding."""
    grey = torch.where(shown, 255 * (transformed - black) / torch.where(shown, span, 1.0), torch.nan)
    return (torch.nanmean(grey, dim=dim) - DARKEST) / (LIGHTEST - DARKEST)


def _fitted_line(position: Tensor, length: int) -> Tensor:
    """Turn positions on a ramp into indices 0..length − 1, by the straight line through them."""
    known = position.isfinite().nonzero().flatten()
    if len(known) < 2:
        raise InputError("the preprocessing shows nothing of the photograph, so a mask cannot follow it")
    trim = len(known) // 8  # resampling bends the ramp at its ends
    inner = known[trim : len(known) - trim]
    slope, start = np.polyfit(inner.numpy(), (position[inner] * length).numpy(), 1)
    stray = float(np.abs(start + slope * inner.numpy() - (position[inner] * length).numpy()).max())
    if stray > TOLERANCE:
        raise InputError(f"the preprocessing strays {stray:.1f} pixels from a resize and crop; a mask cannot follow it")
    indices = torch.full((len(position),), PADDING)
    on_line = np.floor(start + slope * known.numpy() + 1e-6).clip(0, length - 1)
    indices[known] = torch.from_numpy(on_line.astype(np.int64))
    return indices
