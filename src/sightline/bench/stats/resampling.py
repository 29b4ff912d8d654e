r"""Statistics over images: how sure a figure is, and whether two recipes differ.

Everything is paired: all recipes saw the same images, so images are resampled, and swapped, for all of them at once.
Every random choice comes from the seed and the number of images alone.

The bootstrap interval is Efron's BCa :cite:p:`efron1987`. With :math:`\hat\theta` the figure, :math:`\theta^*_b` that
of resample :math:`b`, :math:`\theta_{(i)}` that without image :math:`i`, and :math:`\Phi` the normal distribution,

.. math::
    z_0 = \Phi^{-1}\!\left(\frac{\#\{\theta^*_b < \hat\theta\} + \frac12 \#\{\theta^*_b = \hat\theta\}}{B}\right),
    \qquad a = \frac{\sum_i (\bar\theta - \theta_{(i)})^3}{6 \bigl(\sum_i (\bar\theta - \theta_{(i)})^2\bigr)^{3/2}},
    \qquad \alpha' = \Phi\!\left(z_0 + \frac{z_0 + z_\alpha}{1 - a (z_0 + z_\alpha)}\right)

and the ends are the quantiles :math:`\alpha'` of the resamples, for :math:`\alpha` at both tails.

The test swaps the two recipes on some images, as if it did not matter which was which, and counts how often the
difference comes out as large: all :math:`2^n` ways for few images, a random choice of them otherwise. Over all pairs,
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

from sightline.bench.stats.reduce import MEAN, Numbers, OfSums, Reduction
from sightline.errors import InputError

Places = NDArray[np.intp]

EXACT = 12  # images up to which every way to swap them is looked at
FLIPS = 9_999  # random ways otherwise, or more where many pairs ask for smaller p-values
FEWEST = 3  # images that an interval can be told from
ROOM = 500_000  # numbers held at a time: few enough to stay near the processor
BOOTSTRAP, SWAPS = 1, 2  # so that the two never share their random numbers


@dataclass(frozen=True, slots=True)
class Settings:
    """How sure, how often, and from which seed.

    Attributes:
        confidence: of intervals; one minus it is the chance of a false difference.
        resamples: of the bootstrap.
        seed: of resamples and swaps.
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
    """Figures with their intervals, one each per recipe or pair.

    Attributes:
        figure: of all images.
        low: lower end of the interval, NaN for fewer than three images.
        high: upper end.
        error: standard error, NaN for one image.
    """

    figure: Numbers
    low: Numbers
    high: Numbers
    error: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class Resamples:
    """Figures of recipes or pairs: of all images, of bootstrap resamples, and without each image.

    Attributes:
        figure: shape (figures,).
        drawn: shape (resample, figures); empty for fewer than three images.
        left_out: shape (image, figures); empty for one image.
        smooth: whether leaving images out tells the standard error; of a median it does not.
    """

    figure: Numbers
    drawn: Numbers
    left_out: Numbers
    smooth: bool = True

    def differences(self, one: Places, other: Places) -> Resamples:
        """Return the differences of recipes; both sides of a pair are drawn together."""
        figure, drawn, left_out = (
            part[..., one] - part[..., other] for part in (self.figure, self.drawn, self.left_out)
        )
        return Resamples(figure, drawn, left_out, self.smooth)

    def estimate(self, confidence: float) -> Estimate:
        """Return the figures with their intervals."""
        unknown = np.full_like(self.figure, np.nan)
        low, high = bca(self.figure, self.drawn, self.left_out, confidence) if len(self.drawn) else (unknown, unknown)
        return Estimate(self.figure, low, high, self._errors())

    def _errors(self) -> Numbers:
        images = len(self.left_out)
        if not self.smooth and len(self.drawn):
            return np.asarray(self.drawn.std(axis=0))
        if images < 2:
            return np.full_like(self.figure, np.nan)
        return np.asarray(self.left_out.std(axis=0) * np.sqrt(images - 1))


def resample(reduction: Reduction, data: Numbers, settings: Settings) -> Resamples:
    """Reduce the images, (image, recipe, part), as they are, resampled, and one left out."""
    figure, images = reduction.figure(data), len(data)
    drawn = np.empty((0, len(figure)))
    if images >= FEWEST:
        drawn = np.concatenate([reduction.resampled(data, counts) for counts in _counts(images, settings)])
    left_out = reduction.left_out(data) if images > 1 else np.empty((0, len(figure)))
    return Resamples(figure, drawn, left_out, smooth=isinstance(reduction, OfSums))


def _counts(images: int, settings: Settings) -> Iterator[Numbers]:
    """Yield how often each resample holds each image, a few thousand resamples at a time."""
    generator = np.random.default_rng([settings.seed, BOOTSTRAP])
    for rows in _portions(settings.resamples, images):
        chosen = generator.integers(0, images, size=(rows, images)) + images * np.arange(rows)[:, None]
        yield np.bincount(chosen.ravel(), minlength=rows * images).reshape(rows, images).astype(np.float64)


