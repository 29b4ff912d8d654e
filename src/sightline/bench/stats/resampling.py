r"""Statistics over images: how certain a statistic is, and whether two recipes differ.

Everything is paired: all recipes saw the same images, so images are resampled, and permuted, for all of them at once.
Every random choice comes from the seed and the number of images alone.

The bootstrap interval is Efron's BCa :cite:p:`efron1987`. With :math:`\hat\theta` the statistic, :math:`\theta^*_b`
that of resample :math:`b`, :math:`\theta_{(i)}` that of the jackknife without image :math:`i`, and :math:`\Phi` the
normal distribution,

.. math::
    z_0 = \Phi^{-1}\!\left(\frac{\#\{\theta^*_b < \hat\theta\} + \frac12 \#\{\theta^*_b = \hat\theta\}}{B}\right),
    \qquad a = \frac{\sum_i (\bar\theta - \theta_{(i)})^3}{6 \bigl(\sum_i (\bar\theta - \theta_{(i)})^2\bigr)^{3/2}},
    \qquad \alpha' = \Phi\!\left(z_0 + \frac{z_0 + z_\alpha}{1 - a (z_0 + z_\alpha)}\right)

and the ends are the quantiles :math:`\alpha'` of the resamples, for :math:`\alpha` at both tails.

The paired permutation test exchanges the two recipes on some images, as if it did not matter which was which, and
counts how often the difference comes out as large: all :math:`2^n` ways for few images, a random choice of them
otherwise. Over all pairs,
Holm's correction :cite:p:`holm1979` keeps the chance of a single false difference below one minus the confidence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from sightline.bench.stats.reduce import MANY_IMAGES, MEAN, Numbers, RatioOfSums, Reduction
from sightline.errors import InputError

Indices = NDArray[np.intp]

EXACT = 12  # images up to which every permutation is looked at
PERMUTATIONS = 9_999  # random ones otherwise, or more where many pairs ask for smaller p-values
MIN_IMAGES = 3  # images that an interval can be computed from
TOGETHER = 128  # random permutations of many images that are looked at together
MAX_NUMBERS = 500_000  # numbers held at a time: few enough to stay near the processor
BOOTSTRAP, PERMUTATION = 1, 2  # streams, so that the two never share their random numbers


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of the statistics: confidence, number of resamples, seed.

    Attributes:
        confidence: of intervals; one minus it is the chance of a false difference.
        resamples: of the bootstrap.
        seed: of resamples and permutations.
    """

    confidence: float = 0.95
    resamples: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise InputError(f"got confidence={self.confidence}; give a share between 0 and 1, for instance 0.95")
        if self.resamples < 1:
            raise InputError(f"got resamples={self.resamples}; give 1 or more, for instance 2000")
        if self.seed < 0:
            raise InputError(f"got seed={self.seed}; give 0 or more")


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """Statistics with their confidence intervals, one each per recipe or pair.

    Attributes:
        statistic: of all images.
        low: lower end of the interval, NaN for fewer than three images.
        high: upper end.
        standard_error: NaN for one image.
    """

    statistic: Numbers
    low: Numbers
    high: Numbers
    standard_error: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class Resamples:
    """Statistics of recipes or pairs: of all images, of bootstrap resamples, and of the jackknife.

    Attributes:
        statistic: shape (statistics,).
        bootstrap: of resamples, shape (resample, statistics); empty for fewer than three images.
        jackknife: without each image in turn, shape (image, statistics); empty for one image.
        smooth: whether the jackknife tells the standard error; of a median it does not.
    """

    statistic: Numbers
    bootstrap: Numbers
    jackknife: Numbers
    smooth: bool = True

    def differences(self, first: Indices, second: Indices) -> Resamples:
        """Return the differences of recipes; both sides of a pair are drawn together."""
        statistic, bootstrap, jackknife = (
            part[..., first] - part[..., second] for part in (self.statistic, self.bootstrap, self.jackknife)
        )
        return Resamples(statistic, bootstrap, jackknife, self.smooth)

    def part(self, chosen: slice) -> Resamples:
        """Return some of the statistics."""
        statistic, bootstrap, jackknife = (
            part[..., chosen] for part in (self.statistic, self.bootstrap, self.jackknife)
        )
        return Resamples(statistic, bootstrap, jackknife, self.smooth)

    def estimate(self, confidence: float) -> Estimate:
        """Return the statistics with their confidence intervals."""
        low = high = np.full_like(self.statistic, np.nan)
        if len(self.bootstrap):
            low, high = bca(self.statistic, self.bootstrap, self.jackknife, confidence)
        return Estimate(self.statistic, low, high, self._standard_errors())

    def _standard_errors(self) -> Numbers:
        images = len(self.jackknife)
        if not self.smooth and len(self.bootstrap):
            return np.asarray(self.bootstrap.std(axis=0))
        if images < 2:
            return np.full_like(self.statistic, np.nan)
        return np.asarray(self.jackknife.std(axis=0) * np.sqrt(images - 1))


