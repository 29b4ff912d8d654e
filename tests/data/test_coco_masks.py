from __future__ import annotations

import numpy as np
import pytest
from tests.data.miniature import square

from sightline.data.coco_masks import annotation_mask, box_mask, decode_rle, fill_polygon, rle_mask
from sightline.errors import InputError


def inside(x, y, corners):
    """Tell by winding angles whether a point lies inside a convex or star-shaped outline around it."""
    found = False
    for (ax, ay), (bx, by) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        if (ay > y) != (by > y) and x < (bx - ax) * (y - ay) / (by - ay) + ax:
            found = not found
    return found


def test_a_square_on_the_pixel_grid_is_filled_exactly():
    mask = fill_polygon(square(3, 2, 4), 10, 12)
    want = np.zeros((10, 12), dtype=bool)
    want[2:6, 3:7] = True
    assert np.array_equal(mask, want)
    assert np.array_equal(mask, box_mask([3, 2, 4, 4], 10, 12))


def test_a_pixel_belongs_to_the_polygon_its_centre_lies_in():
    random = np.random.default_rng(0)
    for _ in range(20):
        corners = random.uniform(-5, 25, (random.integers(3, 9), 2))
        want = [[inside(x + 0.5, y + 0.5, corners) for x in range(20)] for y in range(17)]
        assert np.array_equal(fill_polygon(corners.ravel().tolist(), 17, 20), want)


def test_two_halves_make_the_whole_without_gap_or_overlap():
    left = fill_polygon([0, 0, 7.3, 0, 11.9, 20, 0, 20], 20, 20)
    right = fill_polygon([7.3, 0, 20, 0, 20, 20, 11.9, 20], 20, 20)
    assert (left ^ right).all()


def test_several_polygons_are_one_object_and_parts_outside_are_cut_off():
    mask = annotation_mask([square(-2, -2, 4), square(8, 8, 40)], 10, 10)
    want = np.zeros((10, 10), dtype=bool)
    want[:2, :2], want[8:, 8:] = True, True
    assert np.array_equal(mask, want)


def test_run_lengths_go_down_the_columns_background_first():
    mask = rle_mask([3, 2, 1], 2, 3)
    assert mask.tolist() == [[False, False, True], [False, True, False]]
    assert rle_mask([0, 6], 2, 3).all()


# encoded by COCO's own code: a rectangle, and noise drawn by numpy's generator of seed 1
PACKED = [
    ((60, 50), "f9n0n0" + "0" * 77 + "R9", None),
    ((9, 7), "0145NK0116NI1010N10032NOOO1O", 1),
]


@pytest.mark.parametrize(("size", "text", "seed"), PACKED)
def test_packed_run_lengths_are_those_of_the_published_code(size, text, seed):
    want = np.zeros(size, dtype=bool)
    want[10:40, 5:45] = True
    if seed is not None:
        want = np.random.default_rng(seed).random(size) > 0.5
    assert np.array_equal(annotation_mask({"size": list(size), "counts": text}, *size), want)


@pytest.mark.parametrize(
    ("segmentation", "says"),
    [
        ([[1, 2, 3, 4]], "encloses nothing"),
        ([[1, 2, 3, 4, 5]], "list of numbers"),
        ([["a", "b", "c", "d", "e", "f"]], "list of numbers"),
        ([[0, 0, float("nan"), 1, 5, 5]], "encloses nothing"),
        ({"size": [10, 10], "counts": [50, 49]}, "do not add up"),
        ({"size": [10, 10], "counts": [200, -100]}, "do not add up"),
        ({"size": [10, 10], "counts": [10**30]}, "whole numbers"),
        ({"size": [10, 10], "counts": None}, "whole numbers|do not add up"),
        ({"size": [9, 10], "counts": [100]}, "do not fit"),
        ({"size": [10, 10], "counts": "~~~~"}, "none of theirs"),
        ({"size": [10, 10], "counts": "oooooooooooooooooooooo"}, "none of theirs"),
        ({"size": [10, 10], "counts": "P"}, "in the middle"),
        ("text", "polygons or run lengths"),
    ],
)
def test_a_damaged_annotation_is_an_input_error(segmentation, says):
    with pytest.raises(InputError, match=says):
        annotation_mask(segmentation, 10, 10)


def test_an_annotation_larger_than_any_picture_is_refused():
    with pytest.raises(InputError, match="cannot be drawn"):
        annotation_mask([square(0, 0, 1)], 10**6, 10**6)


def test_numbers_are_told_as_differences_from_the_fourth_on():
    assert decode_rle("01234") == [0, 1, 2, 4, 6]
