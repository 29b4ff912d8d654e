"""Images interpolated from some of their pixels, and the information in an image: its size when compressed.

The steps of the performance information curve :cite:p:`kapishnikov2019`. Unknown pixels are interpolated linearly
between the known ones around them; information is the number of bytes after lossless compression.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.spatial import Delaunay
from torch import Tensor

from sightline.errors import InputError
from sightline.models.adapter import Adapter
from sightline.seeds import generators

Picture = NDArray[np.uint8]
Pixels = NDArray[np.bool_]
Whole = NDArray[np.int64]
CORNERS = (np.array([0, 0, -1, -1]), np.array([0, -1, 0, -1]))
AT_ONCE = 1_000_000  # pixels of bounding boxes looked at in one go


def random_pixels(images: Tensor, seed: int, share: float) -> Tensor:
    """Choose a share of the pixels of each image at random, shape (batch, height, width).

    An image has the same pixels in every batch, whatever map it is judged with.
    """
    count = images.shape[-2] * images.shape[-1]
    chosen = torch.zeros(len(images), count, dtype=torch.bool)
    for row, generator in zip(chosen, generators(seed, images), strict=True):
        row[torch.randperm(count, generator=generator)[: int(count * share)]] = True
    return chosen.reshape(len(images), *images.shape[-2:])


def top_pixels(values: NDArray[np.floating], share: float) -> Pixels:
    """Return the pixels of a map at or above its (1 − share) quantile: at least that share, more among equals."""
    chosen: Pixels = values >= np.quantile(values, 1 - share)
    return chosen


def interpolate(picture: Picture, known: Pixels, *, borders: bool = False) -> Picture:
    """Interpolate a picture, (height, width, channel), linearly from its known pixels, (height, width).

    The corners are always known. One Delaunay triangulation serves all channels, and only unknown pixels are computed:
    the same picture that interpolating each channel by itself gives.

    With `borders` only the `border` of the known pixels is triangulated, some thirty times faster: the same triangles
    around unknown pixels, except where four or more known pixels lie on one empty circle and may be joined in more than
    one way, as they also may where the same points come in another order.
    """
    known = known.copy()
    known[CORNERS] = True
    if known.all():
        return picture.copy()
    if min(known.shape) == 1:  # points on one line have no triangles
        return _along_line(picture, known)
    points = np.argwhere(border(known) if borders else known)
    filled = picture.copy()
    for rows, columns, values in _inside(points[Delaunay(points).simplices], known, picture.astype(np.int64)):
        # in single precision, as the reference, whose halves are then rounded as halves
        filled[rows, columns] = np.round(values.astype(np.float32))
    return filled


def border(known: Pixels) -> Pixels:
    """Return the known pixels beside an unknown one, and the corners.

    A circle through a pixel whose four neighbours are known holds one of them unless its radius is at most √½, so that
    no triangle of a Delaunay triangulation with an unknown pixel inside has a corner there.

    >>> border(np.pad(np.zeros((1, 1), dtype=bool), 2, constant_values=True)).astype(int)
    array([[1, 0, 0, 0, 1],
           [0, 0, 1, 0, 0],
           [0, 1, 0, 1, 0],
           [0, 0, 1, 0, 0],
           [1, 0, 0, 0, 1]])
    """
    wide = np.pad(known, 1, constant_values=True)
    surrounded = wide[:-2, 1:-1] & wide[2:, 1:-1] & wide[1:-1, :-2] & wide[1:-1, 2:]
    found: Pixels = known & ~surrounded
    found[CORNERS] = True
    return found


def _inside(corners: Whole, known: Pixels, picture: Whole) -> Iterator[tuple[Whole, Whole, NDArray[np.float64]]]:
    """Give the unknown pixels of triangles, (triangle, 3, 2), and their values, some triangles at a time.

    Whole numbers throughout, so that nothing is lost to rounding; a library would invert a matrix per triangle.
    """
    twice = _cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    corners = np.where((twice < 0)[:, None, None], corners[:, ::-1], corners)
    large = np.abs(twice) > 1  # the smallest triangles hold no pixel but their corners
    corners, twice = corners[large], np.abs(twice)[large]
    low, size = corners.min(axis=1), np.ptp(corners, axis=1) + 1
    boxes = size.prod(axis=1)
    for some in np.split(np.arange(len(boxes)), np.flatnonzero(np.diff(boxes.cumsum() // AT_ONCE)) + 1):
        which = np.repeat(some, boxes[some])
        index = np.arange(len(which)) - np.repeat(boxes[some].cumsum() - boxes[some], boxes[some])  # in its box
        spots = low[which] + np.stack(np.divmod(index, size[which, 1]), axis=1)
        unknown = ~known[spots[:, 0], spots[:, 1]]
        which, spots = which[unknown], spots[unknown]
        there = corners[which]
        a, b, c = (there[:, corner] - spots for corner in range(3))
        weights = np.stack([_cross(b, c), _cross(c, a), _cross(a, b)], axis=1)
        within = (weights >= 0).all(axis=1)
        which, spots, there, weights = which[within], spots[within], there[within], weights[within]
        colours = picture[there[..., 0], there[..., 1]]
        yield spots[:, 0], spots[:, 1], (weights[..., None] * colours).sum(axis=1) / twice[which, None]


def _cross(first: Whole, second: Whole) -> Whole:
    """Return twice the signed area between vectors, (…, 2) each."""
    area: Whole = first[..., 0] * second[..., 1] - first[..., 1] * second[..., 0]
    return area


def interpolate_each(
    picture: Picture, known: Sequence[Pixels], *, borders: bool = False, quick: bool = False
) -> list[tuple[Picture, int]]:
    """Interpolate from several sets of pixels, on as many threads as torch has; return each result with its size.

    Triangulation, look-up and compression leave the interpreter free, so threads are enough.
    """

    def work(pixels: Pixels) -> tuple[Picture, int]:
        filled = interpolate(picture, pixels, borders=borders)
        return filled, compressed_size(filled, quick=quick)

    with ThreadPoolExecutor(max_workers=max(1, torch.get_num_threads())) as pool:
        hardest_first = sorted(range(len(known)), key=lambda index: -int(known[index].sum()))
        running = {index: pool.submit(work, known[index]) for index in hardest_first}
        return [running[index].result() for index in range(len(known))]


def _along_line(picture: Picture, known: Pixels) -> Picture:
    flat, there = picture.reshape(-1, picture.shape[-1]), known.ravel().nonzero()[0]
    each = [np.interp(np.arange(len(flat)), there, flat[there, channel]) for channel in range(flat.shape[1])]
    return np.round(np.stack(each, axis=1)).astype(np.uint8).reshape(picture.shape)


def compressed_size(picture: Picture, *, quick: bool = False) -> int:
    """Return the size of a picture in bytes as lossless WebP; it depends a little on the version of libwebp.

    With `quick` at the least effort: some fifty times faster, and a tenth to a fifth larger.

    >>> rising = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
    >>> compressed_size(np.zeros_like(rising)) < compressed_size(rising)
    True
    """
    stream = io.BytesIO()
    try:
        effort = {"quality": 0, "method": 0} if quick else {"quality": 100}
        Image.fromarray(picture).save(stream, format="webp", lossless=True, **effort)
    except (KeyError, OSError) as error:
        raise InputError(
            "this Pillow cannot write WebP, which measures the information; install a wheel of Pillow that can"
        ) from error
    return len(stream.getvalue())


def to_uint8(model: Adapter, images: Tensor) -> list[Picture]:
    """Return images as 8-bit pictures, (height, width, channel) each, values clipped to black and white."""
    raw = model.denormalise(images.detach().double()).clamp(0, 1)
    pictures: Picture = (raw * 255).round().to(torch.uint8).movedim(1, -1).cpu().numpy()
    return list(pictures)


def from_uint8(model: Adapter, pictures: Sequence[Picture], like: Tensor) -> Tensor:
    """Return 8-bit pictures as input of the model, in the precision and on the device of `like`."""
    raw = torch.from_numpy(np.stack(pictures)).to(like.device).movedim(-1, 1).to(like.dtype) / 255
    return model.normalise(raw).contiguous()
