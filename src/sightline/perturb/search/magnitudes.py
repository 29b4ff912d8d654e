r"""Magnitudes for an order: how much each segment must weigh for the density of a map to follow a response curve.

The order says which segment comes first, a response curve :math:`c_0 \ge \dots \ge c_n` how much of the response is
left after each. The drops of the closest convex curve are the segments' weights: they fall along the order, so the
weights keep it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import lsq_linear, nnls

KEEPS_ORDER = 1e-6  # of the largest value, spread along the order
NEAR_OPTIMUM = 1e-9  # the largest gradient of a least-squares solution that counts as one
Array = np.ndarray[Any, np.dtype[np.float64]]


def falling_curve(responses: Sequence[float], empty: float, full: float) -> Array:
    """Return how much of the response is left, from 1 for the image's own score to 0 for the empty image's.

    Clipped to that range, and never rising.
    """
    return np.minimum.accumulate(_share(responses, empty, full))


def mean_curve(inserted: Array, deleted: Array, endpoint_scores: tuple[float, float, float], count: int) -> Array:
    """Return the mean of an insertion curve turned over and a deletion curve, at `count` + 1 points, falling.

    Args:
        inserted: the score as pixels are inserted, both endpoints included.
        deleted: the score as pixels are deleted, both endpoints included.
        endpoint_scores: the scores of the image, of the blurred image and of the blank one.
        count: how many segments there are.
    """
    full, blur, empty = endpoint_scores
    rising = np.maximum.accumulate(_share(inserted, blur, full))
    falling = falling_curve(deleted.tolist(), empty, full)
    at, measured = np.linspace(0, 1, count + 1), np.linspace(0, 1, len(rising))
    mean: Array = 1 - (np.interp(at, measured, rising) + 1 - np.interp(at, measured, falling)) / 2
    return mean


def curve_areas(
    inserted: Array, deleted: Array, endpoint_scores: tuple[float, float, float], at: Array
) -> tuple[float, float]:
    """Return the areas under an insertion and a deletion curve, scaled and monotone, given at the points `at`, 0 to 1.

    Args:
        inserted: the score as pixels are inserted, both endpoints included.
        deleted: the score as pixels are deleted, both endpoints included.
        endpoint_scores: the scores of the image, of where insertion starts and of where deletion ends.
        at: the share of the pixels at each point.
    """
    full, start, end = endpoint_scores
    rising = np.maximum.accumulate(_share(inserted, start, full))
    falling = falling_curve(deleted.tolist(), end, full)
    return float(np.trapezoid(rising, at)), float(np.trapezoid(falling, at))


def _share(responses: Array | Sequence[float], nothing: float, everything: float) -> Array:
    """Scale responses so that one end is 0 and the other 1, and clip them."""
    span = abs(everything - nothing) or 1.0
    clipped: Array = np.clip((np.asarray(responses, dtype=float) - nothing) / span, 0.0, 1.0)
    return clipped


def convex_fit(curve: Array) -> Array:
    r"""Return the convex curve between the same endpoints that is closest to a falling one.

    .. math:: \min_u \lVert u - c \rVert^2 \quad\text{subject to}\quad
        u_{i-1} - 2u_i + u_{i+1} \ge 0,\; u_0 = c_0,\; u_n = c_n

    A convex curve is its chord minus tents of heights :math:`w_j \ge 0`, one per inner point, so this is a
    non-negative least-squares problem, which is solved exactly. The bounds :math:`0 \le u \le 1` need no saying: where
    c falls and keeps them, :math:`\max(u, c_n)` would be convex too, and closer.
    """
    n = len(curve) - 1
    at = np.arange(n + 1) / n
    chord: Array = curve[0] + (curve[-1] - curve[0]) * at
    if n < 2:
        return chord
    inner = at[1:-1]
    tents = np.minimum.outer(inner, inner) - np.outer(inner, inner)
    # in units of the second difference a tent is 1/n high; scaling each to height one keeps the problem well posed
    height = tents.max(axis=0)
    fit: Array = chord.copy()
    fit[1:-1] -= (tents / height) @ _nonnegative_least_squares(tents / height, chord[1:-1] - curve[1:-1])
    return fit


def _nonnegative_least_squares(matrix: Array, wanted: Array) -> Array:
    """Minimise ‖matrix x − wanted‖ over x ≥ 0.

    The solver of scipy 1.17 returns, without a word, x far from the optimum for some inputs; a slower one then does.
    """
    x: Array = nnls(matrix, wanted, maxiter=100 * len(wanted))[0]
    gain = matrix.T @ (wanted - matrix @ x)  # at the optimum 0 where x is positive, and nowhere above 0
    if max(gain.max(), np.abs(gain[x > 0]).max(initial=0.0)) > NEAR_OPTIMUM:
        x = lsq_linear(matrix, wanted, bounds=(0.0, np.inf), method="bvls").x
    return x


def segment_values(fit: Array, pixels: Array) -> Array:
    r"""Return the value of each segment's pixels, the segments in their order.

    .. math:: a_i = d_i \Bigl(\frac1{m_i} + \frac{n-i}{n}\Bigr) + \varepsilon\,\frac{n-i}{n},
        \qquad d_i = u_{i-1} - u_i

    with :math:`m_i` the pixels of the i-th segment. The second term tells segments of equal drops apart. Where the
    exact optimum has no drop at all the order would be lost (a solver that stops early leaves a residue that keeps
    it), so a millionth of the largest value, :math:`\varepsilon`, is spread along the order.
    """
    n = len(pixels)
    left = (n - np.arange(1, n + 1)) / n
    drops: Array = np.maximum(fit[:-1] - fit[1:], 0.0)
    values: Array = drops * (1.0 / pixels + left)
    return values + KEEPS_ORDER * (values.max() or 1.0) * left


def dense_values(sparse: Array, kappa: float) -> Array:
    r"""Return values that fall evenly along the order where a segment matters.

    .. math:: b_i = \begin{cases} (n-i)/n & a_i \ge \kappa \\ a_i & \text{else} \end{cases}

    scaled so that the largest is the largest of `sparse`.
    """
    n = len(sparse)
    even = (n - np.arange(1, n + 1)) / n
    dense: Array = np.where(sparse >= kappa, even, sparse)
    top = dense.max()
    return dense * (sparse.max() / top) if top > 0 else dense
