"""Reductions: how the images of a set become one statistic.

Most metrics are averaged. Some are published otherwise: `pixel_accuracy` and `mean_iou` are ratios of counts summed
over the whole set, `sic` and `aic` areas under the median of the images' curves. Each reduction takes an image any
number of times, so that the same few lines give the statistic of the set, of a bootstrap resample and of a class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
MANY_IMAGES, IMAGES_TOGETHER = 8192, 1024  # more than the first are added up by blocks of the second
POINTS = 51  # of a curve that the bootstrap looks at; the statistic itself is read at all of them


class Reduction(Protocol):
    """From what is known of each image to one statistic.

    Attributes:
        description: what it does, for people.
        needs_curves: whether it needs the curves of images, not just their values.
    """

    @property
    def description(self) -> str: ...

    @property
    def needs_curves(self) -> bool: ...

    def statistic(self, data: Numbers) -> Numbers:
        """Reduce all images, (image, recipe, part) -> (recipe,)."""
        ...

    def resampled(self, data: Numbers, counts: Numbers) -> Numbers:
        """Reduce again with each image taken `counts` times, (resample, image) -> (resample, recipe)."""
        ...

    def jackknife(self, data: Numbers) -> Numbers:
        """Reduce again without each image in turn, (image, recipe)."""
        ...


@dataclass(frozen=True, slots=True)
class RatioOfSums:
    """A statistic that only needs sums over images: of values, or of counts.

    Attributes:
        description: what it does, for people.
        needs_curves: whether it needs the curves of images, not just their values.
        ratio: from sums, (..., part), and the number of images, (...), to statistics, (...).
    """

    description: str
    needs_curves: bool
    ratio: Callable[[Numbers, Any], Numbers]

    def statistic(self, data: Numbers) -> Numbers:
        """Reduce all images."""
        return self.ratio(data.sum(axis=0), float(len(data)))

    def resampled(self, data: Numbers, counts: Numbers) -> Numbers:
        """Reduce again with each image taken `counts` times."""
        return self.ratio(_summed(counts, data), counts.sum(axis=1)[:, None])

    def jackknife(self, data: Numbers) -> Numbers:
        """Reduce again without each image in turn."""
        return self.ratio(data.sum(axis=0) - data, float(len(data) - 1))

    def permuted(self, data: Numbers, signs: NDArray[Any], first: NDArray[Any], second: NDArray[Any]) -> Numbers:
        """Return the differences of pairs of recipes after they were exchanged on some images, (draw, pair).

        Signs are 1 where an image stays and -1 where the two recipes exchange it, (draw, image).
        """
        moved = _summed(signs, data)
        if not self.needs_curves:  # the difference of two means: no need to form both
            return np.asarray((moved[:, first, 0] - moved[:, second, 0]) / len(data))
        total = data.sum(axis=0)
        middle, half = (total[first] + total[second]) / 2, (moved[:, first] - moved[:, second]) / 2
        return self.ratio(middle + half, float(len(data))) - self.ratio(middle - half, float(len(data)))


@dataclass(frozen=True, slots=True)
class AreaOfMedian:
    """The area under the median of the images' curves, 0 to 1 across.

    Attributes:
        description: what it does, for people.
        needs_curves: whether it needs the curves of images; it does.
    """

    description: str = "area under the median curve"
    needs_curves: bool = True

    def statistic(self, data: Numbers) -> Numbers:
        """Reduce all images."""
        return _area(np.median(data, axis=0))

    def resampled(self, data: Numbers, counts: Numbers) -> Numbers:
        """Reduce again with each image taken `counts` times.

        The curves are read at some of their points; what this misses of the area is added again.
        """
        few = _thinned(data)
        missed = self.statistic(data) - self.statistic(few)
        orders = np.argsort(few, axis=0, kind="stable")
        # Image by image, in whole numbers: adding up and comparing then run along memory.
        weights = np.ascontiguousarray(counts.T, dtype=np.int16 if counts.sum(axis=1).max() < 2**15 else np.int32)
        medians = np.empty((len(counts), *few.shape[1:]))
        for point in np.ndindex(few.shape[1:]):  # of the curve of a recipe
            order = orders[(slice(None), *point)]
            medians[(slice(None), *point)] = _medians(few[(order, *point)], weights[order])
        return _area(medians) + missed

    def jackknife(self, data: Numbers) -> Numbers:
        """Reduce again without each image in turn."""
        few = _thinned(data)
        missed = self.statistic(data) - self.statistic(few)
        rising, rank = np.sort(few, axis=0), np.argsort(np.argsort(few, axis=0, kind="stable"), axis=0)
        lower, upper = (len(data) - 2) // 2, (len(data) - 1) // 2  # the middle among the images that stay
        at = [rising[middle] + (rank <= middle) * (rising[middle + 1] - rising[middle]) for middle in (lower, upper)]
        return _area((at[0] + at[1]) / 2) + missed


def _mean(sums: Numbers, count: Any) -> Numbers:
    return np.asarray(sums[..., 0] / count)


def _accuracy(sums: Numbers, count: Any) -> Numbers:
    """Divide right pixels by labelled ones."""
    right, labelled = sums[..., 0], sums[..., 1]
    return np.where(labelled > 0, right / np.where(labelled > 0, labelled, 1), np.nan)


def _iou(sums: Numbers, count: Any) -> Numbers:
    """Divide intersections, with background and object, by unions, and average the two; an empty union counts 0."""
    both, either = sums[..., :2], sums[..., 2:]
    ratios = both / np.where(either > 0, either, 1)
    return np.where(either.any(axis=-1), ratios.mean(axis=-1), np.nan)


MEAN = RatioOfSums("mean over images", False, _mean)
REDUCTIONS: Mapping[str, Reduction] = MappingProxyType(
    {
        "pixel_accuracy": RatioOfSums("right pixels of all images by labelled pixels of all images", True, _accuracy),
        "mean_iou": RatioOfSums("intersections by unions, each summed over all images", True, _iou),
        "sic": AreaOfMedian(),
        "aic": AreaOfMedian(),
    }
)


def reduction_of(metric: str) -> Reduction:
    """Return how a metric, given as a recipe, is reduced.

    >>> reduction_of("insertion(step=448)").description
    'mean over images'
    >>> reduction_of("sic").description
    'area under the median curve'
    """
    return REDUCTIONS.get(metric.partition("(")[0], MEAN)


def _summed(weights: NDArray[Any], data: Numbers) -> Numbers:
    """Add up images by weight, (draw, image) and (image, recipe, part) -> (draw, recipe, part).

    Of many images some are added up at a time, so that what is multiplied stays near the processor.
    """
    columns = data.reshape(len(data), -1)
    if len(data) <= MANY_IMAGES:
        return np.asarray((_floats(weights) @ columns).reshape(len(weights), *data.shape[1:]))
    summed = np.zeros((len(weights), columns.shape[1]))
    for start in range(0, len(data), IMAGES_TOGETHER):
        block = slice(start, start + IMAGES_TOGETHER)
        summed += _floats(weights[:, block]) @ columns[block]
    return summed.reshape(len(weights), *data.shape[1:])


def _floats(weights: NDArray[Any]) -> Numbers:
    """Return weights that may be whole numbers of one byte, which take an eighth of the memory."""
    return weights if weights.dtype == np.float64 else np.multiply(weights, 1.0)  # several times faster than `astype`


def _area(curves: Numbers) -> Numbers:
    """Return the area under evenly spaced points, 0 to 1 across, by the trapezoid rule."""
    ends = (curves[..., 0] + curves[..., -1]) / 2
    return np.asarray((curves.sum(axis=-1) - ends) / (curves.shape[-1] - 1))


def _thinned(data: Numbers) -> Numbers:
    """Keep evenly spaced points of curves, both ends among them."""
    points = data.shape[-1]
    step = max((points - 1) // (POINTS - 1), 1)
    return data[..., ::step] if (points - 1) % step == 0 else data


def _medians(rising: Numbers, counts: NDArray[Any]) -> Numbers:
    """Return the median of rising values, each taken some number of times, (value, resample) -> (resample,)."""
    upto = np.cumsum(counts, axis=0, dtype=counts.dtype)
    total = upto[-1]
    lower, upper = ((upto < rank).sum(axis=0, dtype=np.int32) for rank in ((total + 1) // 2, total // 2 + 1))
    return np.asarray((rising[lower] + rising[upper]) / 2)