def resample(reduction: Reduction, data: Numbers, settings: Settings) -> Resamples:
    """Reduce the images, (image, recipe, part), as they are, by bootstrap and by jackknife."""
    statistic, images = reduction.statistic(data), len(data)
    bootstrap = np.empty((0, len(statistic)))
    if images >= MIN_IMAGES:
        bootstrap = np.concatenate([reduction.resampled(data, counts) for counts in _counts(images, settings)])
    jackknife = reduction.jackknife(data) if images > 1 else np.empty((0, len(statistic)))
    return Resamples(statistic, bootstrap, jackknife, smooth=isinstance(reduction, RatioOfSums))


def _counts(images: int, settings: Settings) -> Iterator[Numbers]:
    """Yield how often each resample holds each image, a few thousand resamples at a time."""
    generator = np.random.default_rng([settings.seed, BOOTSTRAP])
    for rows in _batches(settings.resamples, images):
        chosen = generator.integers(0, images, size=(rows, images)) + images * np.arange(rows)[:, None]
        yield np.bincount(chosen.ravel(), minlength=rows * images).reshape(rows, images).astype(np.float64)


def bca(statistic: Numbers, bootstrap: Numbers, jackknife: Numbers, confidence: float) -> tuple[Numbers, Numbers]:
    """Return both ends of the BCa interval of each statistic.

    Where no resample differs from the statistic, the interval is the statistic.

    Args:
        statistic: of all images, (statistics,).
        bootstrap: of resamples, (resample, statistics).
        jackknife: without each image, (image, statistics).
        confidence: between 0 and 1.
    """
    distance = np.abs(bootstrap - statistic)
    # Where images score 0 or 1, many resamples equal the statistic but for rounding; they must not fall to either side.
    near = 1e-10 * distance.max(axis=0) + 1e-14 * np.abs(statistic)
    below = ((bootstrap < statistic - near).mean(axis=0) + (bootstrap <= statistic + near).mean(axis=0)) / 2
    least = 0.5 / len(bootstrap)
    bias, acceleration = ndtri(np.clip(below, least, 1 - least)), _acceleration(jackknife)
    rising = np.sort(bootstrap, axis=0)
    ends = []
    for tail in ((1 - confidence) / 2, (1 + confidence) / 2):
        shifted = bias + ndtri(tail)
        ends.append(_quantile(rising, ndtr(bias + shifted / (1 - acceleration * shifted))))
    fixed = distance.max(axis=0) <= 1e-13 * np.abs(statistic)
    return np.where(fixed, statistic, ends[0]), np.where(fixed, statistic, ends[1])


def _acceleration(jackknife: Numbers) -> Numbers:
    spread = jackknife.mean(axis=0) - jackknife
    squares = np.square(spread)
    below = squares.sum(axis=0) ** 1.5
    cubes = np.multiply(squares, spread, out=spread)  # a power of three takes ten times as long
    return np.asarray(cubes.sum(axis=0) / (6 * np.where(below > 0, below, 1)))


def _quantile(rising: Numbers, shares: Numbers) -> Numbers:
    """Read one quantile of each column of rising numbers, linear between its neighbours."""
    position = shares * (len(rising) - 1)
    lower = np.floor(position).astype(np.intp)
    upper, column = np.minimum(lower + 1, len(rising) - 1), np.arange(rising.shape[1])
    return np.asarray(rising[lower, column] + (position - lower) * (rising[upper, column] - rising[lower, column]))


def paired_permutation_test(
    reduction: Reduction, data: Numbers, values: Numbers, first: Indices, second: Indices, settings: Settings
) -> Numbers:
    """Return the two-sided p-value of each pair of recipes under the hypothesis that they may be exchanged.

    Where a reduction cannot be permuted (`AreaOfMedian`) the mean of the images' own values is tested in its place, and
    p is 1 where the two disagree on who is ahead.

    Args:
        reduction: from images to statistics.
        data: what it reduces, (image, recipe, part).
        values: of images, (image, recipe).
        first: recipe of each pair.
        second: recipe of each pair.
        settings: confidence and seed.
    """
    if not len(data) or not len(first):
        return np.ones(len(first))
    draws = max(PERMUTATIONS, ceil(2 * len(first) / (1 - settings.confidence)))
    if isinstance(reduction, RatioOfSums):
        return _p_values(reduction, data, first, second, draws, settings.seed)
    statistics, means = reduction.statistic(data), values.mean(axis=0)
    agree = np.sign(statistics[first] - statistics[second]) == np.sign(means[first] - means[second])
    return np.where(agree, _p_values(MEAN, values[..., None], first, second, draws, settings.seed), 1.0)


