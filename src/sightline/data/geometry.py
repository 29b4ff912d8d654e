"""Send a mask the way a model's preprocessing sends its photograph: same resize, same crop, nearest pixels.

Known transforms are read off, so that the result is the one of nearest-neighbour resizing to the pixel. What cannot be
read, a library's image processor for instance, is found out by sending ramps through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from sightline.data.masks import IGNORE
from sightline.errors import InputError

__all__ = ["send_mask", "sent_from"]

Preprocess = Callable[[Image.Image], Tensor]
Sources = tuple[Tensor, Tensor]  # for each row and each column of what the model sees, which one of the photograph's
OUTSIDE = -1  # padding: no pixel of the photograph

# Transforms that move no pixel.
_STILL = frozenset(
    {"ToTensor", "MaybeToTensor", "PILToTensor", "MaybePILToTensor", "ConvertImageDtype", "ToDtype", "ToImage",
     "Normalize", "function"}
)  # fmt: skip
DARKEST, LIGHTEST = 8, 247  # greys of a ramp's ends, off black and white so that resampling cuts nothing off
WAVES = 5
STRAY = 1.0  # pixels by which a preprocessing may stray from a resize and a crop before it counts as something else


def send_mask(mask: Tensor | NDArray[Any], preprocess: Preprocess) -> Tensor:
    """Return the mask in the frame that the model sees, (height, width); no new value appears.

    What a preprocessing pads is no part of the photograph, and ignored.

    Args:
        mask: (height, width) of the photograph's own size.
        preprocess: what turns the photograph into the model's input, for instance `adapter.preprocess`.

    Raises:
        InputError: the preprocessing does something else than resize, crop and pad.
    """
    given = torch.as_tensor(np.ascontiguousarray(mask) if isinstance(mask, np.ndarray) else mask)
    if given.ndim != 2:
        raise InputError(f"got a mask of shape {tuple(given.shape)}; (height, width) is needed")
    rows, columns = (where.to(given.device) for where in sent_from(preprocess, (given.shape[0], given.shape[1])))
    sent = given[rows.clamp(min=0)][:, columns.clamp(min=0)].clone()
    sent[rows == OUTSIDE] = IGNORE
    sent[:, columns == OUTSIDE] = IGNORE
    return sent


def sent_from(preprocess: Preprocess, size: tuple[int, int]) -> Sources:
    """Return which row and column of a photograph of `size` (height, width) each one of the model's input shows."""
    steps = _steps(preprocess)
    found = (torch.arange(size[0]), torch.arange(size[1]))
    if steps is None:
        return _probed(preprocess, size)
    for kind, wanted in steps:
        found = _resized(found, wanted) if kind == "resize" else _cropped(found, wanted)
    return found


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
        elif name not in _STILL:
            return None
    return steps


def _sides(size: Any) -> tuple[int, ...] | None:
    if isinstance(size, int):
        return (size,)
    if isinstance(size, list | tuple) and len(size) in (1, 2) and all(isinstance(side, int) for side in size):
        return tuple(size)
    return None


def _resized(found: Sources, wanted: tuple[int, ...]) -> Sources:
    """Resize the short side, or both, by nearest neighbours."""
    lengths = len(found[0]), len(found[1])
    if len(wanted) == 1:
        wanted = tuple(int(wanted[0] * length / min(lengths)) for length in lengths)
    return _stretched(found[0], wanted[0]), _stretched(found[1], wanted[1])


def _stretched(where: Tensor, length: int) -> Tensor:
    centres = (torch.arange(length, dtype=torch.float64) + 0.5) * len(where) / length
    return where[centres.long().clamp(max=len(where) - 1)]


def _cropped(found: Sources, wanted: tuple[int, ...]) -> Sources:
    """Keep the centre, or pad around it where it is smaller."""
    height, width = wanted * 2 if len(wanted) == 1 else wanted
    return _middle(found[0], height), _middle(found[1], width)


def _middle(where: Tensor, length: int) -> Tensor:
    if len(where) < length:
        before = (length - len(where)) // 2
        around = torch.full((length,), OUTSIDE)
        around[before : before + len(where)] = where
        return around
    first = round((len(where) - length) / 2)
    return where[first : first + length]


def _probed(preprocess: Preprocess, size: tuple[int, int]) -> Sources:
    """Send black, white and two ramps through, and fit a line to where each row and column comes from."""
    height, width = size
    down, across = _ramp(height, width), _ramp(width, height).T
    black, white, rows, columns = _sent(preprocess, [np.zeros(size), np.full(size, 255), down, across])
    span = white - black
    shown = span.abs() > 0.5 * span.abs().max()
    along, aside = _share(rows, black, span, shown, dim=1), _share(columns, black, span, shown, dim=0)
    return _line(along, height), _line(aside, width)


def _ramp(length: int, others: int) -> NDArray[np.float64]:
    """Return a ramp, (length, others), that goes up and down a grey along the other side in a few waves.

    What lies between two greys is then told by how many pixels round up, and a mean is finer than 256 greys.
    """
    grey = DARKEST + (np.arange(length) + 0.5) * (LIGHTEST - DARKEST) / length
    wave = np.arange(others) * WAVES / others % 1 - 0.5
    return np.rint(grey[:, None] + wave[None, :])


def _sent(preprocess: Preprocess, greys: list[NDArray[Any]]) -> Iterator[Tensor]:
    """Yield what each grey picture becomes, (height, width) of its first channel."""
    for grey in greys:
        sent = preprocess(Image.fromarray(grey.astype(np.uint8)).convert("RGB"))
        if not isinstance(sent, Tensor) or sent.ndim != 3:
            raise InputError("the preprocessing gives no (3, height, width) tensor, so a mask cannot follow it")
        yield sent[0].detach().double().cpu()


def _share(sent: Tensor, black: Tensor, span: Tensor, shown: Tensor, dim: int) -> Tensor:
    """Return for each row or column how far along the ramp it is, 0..1; NaN where it is padding."""
    grey = torch.where(shown, 255 * (sent - black) / torch.where(shown, span, 1.0), torch.nan)
    return (torch.nanmean(grey, dim=dim) - DARKEST) / (LIGHTEST - DARKEST)


def _line(share: Tensor, length: int) -> Tensor:
    """Turn shares of a ramp into places in 0..length − 1, by the straight line through them."""
    known = share.isfinite().nonzero().flatten()
    if len(known) < 2:
        raise InputError("the preprocessing shows nothing of the photograph, so a mask cannot follow it")
    trim = len(known) // 8  # resampling bends the ramp at its ends
    inner = known[trim : len(known) - trim]
    slope, start = np.polyfit(inner.numpy(), (share[inner] * length).numpy(), 1)
    stray = float(np.abs(start + slope * inner.numpy() - (share[inner] * length).numpy()).max())
    if stray > STRAY:
        raise InputError(f"the preprocessing strays {stray:.1f} pixels from a resize and crop; a mask cannot follow it")
    where = torch.full((len(share),), OUTSIDE)
    places = np.floor(start + slope * known.numpy() + 1e-6).clip(0, length - 1)
    where[known] = torch.from_numpy(places.astype(np.int64))
    return where
