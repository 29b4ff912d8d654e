"""Colours: scaled here and nowhere else, neutral where a map says nothing."""

from __future__ import annotations

import numpy as np
import pytest

from sightline.report.palette import DIVERGING, SEQUENTIAL, colour, css_gradient, limit_of, palette_for, scaled

LUMINANCE = np.array([0.2126, 0.7152, 0.0722])


def lightness(table: np.ndarray) -> np.ndarray:
    """Return the relative luminance of each colour, from the definition of sRGB."""
    share = table / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    return linear @ LUMINANCE


@pytest.mark.parametrize("palette", [DIVERGING, SEQUENTIAL], ids=lambda palette: palette.name)
def test_a_palette_is_a_read_only_table_of_256_colours(palette):
    assert palette.table.shape == (256, 3)
    assert palette.table.dtype == np.uint8
    with pytest.raises(ValueError, match="read-only"):
        palette.table[0, 0] = 1


def test_the_sequential_palette_gets_lighter_at_every_step():
    steps = np.diff(lightness(SEQUENTIAL.table))
    assert (steps > -1e-3).all()
    assert lightness(SEQUENTIAL.table)[-1] - lightness(SEQUENTIAL.table)[0] > 0.8


def test_the_diverging_palette_gets_darker_to_both_sides_of_a_grey_middle():
    light = lightness(DIVERGING.table)
    assert (np.diff(light[1:129]) > -1e-3).all()
    assert (np.diff(light[128:]) < 1e-3).all()
    assert np.ptp(DIVERGING.neutral) <= 4


def test_anchor_colours_come_back_exactly():
    np.testing.assert_array_equal(SEQUENTIAL.table[0], [0x12, 0x09, 0x1F])
    np.testing.assert_array_equal(SEQUENTIAL.table[255], [0xFD, 0xFB, 0xDC])
    np.testing.assert_array_equal(DIVERGING.table[128], [0xEC, 0xEC, 0xEA])


def test_positive_is_red_and_negative_is_blue():
    minus, zero, plus = colour(np.array([-1.0, 0.0, 1.0]), DIVERGING, limit=1.0).astype(int)
    assert plus[0] > plus[2] + 80
    assert minus[2] > minus[0] + 80
    assert tuple(zero) == DIVERGING.neutral


def test_a_sign_is_seen_at_half_strength_too():
    minus, plus = colour(np.array([-0.5, 0.5]), DIVERGING, limit=1.0).astype(int)
    assert plus[0] > plus[2] + 40
    assert minus[2] > minus[0] + 40


@pytest.mark.parametrize("palette", [DIVERGING, SEQUENTIAL], ids=lambda palette: palette.name)
@pytest.mark.parametrize("value", [0.0, 3.0, -2.5, 1e300, 5e-324, np.nan])
def test_a_constant_map_is_neutral(palette, value):
    drawn = colour(np.full((5, 4), value), palette)
    assert drawn.shape == (5, 4, 3)
    np.testing.assert_array_equal(drawn, np.broadcast_to(palette.neutral, (5, 4, 3)))


def test_a_constant_map_with_rounding_noise_is_neutral():
    noisy = np.float32(0.1) + np.float32(1e-9) * np.arange(12, dtype=np.float32)
    assert limit_of(noisy) == 0.0


def test_the_limit_is_the_995th_per_mille_of_the_magnitudes():
    values = np.concatenate([np.linspace(-1, 1, 1000), [1e6]])
    assert limit_of(values) == pytest.approx(np.percentile(np.abs(values), 99.5))
    assert limit_of(values) < 1.0


def test_the_limit_is_the_largest_magnitude_where_nearly_all_is_zero():
    values = np.zeros(1000)
    values[7] = -4.0
    assert limit_of(values) == 4.0


def test_scaling_keeps_zero_and_the_sign():
    values = np.array([-2.0, -0.5, 0.0, 0.5, 1.0])
    np.testing.assert_allclose(scaled(values, limit=1.0), [-1.0, -0.5, 0.0, 0.5, 1.0])


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int32])
def test_scaling_never_alters_the_array_passed_in(kind):
    values = np.array([[-3, 0], [5, 1]], dtype=kind)
    before = values.copy()
    colour(values, DIVERGING)
    scaled(values)
    limit_of(values)
    np.testing.assert_array_equal(values, before)
    assert values.dtype == kind


def test_nan_is_neutral_and_infinity_is_the_full_colour():
    drawn = colour(np.array([np.nan, np.inf, -np.inf, 1.0, -1.0]), DIVERGING)
    assert tuple(drawn[0]) == DIVERGING.neutral
    np.testing.assert_array_equal(drawn[1], drawn[3])
    np.testing.assert_array_equal(drawn[2], drawn[4])


def test_an_empty_array_has_no_colours():
    assert colour(np.zeros((0, 3)), DIVERGING).shape == (0, 3, 3)


def test_maps_with_a_sign_get_the_diverging_palette_and_others_the_sequential_one():
    assert palette_for(np.array([1.0, -0.1])) is DIVERGING
    assert palette_for(np.array([1.0, 0.0, np.nan])) is SEQUENTIAL


def test_a_negative_value_on_the_sequential_palette_means_nothing():
    assert tuple(colour(np.array([-1.0]), SEQUENTIAL, limit=1.0)[0]) == SEQUENTIAL.neutral


def test_a_gradient_runs_from_the_first_colour_to_the_last():
    text = css_gradient(SEQUENTIAL, stops=3)
    assert text.startswith("linear-gradient(90deg, #12091f,")
    assert text.endswith("#fdfbdc)")
