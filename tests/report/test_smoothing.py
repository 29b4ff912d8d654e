"""Maps for the eye: single pixels are smoothed and said to be, cells stay as they are, and values are never touched."""

import numpy as np
import pytest
from PIL import Image

from sightline.report.figure import overlay, shown_map, smoothing_note, smoothing_of
from sightline.report.outline import INNER, outlined


def scattered(side: int = 64) -> np.ndarray:
    """Return a map of single pixels on one half of the image."""
    values = np.random.default_rng(0).exponential(size=(side, side)) ** 4
    values[:, side // 2 :] = 0
    return values


def test_a_map_of_single_pixels_is_smoothed_for_showing_alone():
    values = scattered()
    before = values.copy()
    shown = shown_map(values)
    assert (values == before).all()
    assert smoothing_of(values) == 1.0
    assert smoothing_note(values) == "shown smoothed"
    assert shown.max() < np.percentile(values, 98)
    assert shown[:, 40:].max() == 0  # nothing where there was nothing near


def test_a_smoothed_map_covers_more_of_the_picture():
    values, ground = scattered(), Image.new("RGB", (64, 64), "white")

    def covered(map: np.ndarray) -> float:
        return float((np.asarray(overlay(ground, map)).min(axis=2) < 200).mean())

    assert covered(shown_map(values)) > 2 * covered(values)


def test_cells_constant_maps_and_undefined_values_stay_as_they_are():
    cells = np.kron(np.random.default_rng(1).normal(size=(8, 8)), np.ones((8, 8)))
    for values in (cells, np.zeros((8, 8)), np.ones((1, 8)), np.full((8, 8), np.nan)):
        assert shown_map(values) is values
        assert smoothing_note(values) == ""


def test_an_outline_runs_along_the_inside_of_the_region():
    region = np.zeros((8, 8), dtype=bool)
    region[2:6, 2:6] = True
    drawn = np.asarray(outlined(Image.new("RGB", (80, 80), "white"), region))
    line = (drawn == INNER).all(axis=2)
    assert line[20, 20:60].all()
    assert line[20:60, 59].all()
    assert not line[25:55, 25:55].any()
    assert (drawn[:15] == 255).all()


@pytest.mark.parametrize("region", [None, np.zeros((4, 4), dtype=bool)])
def test_without_a_region_the_picture_stays(region):
    picture = Image.new("RGB", (4, 4))
    assert outlined(picture, region) is picture
