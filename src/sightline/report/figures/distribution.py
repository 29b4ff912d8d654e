"""The distribution over classes at each pixel, of a VAR attribution: mixed colours, a stack, and a map per class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from sightline.errors import InputError
from sightline.operators.contrast import NOBODY, ClassDistribution
from sightline.report.charts.curve import SERIES
from sightline.report.figure import SEQUENTIAL, heat
from sightline.report.figures.sheet import Cell, Row, photograph_of, sheet
from sightline.types import Attribution

__all__ = ["class_distribution", "distribution_of", "mixed_colours", "stacked_shares"]

Floats = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]


def class_distribution(
    attribution: Attribution, labels: Sequence[str], index: int = 0, *, title: str = "", width: int = 160
) -> Image.Image:
    """Draw q, the probability of each class at each pixel, of one image.

    The first row shows the photograph, q as a mixture of the classes' colours, and q as a stack: from left to right the
    columns of the image, from bottom to top the mean share of each class in that column. The second row shows the map
    of each class, all on the one scale from 0 to 1.

    Args:
        attribution: of ``var(…, distribution=True)``.
        labels: what the classes are called, by class number.
        index: which image of the attribution.
        title: of the figure.
        width: of one picture, in points.
    """
    classes, shares = distribution_of(attribution, index)
    photograph = photograph_of(attribution, index)
    names = [labels[number] if number < len(labels) else f"class {number}" for number in classes]
    first = [
        Cell(photograph, "image"),
        Cell(Image.fromarray(mixed_colours(shares)), "classes, mixed"),
        Cell(Image.fromarray(stacked_shares(shares)), "shares by column"),
    ]
    swatches = [Cell(_with_swatch(shares[k], k), name, f"mean {shares[k].mean():.2f}") for k, name in enumerate(names)]
    return sheet(
        [Row(first, attribution.recipe), Row(swatches, "probability of each class, 0 (dark) to 1 (bright)")],
        title=title,
        width=width,
    )


def distribution_of(attribution: Attribution, index: int = 0) -> tuple[list[int], Floats]:
    """Return the classes of one image and their probability at each pixel, (K, height, width)."""
    details = attribution.details
    if not isinstance(details, ClassDistribution) or details.distribution is None:
        raise InputError(
            f"{attribution.recipe or 'the attribution'} does not hold the distribution over classes; explain with "
            "var(…, distribution=True)"
        )
    numbers = [int(number) for number in details.classes[index]]
    kept = [k for k, number in enumerate(numbers) if number != NOBODY]
    layer = attribution.own if details.distribution.shape[1] > 1 else 0
    return [numbers[k] for k in kept], details.distribution[kept, layer, index].cpu().numpy()


def mixed_colours(shares: Floats) -> Bytes:
    """Return the mean of the classes' colours at each pixel, weighted by their shares, (height, width, 3)."""
    return np.asarray(np.rint(np.einsum("khw,kc->hwc", shares, _colours(len(shares)))), dtype=np.uint8)


def stacked_shares(shares: Floats) -> Bytes:
    """Return a stacked bar per column of the image: the mean share of each class in it, the first class lowest."""
    height, width = shares.shape[1:]
    tops = np.cumsum(shares.mean(axis=1), axis=0)  # (K, width)
    levels = 1 - (np.arange(height) + 0.5) / height
    chosen = np.minimum((levels[:, None, None] > tops.T[None]).sum(axis=2), len(shares) - 1)
    return np.asarray(_colours(len(shares))[chosen], dtype=np.uint8).reshape(height, width, 3)


def _colours(count: int) -> Floats:
    rows = [[int(SERIES[k % len(SERIES)][i : i + 2], 16) for i in (1, 3, 5)] for k in range(count)]
    return np.array(rows, dtype=np.float64)


def _with_swatch(share: npt.NDArray[Any], k: int) -> Image.Image:
    """Return the map of a class with a bar of its colour below."""
    height, width = share.shape
    picture = heat(share, (width, height), palette=SEQUENTIAL, limit=1.0)
    bar = max(1, height // 20)
    picture.paste(tuple(int(c) for c in _colours(k + 1)[k]), (0, height - bar, width, height))
    return picture