def bca(figure: Numbers, drawn: Numbers, left_out: Numbers, confidence: float) -> tuple[Numbers, Numbers]:
    """Return both ends of the BCa interval of each figure.

    Where no resample differs from the figure, the interval is the figure.

    Args:
        figure: of all images, (figures,).
        drawn: of resamples, (resample, figures).
        left_out: without each image, (image, figures).
        confidence: between 0 and 1.
    """
    distance = np.abs(drawn - figure)
    # Where images score 0 or 1, many resamples equal the figure but for rounding; they must not fall to either side.
    near = 1e-10 * distance.max(axis=0) + 1e-14 * np.abs(figure)
    below = ((drawn < figure - near).mean(axis=0) + (drawn <= figure + near).mean(axis=0)) / 2
    least = 0.5 / len(drawn)
    bias, acceleration = ndtri(np.clip(below, least, 1 - least)), _acceleration(left_out)
    rising = np.sort(drawn, axis=0)
    ends = []
    for tail in ((1 - confidence) / 2, (1 + confidence) / 2):
        shifted = bias + ndtri(tail)
        ends.append(_quantile(rising, ndtr(bias + shifted / (1 - acceleration * shifted))))
    fixed = distance.max(axis=0) <= 1e-13 * np.abs(figure)
    return np.where(fixed, figure, ends[0]), np.where(fixed, figure, ends[1])


def _acceleration(left_out: Numbers) -> Numbers:
    spread = left_out.mean(axis=0) - left_out
    below = np.square(spread).sum(axis=0) ** 1.5
    return np.asarray((spread**3).sum(axis=0) / (6 * np.where(below > 0, below, 1)))


def _quantile(rising: Numbers, shares: Numbers) -> Numbers:
    """Read one quantile of each column of rising numbers, linear between its neighbours."""
    place = shares * (len(rising) - 1)
    lower = np.floor(place).astype(np.intp)
    upper, column = np.minimum(lower + 1, len(rising) - 1), np.arange(rising.shape[1])
    return np.asarray(rising[lower, column] + (place - lower) * (rising[upper, column] - rising[lower, column]))


def swap_test(
    reduction: Reduction, data: Numbers, values: Numbers, one: Places, other: Places, settings: Settings
) -> Numbers:
    """Return the two-sided p-value of each pair of recipes: may they be swapped on every image?

    Where a reduction cannot be swapped (`AreaOfMedian`) the mean of the images' own values is tested in its place, and
    p is 1 where the two disagree on who is ahead.

    Args:
        reduction: from images to figures.
        data: what it reduces, (image, recipe, part).
        values: of images, (image, recipe).
        one: first recipe of each pair.
        other: second recipe of each pair.
        settings: confidence and seed.
    """
    if not len(data) or not len(one):
        return np.ones(len(one))
    wanted = max(FLIPS, ceil(2 * len(one) / (1 - settings.confidence)))
    if isinstance(reduction, OfSums):
        return _share_as_far(reduction, data, one, other, wanted, settings.seed)
    figures, means = reduction.figure(data), values.mean(axis=0)
    agree = np.sign(figures[one] - figures[other]) == np.sign(means[one] - means[other])
    return np.where(agree, _share_as_far(MEAN, values[..., None], one, other, wanted, settings.seed), 1.0)


def _share_as_far(reduction: OfSums, data: Numbers, one: Places, other: Places, wanted: int, seed: int) -> Numbers:
    """Return the share of swaps whose difference lies as far from 0 as that of the images as they are."""
    images = len(data)
    unswapped = reduction.swapped(data, np.ones((1, images)), one, other)[0]
    # A difference equal but for rounding counts as equal; the scale is that of the numbers which were added up.
    scale = np.abs(reduction.figure(np.abs(data)))
    far = np.abs(unswapped) - 1e-12 * (scale[one] + scale[other])
    exact = images <= EXACT or 2 ** (images - 1) <= wanted
    hits, draws = np.zeros(len(one)), 0
    width = max(images, len(one) * data.shape[2])
    for signs in _every_sign(images, width) if exact else _random_signs(images, wanted, width, seed):
        hits += (np.abs(reduction.swapped(data, signs, one, other)) >= far).sum(axis=0)
        draws += len(signs)
    return hits / draws if exact else (hits + 1) / (draws + 1)


def _every_sign(images: int, width: int) -> Iterator[Numbers]:
    """Yield half of the ways to swap images: the other half is the same with both recipes' names exchanged."""
    start = 0
    for rows in _portions(2 ** (images - 1), width):
        bits = np.arange(start, start + rows)[:, None] >> np.arange(images) & 1
        yield (1 - 2 * bits).astype(np.float64)
        start += rows


def _random_signs(images: int, draws: int, width: int, seed: int) -> Iterator[Numbers]:
    generator = np.random.default_rng([seed, SWAPS])
    for rows in _portions(draws, width):
        yield (1 - 2 * generator.integers(0, 2, size=(rows, images), dtype=np.int8)).astype(np.float64)


def _portions(rows: int, width: int) -> list[int]:
    """Cut a number of rows into portions that fit into memory."""
    most = max(ROOM // width, 1)
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


def pairs_of(count: int) -> tuple[Places, Places]:
    """Return the two sides of every pair of so many recipes."""
    one, other = np.triu_indices(count, k=1)
    return one, other


def win_rates(better: Numbers) -> Numbers:
    """Return each recipe's share of won comparisons with the others, image by image, draws counting half.

    Args:
        better: the more the better, (image, recipe).
    """
    from scipy.stats import rankdata

    count = better.shape[1]
    if count < 2 or not len(better):
        return np.full(count, np.nan)
    beaten: NDArray[Any] = rankdata(better, axis=1) - 1
    return np.asarray(beaten.mean(axis=0) / (count - 1))
