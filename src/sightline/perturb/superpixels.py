"""Superpixels by name: which pieces of an image come and go as a whole.

A cut is a literal, a name or a name with its numbers, so that a recipe can hold it: ``'grid'``, ``('grid', 2, 4)``,
``('slic', 60)``. From Python a label map or a function of the image does as well; see `pieces_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor

from sightline.errors import RecipeError, ShapeError
from sightline.extras import require
from sightline.models.adapter import Adapter
from sightline.perturb.segments import Segments, grid_segments

Cut = str | tuple[str | int | float, ...]
Given = Cut | Segments | Tensor | Sequence[Segments | Tensor] | Callable[[Tensor], Tensor]
Size = tuple[int, int]

# what the numbers after a name mean, and what they are when left out
NUMBERS: dict[str, tuple[tuple[str, float], ...]] = {
    "grid": (("rows", 7), ("columns", 7)),
    "slic": (("segments", 50), ("compactness", 10.0)),
    "quickshift": (("kernel", 4), ("distance", 200), ("ratio", 0.2)),  # as the authors of LIME
    "felzenszwalb": (("scale", 100), ("sigma", 0.5), ("smallest", 50)),
}
ABOUT = 50  # segments, where only the image decides how many there are


def check_cut(cut: Cut) -> tuple[str, tuple[float, ...]]:
    """Return the name and all its numbers, or refuse what cannot be cut.

    >>> check_cut(("slic", 60))
    ('slic', (60, 10.0))
    >>> check_cut(("grid", 5))
    ('grid', (5, 5))
    """
    name, *given = (cut,) if isinstance(cut, str) else cut or ("",)
    if name not in NUMBERS:
        raise RecipeError(f"got segments={cut!r}; choose from {', '.join(NUMBERS)}")
    known = NUMBERS[str(name)]
    if len(given) > len(known) or not all(isinstance(x, int | float) and x >= 0 for x in given):
        names = ", ".join(word for word, _ in known)
        raise RecipeError(f"got segments={cut!r}; after {name!r} come at most {len(known)} numbers: {names}")
    numbers = [*(x for x in given if isinstance(x, int | float)), *(usual for _, usual in known[len(given) :])]
    if name == "grid" and len(given) == 1:
        numbers = [numbers[0]] * 2
    if name in ("grid", "slic"):
        whole = numbers[: 2 if name == "grid" else 1]
        if not all(isinstance(x, int) and x >= 1 for x in whole):
            raise RecipeError(f"got segments={cut!r}; {name!r} needs how many there are as whole numbers above 0")
    return str(name), tuple(numbers)


def is_cut(given: Given) -> TypeGuard[Cut]:
    """Tell a literal from label maps and functions."""
    return isinstance(given, str) or (isinstance(given, tuple) and (not given or isinstance(given[0], str)))


def cells_of_cut(cut: Given, size: Size) -> Size | None:
    """Return the cells of a grid, never more than there are pixels; None for anything but a grid."""
    if not is_cut(cut):
        return None
    name, numbers = check_cut(cut)
    return (min(int(numbers[0]), size[0]), min(int(numbers[1]), size[1])) if name == "grid" else None


def about(cut: Cut, size: Size) -> int:
    """Return how many segments a cut asks for, before any image is seen."""
    cells = cells_of_cut(cut, size)
    if cells is not None:
        return cells[0] * cells[1]
    name, numbers = check_cut(cut)
    return int(numbers[0]) if name == "slic" else ABOUT


def pieces_of(model: Adapter, images: Tensor, given: Given) -> list[Segments]:
    """Return the segments of each image.

    Args:
        model: says what the pixels' colours are.
        images: as the model is fed, shape (batch, 3, height, width).
        given: a cut; a label map, (height, width) for all images or (batch, height, width), or `Segments`; one of
            these for each image; or a function from pixel values in 0..1, shape (3, height, width), to labels.
            Labels may be any whole numbers.
    """
    size = (images.shape[-2], images.shape[-1])
    if is_cut(given):
        return _cut(model, images, given)
    if isinstance(given, Segments) or (isinstance(given, Tensor) and given.ndim == 2):
        each: list[Any] = [given] * len(images)
    elif callable(given):
        each = [given(raw) for raw in model.denormalise(images)]
    else:
        each = list(given)
    found = [piece if isinstance(piece, Segments) else _numbered(piece) for piece in each]
    if len(found) != len(images) or any(tuple(piece.labels.shape) != size for piece in found):
        shapes = [tuple(piece.labels.shape) for piece in found]
        raise ShapeError(f"got segments of {shapes} for {len(images)} images of {size}; give one label per pixel")
    return [Segments(piece.labels.to(images.device)) for piece in found]


def _numbered(labels: Any) -> Segments:
    """Number any labels from 0 without a gap, in their order."""
    labels = torch.as_tensor(labels)
    if labels.ndim != 2:
        raise ShapeError(f"got a label map of shape {tuple(labels.shape)}; (height, width) is needed")
    return Segments(labels.unique(return_inverse=True)[1])


def _cut(model: Adapter, images: Tensor, cut: Cut) -> list[Segments]:
    size = (images.shape[-2], images.shape[-1])
    cells = cells_of_cut(cut, size)
    if cells is not None:
        return [grid_segments(size, cells, device=images.device)] * len(images)
    name, numbers = check_cut(cut)
    cutter: Any = getattr(require("skimage.segmentation", extra="photo"), name)
    found = []
    for raw in model.denormalise(images.detach().double()).clamp(0, 1):
        labels = cutter(raw.movedim(0, -1).cpu().numpy(), **_settings(name, numbers))
        found.append(Segments(_numbered(labels).labels.to(images.device)))
    return found


def _settings(name: str, numbers: tuple[float, ...]) -> dict[str, float]:
    """Return the numbers under the names of scikit-image."""
    if name == "slic":
        return {"n_segments": int(numbers[0]), "compactness": numbers[1], "start_label": 0}
    if name == "quickshift":
        return {"kernel_size": numbers[0], "max_dist": numbers[1], "ratio": numbers[2]}
    return {"scale": numbers[0], "sigma": numbers[1], "min_size": int(numbers[2])}