def _p_values(
    reduction: RatioOfSums, data: Numbers, first: Indices, second: Indices, wanted: int, seed: int
) -> Numbers:
    """Return the share of permutations whose difference lies as far from 0 as that of the images as they are."""
    images = len(data)
    observed = reduction.permuted(data, np.ones((1, images)), first, second)[0]
    # A difference equal but for rounding counts as equal; the scale is that of the numbers which were added up.
    scale = np.abs(reduction.statistic(np.abs(data)))
    far = np.abs(observed) - 1e-12 * (scale[first] + scale[second])
    exact = images <= EXACT or 2 ** (images - 1) <= wanted
    hits, draws = np.zeros(len(first)), 0
    width = max(images, len(first) * data.shape[2])
    for signs in _every_sign(images, width) if exact else _random_signs(images, wanted, width, seed):
        hits += (np.abs(reduction.permuted(data, signs, first, second)) >= far).sum(axis=0)
        draws += len(signs)
    return hits / draws if exact else (hits + 1) / (draws + 1)


def _every_sign(images: int, width: int) -> Iterator[Numbers]:
    """Yield half of all permutations: the other half is the same with both recipes' names exchanged."""
    start = 0
    for rows in _batches(2 ** (images - 1), width):
        bits = np.arange(start, start + rows)[:, None] >> np.arange(images) & 1
        yield (1 - 2 * bits).astype(np.float64)
        start += rows


def _random_signs(images: int, draws: int, width: int, seed: int) -> Iterator[NDArray[np.int8]]:
    """Yield random permutations, of many images `TOGETHER` at a time, whatever the batches that they are drawn in."""
    generator = np.random.default_rng([seed, PERMUTATION])
    waiting: list[NDArray[np.int8]] = []
    for rows in _batches(draws, width):
        waiting.append(_drawn_signs(generator, rows, images))
        if images <= MANY_IMAGES or sum(map(len, waiting)) >= TOGETHER:
            yield np.concatenate(waiting)
            waiting.clear()
    if waiting:
        yield np.concatenate(waiting)


def _drawn_signs(generator: np.random.Generator, rows: int, images: int) -> NDArray[np.int8]:
    """Return what ``1 - 2 * generator.integers(0, 2, size=(rows, images), dtype=np.int8)`` does, in half the time.

    NumPy makes such a number of the highest bit of a byte, and takes four bytes at a time from its random numbers.
    """
    count = rows * images
    drawn = generator.integers(0, 2**32, size=-(-count // 4), dtype=np.uint32).astype("<u4", copy=False)
    highest = drawn.view(np.int8)[:count].reshape(rows, images) >> 7  # 0 or -1
    return highest | np.int8(1)


def _batches(rows: int, width: int) -> list[int]:
    """Split a number of rows into batches that fit into memory."""
    most = max(MAX_NUMBERS // width, 1)
    return [most] * (rows // most) + [rows % most] * (rows % most > 0)


def holm(p_values: Numbers) -> Numbers:
    """Return Holm's adjusted p-values: the smallest times the number of tests, the next times one fewer, never falling.

    >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(p_values), 0, -1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(np.maximum.accumulate(p_values[order] * factors), 1.0)
    return adjusted


def pairs_of(count: int) -> tuple[Indices, Indices]:
    """Return the two sides of every pair of so many recipes."""
    first, second = np.triu_indices(count, k=1)
    return first, second


def win_rates(values: Numbers, sign: int = 1) -> Numbers:
    """Return each recipe's share of won comparisons with the others, image by image, draws counting half.

    Args:
        values: of images, (image, recipe); NaN where a recipe has no value, which is compared with nobody.
        sign: -1 where lower values are better.
    """
    from scipy.stats import rankdata

    beaten, rivals, start = np.zeros(values.shape[1]), np.zeros(values.shape[1], dtype=np.int64), 0
    for images in _batches(len(values), max(values.shape[1], 1)):
        better = sign * values[start : start + images]
        known = np.isfinite(better)
        ranks: NDArray[Any] = rankdata(np.where(known, better, -np.inf), axis=1)
        rivals += np.where(known, known.sum(axis=1, keepdims=True) - 1, 0).sum(axis=0)
        beaten += np.where(known, ranks - 1 - (~known).sum(axis=1, keepdims=True), 0.0).sum(axis=0)
        start += images
    return np.where(rivals > 0, beaten / np.maximum(rivals, 1), np.nan)
