"""Figures of maps: grids over classes and methods, the distribution over classes, maps times the input, layers."""

import numpy as np
import pytest
import torch
from PIL import Image

import sightline
from sightline.audit.figures.class_maps import class_maps, operated
from sightline.data.shapes import Shapes
from sightline.errors import InputError
from sightline.operators.contrast import ClassDistribution
from sightline.report.figure import DIVERGING, colour, overlay
from sightline.report.figures.classes import class_grid, method_panel
from sightline.report.figures.distribution import class_distribution, distribution_of, mixed_colours, stacked_shares
from sightline.report.figures.layers import layer_strip
from sightline.report.figures.sheet import Cell, Row, sheet
from sightline.report.figures.times_input import lit, maps_times_input
from sightline.types import Attribution, TokenGrid

GREY = torch.full((1, 3, 8, 8), 128, dtype=torch.uint8)


def attribution(values, recipe="ixg", label="star", **options):
    values = torch.as_tensor(values, dtype=torch.float32)
    grid = TokenGrid(*values.shape[-2:], image=(8, 8))
    return Attribution(values.reshape(-1, 1, *values.shape[-2:]), grid, recipe, labels=(label,), seen=GREY, **options)


def cell(picture, row, column, *, named=True, width=160, scale=2):
    """Return the middle of a square picture of a sheet without a title, whose cells have titles and no notes."""
    height = (22 if named else 0) + 19 + width
    upper = 20 + row * (height + 10) + height - width // 2
    left = 20 + column * (width + 10) + width // 2
    return np.array(picture.getpixel((left * scale, upper * scale)), dtype=int)


def test_a_row_per_method_and_a_column_per_class():
    one, other = np.ones((8, 8)), -np.ones((8, 8))
    one[0, 0] = other[0, 0] = 0
    rows = [
        [attribution(one), attribution(other, label="circle")],
        [attribution(other, "gae"), attribution(one, "gae")],
    ]
    picture = class_grid(rows)
    assert picture.width == 2 * (40 + 3 * 160 + 2 * 10)
    for row, signs in enumerate([(1, -1), (-1, 1)]):
        for column, sign in enumerate(signs, 1):
            red, _, blue = cell(picture, row, column)
            assert np.sign(red - blue) == sign
    assert (cell(picture, 0, 0) == 128).all()
    assert (cell(picture, 1, 0) == 255).all()  # the photograph is drawn once


def test_one_scale_for_the_classes_of_a_method():
    strong, weak = np.full((8, 8), 4.0), np.full((8, 8), 1.0)
    strong[0, 0] = weak[0, 0] = 0
    rows = [[attribution(strong), attribution(weak)]]
    own, common = class_grid(rows), class_grid(rows, common=True)
    assert (cell(own, 0, 1) == cell(own, 0, 2)).all()
    quarter = overlay(Image.new("RGB", (8, 8), (128,) * 3), np.full((8, 8), 1.0), limit=4.0).getpixel((4, 4))
    line = 22  # the sheet says that the scale is shared
    found = common.getpixel((2 * (20 + 2 * 170 + 80), 2 * (20 + line + 22 + 19 + 80)))
    assert np.abs(np.array(found) - quarter).max() <= 1


def test_a_row_per_class_needs_the_same_methods():
    maps = attribution(np.eye(8))
    assert method_panel([[maps, maps], [maps, maps]]).height > method_panel([[maps, maps]]).height
    with pytest.raises(InputError, match="2 and 1 maps"):
        method_panel([[maps, maps], [maps]])
    with pytest.raises(InputError, match="give every row one"):
        class_grid([[]])


def test_the_shares_of_two_classes_are_mixed_and_stacked():
    left = np.zeros((4, 4))
    left[:, :2] = 1
    shares = np.stack([left, 1 - left])
    mixed, stacked = mixed_colours(shares), stacked_shares(shares)
    assert (mixed == stacked).all()  # each column belongs to one class
    assert (mixed[:, 0] != mixed[:, 3]).any()
    quarter = stacked_shares(np.stack([np.full((4, 4), 0.25), np.full((4, 4), 0.75)]))
    assert (quarter[3] == mixed[0, 0]).all()
    assert (quarter[:3] == mixed[0, 3]).all()


def test_a_distribution_is_drawn_for_the_classes_that_an_image_has():
    q = torch.rand(3, 1, 1, 8, 8, dtype=torch.float64)
    q[2] = 0
    maps = attribution(np.eye(8), details=ClassDistribution(torch.tensor([[1, 0, -1]]), q))
    classes, shares = distribution_of(maps)
    assert classes == [1, 0]
    assert np.array_equal(shares, q[:2, 0, 0].numpy())
    assert class_distribution(maps, ["circle", "star"]).width == 2 * (40 + 3 * 160 + 20)
    with pytest.raises(InputError, match="distribution=True"):
        class_distribution(attribution(np.eye(8)), [])


def test_the_photograph_shines_where_the_evidence_is():
    picture = Image.new("RGB", (2, 1), (200, 100, 50))
    assert np.asarray(lit(picture, np.array([[2.0, -2.0]]))).tolist() == [[[200, 100, 50], [0, 0, 0]]]
    signed, positive = attribution(np.eye(8) - 0.5), attribution(np.eye(8))
    assert maps_times_input([signed]).height > maps_times_input([positive]).height  # evidence against, below


def test_a_strip_has_a_picture_per_layer():
    maps = attribution(np.random.default_rng(0).normal(size=(3, 8, 8)), layers=(0, 4, 7))
    assert layer_strip(maps).width == 2 * (40 + 4 * 120 + 3 * 10)
    assert layer_strip(maps, columns=2).width == 2 * (40 + 2 * 120 + 10)
    with pytest.raises(InputError, match="one layer only"):
        layer_strip(attribution(np.eye(8)))


def test_pictures_that_nobody_saw_are_refused():
    blind = Attribution(torch.ones(1, 1, 8, 8), TokenGrid(8, 8, image=(8, 8)))
    with pytest.raises(InputError, match="pixels that the model saw"):
        class_grid([[blind]])
    with pytest.raises(InputError, match="every row"):
        sheet([])
    assert sheet([Row([Cell(Image.new("RGB", (4, 2)))])], width=10, scale=1).size == (50, 45)


def test_maps_of_several_classes_are_those_of_explain():
    model = sightline.load("bundled/shapes-cnn")
    image = model.normalise(Shapes(seed=5).draw(1).images)
    rows = class_maps(model, image, ["grad_cam"], ["star", 0], operator="var(preset='recommended')")
    assert [one.recipe for one in (row[0] for row in rows)] == [
        "grad_cam",
        operated("var(preset='recommended')", "grad_cam"),
    ]
    star = model.labels.index("star")
    again = sightline.explain(model, image, "grad_cam", target=star)
    assert torch.equal(rows[0][0].values, again.values)
    contrast = sightline.explain(model, image, f"var(grad_cam, classes=({star}, 0), preset='recommended')", target=star)
    assert torch.allclose(rows[1][0].values, contrast.values)
    with pytest.raises(InputError, match="one image at a time"):
        class_maps(model, torch.cat([image, image]), ["grad_cam"])


def test_a_shared_limit_dims_a_weak_map():
    photograph = Image.new("RGB", (8, 8), (128,) * 3)
    weak = np.eye(8)
    assert np.asarray(overlay(photograph, weak, fade=1)).std() > np.asarray(overlay(photograph, weak, limit=9.0)).std()
    assert (colour(weak, DIVERGING)[0, 0] == DIVERGING.table[255]).all()
