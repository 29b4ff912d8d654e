"""Superpixels: the segments of an image that are inserted and removed as a whole.

A cut is a literal, a name or a name with its numbers, so that a recipe can hold it: ``'grid'``, ``('grid', 2, 4)``,
``('slic', 60)``. So can it hold a small label map, ``((0, 0, 1), (2, 2, 1))``, which is stretched over the image. From
Python a label map of the image or a function of it does as well; see `segments_of` and `CustomSegments`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor

from sightline.errors import InputError, RecipeError, ShapeError
from sightline.extras import require
from sightline.models.adapter import Adapter
from sightline.models.signature import COLOURS
from sightline.perturb.segments import Segments, grid_segments

Cut = str | tuple[str | int | float, ...]
Given = Cut | Segments | Tensor | Sequence[Segments | Tensor] | Callable[[Tensor], Tensor]
Option = Any  # the option `segments`: a cut, all that a recipe can hold, or whatever else `segments_of` takes
Size = tuple[int, int]

# what the numbers after a name mean, and what they are when left out
NUMBERS: dict[str, tuple[tuple[str, float], ...]] = {
    "grid": (("rows", 7), ("columns", 7)),
    "slic": (("segments", 50), ("compactness", 10.0)),
    "quickshift": (("kernel", 4), ("distance", 200), ("ratio", 0.2)),  # as the authors of LIME
    "felzenszwalb": (("scale", 100), ("sigma", 0.5), ("smallest", 50)),
}
ABOUT = 50  # segments, where only the image decides how many there are


def check_cut(cut: Option) -> tuple[str, tuple[float, ...]]:
    """Return the name and all its numbers, or refuse what cannot be cut.

    >>> check_cut(("slic", 60))
    ('slic', (60, 10.0))
    >>> check_cut(("grid", 5))
    ('grid', (5, 5))
    """
    name, *given = cut if isinstance(cut, tuple) and cut else (cut,)
    if not isinstance(name, str) or name not in NUMBERS:
        raise RecipeError(f"got segments={cut!r}; choose from {', '.join(NUMBERS)}")
    known = NUMBERS[name]
    if len(given) > len(known) or not all(_is_size(x) for x in given):
        names = ", ".join(word for word, _ in known)
        raise RecipeError(f"got segments={cut!r}; after {name!r} come at most {len(known)} numbers: {names}")
    numbers = [*(x for x in given if isinstance(x, int | float)), *(usual for _, usual in known[len(given) :])]
    if name == "grid" and len(given) == 1:
        numbers = [numbers[0]] * 2
    if name in ("grid", "slic"):
        whole = numbers[: 2 if name == "grid" else 1]
        if not all(isinstance(x, int) and x >= 1 for x in whole):
            raise RecipeError(f"got segments={cut!r}; {name!r} needs how many there are as whole numbers above 0")
    if name == "quickshift" and numbers[0] < 1:
        raise RecipeError(f"got segments={cut!r}; {name!r} needs a kernel of 1 pixel or more")
    return name, tuple(numbers)


def _is_size(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and 0 <= x < math.inf


@dataclass(frozen=True, eq=False, repr=False)
class CustomSegments:
    """Segments of one's own as the option of a method: label maps, or a function from an image to its labels.

    One label map, (height, width), serves all images; several, (image, height, width), belong to the images in their
    order. A recipe cannot hold them: its text says what they were and cannot be parsed.
    """

    given: Any

    def __repr__(self) -> str:
        if callable(self.given):
            return f"<function {getattr(self.given, '__name__', type(self.given).__name__)}>"
        counts = " or ".join(map(str, sorted({piece.count for piece in self.pieces})))
        several = f"{len(self.pieces)} images with " if self.per_image else ""
        height, width = self.pieces[0].labels.shape
        return f"<{several}{counts} segments in {height}×{width}>"

    @property
    def pieces(self) -> list[Segments]:
        """The segments of each image, or those of all; none of a function."""
        return self.given if isinstance(self.given, list) else [] if callable(self.given) else [self.given]

    @property
    def per_image(self) -> bool:
        """Whether each image has segments of its own, so that images must not be parted from each other."""
        return isinstance(self.given, list)


def as_option(given: Option) -> Option:
    """Return a cut as it is and segments of one's own as `CustomSegments`, or refuse what can be neither."""
    if isinstance(given, list) and given and isinstance(given[0], str):
        given = tuple(given)
    if isinstance(given, CustomSegments):
        return given
    if _is_rows(given):
        _numbered(_rows(given))
        return given
    if given is None or isinstance(given, str | int | float) or (isinstance(given, tuple) and is_cut(given)):
        check_cut(given)
        return given
    if callable(given) or isinstance(given, Segments):
        return CustomSegments(given)
    return CustomSegments(_label_maps(given))


def _is_rows(given: Any) -> TypeGuard[tuple[tuple[int, ...], ...]]:
    """Tell a label map written as a literal."""
    return isinstance(given, tuple) and bool(given) and all(isinstance(row, tuple) for row in given)


def _rows(given: tuple[tuple[int, ...], ...]) -> Tensor:
    if len({len(row) for row in given}) != 1 or not all(type(x) is int for row in given for x in row):
        raise RecipeError(f"got segments={given!r}; a label map has rows of equally many whole numbers")
    return torch.tensor(given)


