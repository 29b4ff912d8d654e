"""Pictures of which ever more is shown, their information and the model's logits: what SIC and AIC are made of.

Information is the size of a picture as lossless WebP. Compressing hard takes most of a metric's time, so the fast forms
compress every picture with the least effort, and hard only those on whose information the area depends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.metrics.case import Case
from sightline.perturb.interpolate import (
    Picture,
    compressed_size,
    from_uint8,
    interpolate_each,
    random_pixels,
    to_uint8,
    top_pixels,
)

COUNTS = 0.02  # the least weight of a picture's information in the area for which it is compressed hard
Floats = NDArray[np.float64]
Variant = Literal["exact", "fast", "border"]


@dataclass(frozen=True, slots=True, eq=False)
class Revealed:
    """Images of which ever more is shown: their information and the model's logits.

    Attributes:
        quick_sizes: bytes of each picture: whole, interpolated from the random pixels alone, then at each threshold;
            shape (batch, 2 + thresholds). In the fast forms these are sizes at the least effort.
        logits: shape (batch, 2 + thresholds, class).
        pictures: in the fast forms, the pictures of each image in that order; else none.
    """

    quick_sizes: Floats
    logits: Tensor
    pictures: Sequence[Sequence[Picture]] = ()
    _measured: dict[tuple[int, int], int] = field(default_factory=dict)

    def sizes(self, scores: Floats) -> Floats:
        """Return the bytes of each picture, (batch, 2 + thresholds), given the model's scores of them."""
        if not self.pictures:
            return self.quick_sizes
        return np.stack([self._sizes(row, own) for row, own in enumerate(scores)])

    def _sizes(self, row: int, scores: Floats) -> Floats:
        """Compress hard what counts; scale the other sizes by the ratio found on both sides of them."""
        counts = [0, 1, *(2 + np.flatnonzero(weights(scores) >= COUNTS))]
        for index in counts:
            if (row, index) not in self._measured:
                self._measured[row, index] = compressed_size(self.pictures[row][index])
        order = [1, *range(2, len(scores)), 0]  # from the random pixels to the whole picture
        known = [place for place, index in enumerate(order) if (row, index) in self._measured]
        hard = np.array([self._measured[row, order[place]] for place in known], dtype=float)
        ratios = hard / self.quick_sizes[row, [order[place] for place in known]]
        found = np.empty(len(scores))
        found[order] = self.quick_sizes[row, order] * np.interp(np.arange(len(order)), known, ratios)
        found[[order[place] for place in known]] = hard
        return found


def heights(scores: Floats) -> Floats:
    """Return the share of the image's score that each threshold has regained, never falling, given all scores."""
    full, blank = scores[:2]
    found: Floats = np.maximum.accumulate(np.clip((scores[2:] - blank) / (full - blank), 0, 1))
    return found


def weights(scores: Floats) -> Floats:
    r"""Return how much the area changes with the information at each threshold: :math:`(h_{t+1} - h_{t-1})/2`."""
    if scores[0] <= scores[1]:  # no curve
        return np.zeros(len(scores) - 2)
    curve = np.concatenate([[0.0], heights(scores), [1.0]])
    found: Floats = (curve[2:] - curve[:-2]) / 2
    return found


def revealed(case: Case, share: float, seed: int, thresholds: tuple[float, ...], variant: Variant) -> Revealed:
    """Return the pictures of a case, made once for all metrics that ask for them."""
    key = ("revealed", share, seed, thresholds, variant)
    return case.once(key, lambda: _reveal(case, share, seed, thresholds, variant))


def _reveal(case: Case, share: float, seed: int, thresholds: tuple[float, ...], variant: Variant) -> Revealed:
    known = case.once(("known pixels", share, seed), lambda: random_pixels(case.images, seed, share)).numpy()
    quick = variant != "exact"
    sizes, logits, kept = [], [], []
    rows = zip(to_uint8(case.model, case.images), known, case.maps.cpu().numpy(), strict=True)
    for row, (picture, start, values) in enumerate(rows):
        shown = [start, *(start | top_pixels(values, each) for each in thresholds)]
        found = interpolate_each(picture, shown, borders=variant == "border", quick=quick)
        pictures, bytes_ = zip(*found, strict=True)
        sizes.append([compressed_size(picture, quick=quick), *bytes_])
        kept.append([picture, *pictures])
        predicted = case.model.predict(from_uint8(case.model, pictures, case.images))
        logits.append(torch.cat([case.clean[row : row + 1], predicted]))
    return Revealed(np.array(sizes, dtype=np.float64), torch.stack(logits), kept if quick else ())
