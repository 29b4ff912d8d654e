from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from sightline.data.labels_csv import read_labels_csv
from sightline.data.quads import CELLS, Tile, cell_regions, compose, groups_of_four, place_masks, quads, tiles
from sightline.errors import InputError

COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "white": (255, 255, 255)}


def plain(colour, size=(30, 20)):
    return Image.new("RGB", size, colour)


def some(count, classes=None):
    return [
        Tile(torch.full((3, 6, 8), index / count), index % (classes or count), f"{index:03d}") for index in range(count)
    ]


def names(found):
    return [quad.names for quad in found]


# ---- composing -------------------------------------------------------------------------------------------------


def test_the_cells_are_top_left_top_right_bottom_left_bottom_right():
    image = compose([plain(colour) for colour in COLOURS.values()], side=16)
    assert image.shape == (3, 16, 16)
    corners = [image[:, 0, 0], image[:, 0, -1], image[:, -1, 0], image[:, -1, -1]]
    for corner, colour in zip(corners, COLOURS.values(), strict=True):
        assert_close(corner, torch.tensor(colour) / 255)


def test_a_picture_is_squeezed_whole_into_its_cell():
    # left half red, right half blue, twice as wide as high: nothing is cut off
    wide = np.zeros((10, 40, 3), dtype=np.uint8)
    wide[:, :20, 0] = wide[:, 20:, 2] = 255
    image = compose([Image.fromarray(wide)] * 4, side=16)
    assert_close(image[0, 2, :8], torch.tensor([1.0, 1, 1, image[0, 2, 3].item(), image[0, 2, 4].item(), 0, 0, 0]))
    assert image[0, 2, 3] > 0.8 > 0.2 > image[0, 2, 4]
    assert_close(image[:, :8, :8], image[:, 8:, 8:])


def test_files_pil_images_and_tensors_give_the_same(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (32, 48, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels)
    picture.save(tmp_path / "a.png")
    tensor = torch.from_numpy(pixels).permute(2, 0, 1).float() / 255
    image = compose([picture, tmp_path / "a.png", str(tmp_path / "a.png"), tensor], side=32)
    assert torch.equal(image[:, :16, :16], image[:, :16, 16:])
    assert torch.equal(image[:, :16, :16], image[:, 16:, :16])
    assert_close(image[:, :16, :16], image[:, 16:, 16:], rtol=0, atol=1.5 / 255)  # PIL rounds to eight bits


def test_each_region_is_one_cell_and_together_they_are_the_image():
    regions = cell_regions(10)
    assert regions.dtype == torch.int8
    assert torch.equal(regions.sum(dim=0), torch.ones(10, 10, dtype=torch.int64))
    assert [tuple(region.nonzero()[0].tolist()) for region in regions] == [(0, 0), (0, 5), (5, 0), (5, 5)]
    assert regions.flatten(1).sum(dim=1).tolist() == [25] * len(CELLS)


def test_the_mask_of_an_object_stays_on_the_object():
    mask = torch.zeros(40, 20, dtype=torch.int8)
    mask[:20, 10:] = 1
    mask[20:] = -1
    placed = place_masks([mask] * 4, side=16)
    cell = torch.zeros(8, 8, dtype=torch.int8)
    cell[:4, 4:] = 1
    cell[4:] = -1
    for index, (top, left) in enumerate([(0, 0), (0, 8), (8, 0), (8, 8)]):
        assert torch.equal(placed[index, top : top + 8, left : left + 8], cell)
        outside = placed[index].clone()
        outside[top : top + 8, left : left + 8] = 0
        assert not outside.any()


# ---- dealing ---------------------------------------------------------------------------------------------------


def test_the_sorted_list_is_shuffled_and_taken_four_by_four():
    expected = [f"{index:03d}" for index in range(11)]
    random.Random(42).shuffle(expected)
    found = names(quads(some(11), side=8))
    assert found == [tuple(expected[:4]), tuple(expected[4:8])]


def test_the_order_they_come_in_does_not_matter_and_the_seed_does():
    assert names(quads(some(20)[::-1], side=8)) == names(quads(some(20), side=8))
    assert names(quads(some(20), side=8, seed=1)) != names(quads(some(20), side=8))


def test_classes_may_repeat_unless_they_must_differ():
    many = some(40, classes=5)
    assert any(len(set(quad.classes)) < 4 for quad in quads(many, side=8))
    distinct = list(quads(many, side=8, distinct=True))
    assert all(len(set(quad.classes)) == 4 for quad in distinct)
    used = [name for quad in distinct for name in quad.names]
    assert len(used) == len(set(used))
    assert len(distinct) >= 8


def test_of_distinct_classes_the_dealing_is_the_same():
    assert names(quads(some(20), side=8, distinct=True)) == names(quads(some(20), side=8))


def test_the_unsure_are_left_out():
    given = [Tile(torch.zeros(3, 4, 4), i, f"{i}", confidence=i / 10) for i in range(10)]
    (found,) = quads(given, side=4, confidence=0.55)
    assert min(int(name) for name in found.names) == 6
    with pytest.raises(InputError, match="nobody says how probable"):
        quads(some(4), side=4, confidence=0.5)


def test_a_quad_knows_its_classes_regions_and_objects():
    mask = torch.ones(6, 8, dtype=torch.int8)
    given = [Tile(torch.rand(3, 6, 8), 10 + i, f"{i}", mask=mask) for i in range(4)]
    (found,) = quads(given, side=8, prepare=lambda raw: raw * 2 - 1)
    assert found.classes == tuple(10 + int(name) for name in found.names)
    assert torch.equal(found.regions, found.objects)
    raw = compose([given[int(name)].picture for name in found.names], side=8)
    assert_close(found.image, raw * 2 - 1)
    (bare,) = quads([*given[:3], Tile(torch.rand(3, 6, 8), 13, "3")], side=8)
    assert bare.objects is None


def test_the_limit_bounds_how_many_are_read(tmp_path):
    given = [Tile(tmp_path / "missing.png", i, f"{i}") for i in range(8)]
    assert list(quads(given, limit=0)) == []


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: quads(some(3)), "needs four"),
        (lambda: quads(some(4), side=7), "even number"),
        (lambda: groups_of_four(some(4) + some(4)), "two tiles are called '000'"),
        (lambda: compose([plain("red")] * 3), "give four"),
        (lambda: compose([torch.zeros(2, 3, 4, 4)] * 4), "are needed"),
    ],
)
def test_what_makes_no_quad_is_refused(call, said):
    with pytest.raises(InputError, match=said):
        call()