def _label_maps(given: Any) -> Segments | list[Segments]:
    """Read one label map for all images, or one for each."""
    listed = isinstance(given, list | tuple)
    if listed and any(isinstance(each, Segments | Tensor) or hasattr(each, "__array__") for each in given):
        return [each if isinstance(each, Segments) else _numbered(each) for each in given]
    try:
        labels = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        raise ShapeError(
            f"got a {type(given).__name__} as segments; give whole numbers, (height, width) or (image, height, width), "
            "or a function from an image to them"
        ) from None
    return [_numbered(each) for each in labels] if labels.ndim == 3 and len(labels) else _numbered(labels)


def is_cut(given: Given | CustomSegments) -> TypeGuard[Cut]:
    """Tell a literal from label maps and functions."""
    return isinstance(given, str) or (isinstance(given, tuple) and (not given or isinstance(given[0], str)))


def cells_of_cut(cut: Given | CustomSegments, size: Size) -> Size | None:
    """Return the cells of a grid, never more than there are pixels; None for anything but a grid."""
    if not is_cut(cut):
        return None
    name, numbers = check_cut(cut)
    return (min(int(numbers[0]), size[0]), min(int(numbers[1]), size[1])) if name == "grid" else None


def about(cut: Option, size: Size) -> int:
    """Return how many segments a cut asks for, before any image is seen; the most of one's own."""
    if _is_rows(cut):
        return len({label for row in cut for label in row})
    if isinstance(cut, CustomSegments):
        return max((piece.count for piece in cut.pieces), default=ABOUT)
    cells = cells_of_cut(cut, size)
    if cells is not None:
        return cells[0] * cells[1]
    name, numbers = check_cut(cut)
    return int(numbers[0]) if name == "slic" else ABOUT


def segments_of(model: Adapter, images: Tensor, given: Given | CustomSegments) -> list[Segments]:
    """Return the segments of each image.

    Args:
        model: says what the pixels' colours are.
        images: as the model is fed, shape (batch, 3, height, width).
        given: a cut; a label map, (height, width) for all images or (batch, height, width), or `Segments`; one of
            these for each image; or a function from pixel values in 0..1, shape (3, height, width), to labels.
            Labels may be any whole numbers, in a tensor or an array.
    """
    if is_cut(given):
        return _cut(model, images, given)
    size = (images.shape[-2], images.shape[-1])
    own = given.given if isinstance(given, CustomSegments) else given
    if _is_rows(own):
        own = _rows(own)[_stretched(size[0], len(own))][:, _stretched(size[1], len(own[0]))]
    if callable(own):
        own = [own(raw) for raw in model.denormalise(images)]
    if not isinstance(own, Segments):
        own = _label_maps(own)
    pieces = own if isinstance(own, list) else [own] * len(images)
    if len(pieces) != len(images):
        raise ShapeError(
            f"got segments of {len(pieces)} images for a batch of {len(images)}; give one label per pixel, one label "
            "map for all images or one for each"
        )
    for piece in pieces:
        if tuple(piece.labels.shape) != size:
            raise ShapeError(f"got segments of {tuple(piece.labels.shape)} in {size}; give one label per pixel")
    return [Segments(piece.labels.to(images.device)) for piece in pieces]


def _stretched(length: int, count: int) -> Tensor:
    return torch.arange(length) * count // length


def _numbered(labels: Any) -> Segments:
    """Number any labels from 0 without a gap, in their order."""
    labels = torch.as_tensor(labels)
    if labels.ndim != 2 or labels.numel() == 0:
        raise ShapeError(f"got a label map of shape {tuple(labels.shape)}; (height, width) is needed")
    if labels.is_floating_point() or labels.is_complex():
        kind = str(labels.dtype).removeprefix("torch.")
        raise ShapeError(f"got a label map of {kind}; whole numbers are needed, such as labels.long()")
    return Segments(labels.long().unique(return_inverse=True)[1])


def _cut(model: Adapter, images: Tensor, cut: Cut) -> list[Segments]:
    size = (images.shape[-2], images.shape[-1])
    cells = cells_of_cut(cut, size)
    if cells is not None:
        return [grid_segments(size, cells, device=images.device)] * len(images)
    name, numbers = check_cut(cut)
    if name == "quickshift" and images.shape[1] != COLOURS:
        raise InputError(f"quickshift cuts colour images, and these have {images.shape[1]} channels; choose 'slic'")
    cutter: Any = getattr(require("skimage.segmentation"), name)
    pieces = []
    for raw in model.denormalise(images.detach().double()).clamp(0, 1):
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # of images with more than 3 channels
            labels = cutter(raw.movedim(0, -1).cpu().numpy(), **_settings(name, numbers))
        pieces.append(Segments(_numbered(labels).labels.to(images.device)))
    return pieces


def _settings(name: str, numbers: tuple[float, ...]) -> dict[str, float]:
    """Return the numbers under the names of scikit-image."""
    if name == "slic":
        return {"n_segments": int(numbers[0]), "compactness": numbers[1], "start_label": 0}
    if name == "quickshift":
        return {"kernel_size": numbers[0], "max_dist": numbers[1], "ratio": numbers[2]}
    return {"scale": numbers[0], "sigma": numbers[1], "min_size": int(numbers[2])}
