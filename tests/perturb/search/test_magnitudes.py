"""Magnitudes: the convex fit is the optimum, and values keep the order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sightline.perturb.search.magnitudes import (
    Array,
    convex_fit,
    dense_values,
    falling_curve,
    mean_curve,
    segment_values,
)

responses = st.lists(st.floats(0, 1), min_size=1, max_size=60)
WRONG_IN_SCIPY = [0.65625, 1.0, 1.0, *[0.0] * 16]  # scipy 1.17.1's nnls ends at three times the least error


def falling(drawn: list[float]) -> Array:
    return np.minimum.accumulate(np.array([1.0, *drawn]))


@given(responses)
@example(WRONG_IN_SCIPY)
def test_a_fit_is_convex_between_the_same_ends_and_within_their_range(drawn: list[float]) -> None:
    curve = falling(drawn)
    fit = convex_fit(curve)
    assert fit[0] == pytest.approx(curve[0], abs=1e-12)
    assert fit[-1] == pytest.approx(curve[-1], abs=1e-12)
    assert (np.diff(fit, 2) >= -1e-10).all()
    assert fit.min() >= curve[-1] - 1e-10
    assert fit.max() <= 1 + 1e-10


@given(responses)
@example(WRONG_IN_SCIPY)
def test_a_fit_meets_the_conditions_of_an_optimum(drawn: list[float]) -> None:
    """The residual, summed up twice, is nowhere negative, and zero wherever the curve bends (Karush, Kuhn, Tucker)."""
    curve = falling(drawn)
    fit = convex_fit(curve)
    n = len(curve) - 1
    at = np.arange(n + 1) / n
    for inner in range(1, n):
        tent = np.minimum(at, at[inner]) - at * at[inner]
        pull = tent @ (curve - fit)  # what making this tent higher would gain, times -1
        bend = fit[inner - 1] - 2 * fit[inner] + fit[inner + 1]
        assert pull >= -1e-8
        assert min(pull, bend * n) <= 1e-6


@given(responses)
def test_no_convex_curve_is_closer(drawn: list[float]) -> None:
    curve = falling(drawn)
    fit = convex_fit(curve)
    at = np.linspace(0, 1, len(curve))
    for power in (1, 2, 5):
        other = curve[-1] + (curve[0] - curve[-1]) * (1 - at) ** power
        assert np.square(fit - curve).sum() <= np.square(other - curve).sum() + 1e-10


@given(responses, st.floats(0, 1))
def test_values_keep_the_order_strictly_also_when_made_dense(drawn: list[float], kappa: float) -> None:
    values = segment_values(convex_fit(falling(drawn)), np.full(len(drawn), 256.0))
    assert (np.diff(values) < 0).all()
    assert (np.diff(dense_values(values, kappa)) < 0).all()


def test_a_convex_curve_is_its_own_fit() -> None:
    curve = np.array([1.0, 0.5, 0.25, 0.1, 0.0])
    assert convex_fit(curve) == pytest.approx(curve)
    assert segment_values(curve, np.full(4, 10.0)) == pytest.approx(
        np.array([0.5, 0.25, 0.15, 0.1]) * (0.1 + np.array([0.75, 0.5, 0.25, 0.0])), abs=1e-6
    )


def test_dense_values_fall_evenly_where_segments_matter() -> None:
    sparse = np.array([0.4, 0.2, 0.1, 0.001])
    assert dense_values(sparse, kappa=0.05) == pytest.approx(np.array([0.75, 0.5, 0.25, 0.001]) * 0.4 / 0.75)
    assert dense_values(np.zeros(3), kappa=0.1) == pytest.approx(np.zeros(3))


def test_curves_are_scaled_clipped_and_monotone() -> None:
    assert falling_curve([0.8, 0.9, 0.3, 0.5, 0.0], 0.1, 0.8) == pytest.approx(np.array([1, 1, 2 / 7, 2 / 7, 0]))
    rising, sinking = np.array([0.1, 0.6, 0.5, 0.9]), np.array([0.9, 0.4, 0.5, 0.1])
    got = mean_curve(rising, sinking, (0.9, 0.1, 0.1), 3)
    assert got == pytest.approx(np.array([1.0, 0.375, 0.375, 0.0]))
    assert len(mean_curve(rising, sinking, (0.9, 0.1, 0.1), 7)) == 8


@pytest.mark.parametrize("name", ["mda_grid_A", "mda_slic_A"])
def test_fits_are_at_least_as_close_as_the_released_programs(name: str, shared: Path) -> None:
    """Its interior-point solver stops some 3e-4 short of the optimum."""
    numbers = np.load(shared / "golden" / "photo" / f"{name}.npz")
    for curve, theirs in ((numbers[f"curve{i}_f64"], numbers[f"curve{i}_fit_f64"]) for i in (1, 2)):
        ours = convex_fit(curve)
        assert np.square(ours - curve).sum() <= np.square(theirs - curve).sum()
        assert np.abs(ours - theirs).max() < 4e-4
    pixels = numbers["pixels_per_segment"][numbers["order"]].astype(float)
    values = segment_values(numbers["curve2_fit_f64"], pixels)
    theirs = numbers["sparse_per_segment"][numbers["order"]]
    assert np.abs(values - theirs).max() < 2e-6 * theirs.max()
    dense = dense_values(values, 0.005)
    assert np.abs(dense - numbers["dense_per_segment"][numbers["order"]]).max() < 2e-6 * theirs.max()
    curve2 = mean_curve(numbers["mas_ins_response_f64"], numbers["mas_del_response_f64"], (1.0, 0.0, 0.0), len(pixels))
    assert curve2 == pytest.approx(numbers["curve2_f64"], abs=1e-12)