# ---- labelled folders ------------------------------------------------------------------------------------------


def folder_with(path, table, images=("a.jpg", "b.png"), masks=()):
    for kind, listed in (("images", images), ("masks", masks)):
        (path / kind).mkdir()
        for name in listed:
            plain("red").save(path / kind / name)
    (path / "labels.csv").write_text(table, encoding="utf-8")
    return path


def test_a_folder_is_read_in_the_order_of_its_table(tmp_path):
    table = "file,label,vit_predicted,vit_label_probability\nb.png,3,3,0.9\na.jpg,4,1,0.25\n"
    second, first = read_labels_csv(folder_with(tmp_path, table))
    assert (second.name, second.label, second.correct, second.confidence, second.mask) == ("b", 3, True, 0.9, None)
    assert (first.predicted, first.correct) == (1, False)
    assert tiles([second])[0].confidence == 0.9


def test_stems_find_their_images_and_masks(tmp_path):
    one, two = read_labels_csv(folder_with(tmp_path, "stem,imagenet_label\na,1\nb,2\n", masks=["b.png"]))
    assert (one.path.name, one.mask) == ("a.jpg", None)
    assert (two.path.name, two.mask) == ("b.png", tmp_path / "masks" / "b.png")
    assert two.predicted is None
    assert not two.correct


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("file,label\n", "has no row"),
        ("file,label\nc.jpg,1\n", "no such image"),
        ("file,label\na.jpg,one\n", "'one' where a number belongs"),
        ("name,label\na.jpg,1\n", "has no file or stem"),
        ("file,class\na.jpg,1\n", "has no label"),
        ("file,label\n../a.jpg,1\n", "not a path"),
    ],
)
def test_a_broken_table_is_one_sentence(tmp_path, table, said):
    with pytest.raises(InputError, match=said):
        read_labels_csv(folder_with(tmp_path, table))


def test_a_folder_without_a_table_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"has no labels\.csv"):
        read_labels_csv(tmp_path)


# ---- the real sets ---------------------------------------------------------------------------------------------


def test_forty_quads_come_of_the_photographs_that_the_model_knows(shared):
    known = [one for one in read_labels_csv(shared / "data" / "imagenet-samples") if one.correct]
    assert len(groups_of_four(tiles(known))) == 40
    quad = next(quads(tiles(known), limit=1))
    assert quad.image.shape == (3, 224, 224)
    assert quad.image.amin() >= 0
    assert quad.image.amax() <= 1


def test_pets_make_quads_with_objects(shared):
    quad = next(quads(tiles(read_labels_csv(shared / "data" / "pets")), distinct=True, limit=1))
    assert len(set(quad.classes)) == 4
    assert ((quad.objects == 1) <= (quad.regions == 1)).all()
    assert 0 < (quad.objects == 1).float().mean() < 0.25
