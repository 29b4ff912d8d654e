from __future__ import annotations

import json
import shutil
import sys

import numpy as np
import pytest
from PIL import Image
from tests.data import miniature as mini

from sightline import extras
from sightline.data.dataset import open_dataset
from sightline.data.sets.coco_classes import imagenet_classes
from sightline.errors import InputError, MissingExtra, RecipeError


def opened(name, root, **options):
    return open_dataset({"name": name, "root": str(root), **options})


# ---- ImageNet-S ------------------------------------------------------------------------------------------------


def test_the_class_that_covers_most_is_the_target_and_its_pixels_the_evidence(tmp_path):
    found = opened("imagenet_s", mini.imagenet_s(tmp_path), resize=16, crop=16)
    assert found.ids == (mini.val_name(2), mini.val_name(1))  # in the order of folders, then names
    sample = found.read(mini.val_name(1))
    assert sample.label == 340
    want = np.zeros((16, 24))
    want[:8], want[15] = 1, -1
    assert np.array_equal(sample.mask, want)
    assert found.read(mini.val_name(2)).label == 1
    assert dict(found.skipped)[mini.val_name(3)] == "what the model sees holds no class"


def test_the_least_area_is_that_of_what_the_model_sees(tmp_path):
    root = mini.imagenet_s(tmp_path)
    seen = opened("imagenet_s", root, resize=16, crop=16, area=0.06)  # 16 of 256 in the crop, 4.2 % of the picture
    assert mini.val_name(2) in seen.ids
    small = opened("imagenet_s", root, resize=16, crop=16, area=0.07)
    assert small.ids == (mini.val_name(1),)
    assert dict(small.skipped)[mini.val_name(2)] == "its class covers 6.2% of what the model sees"


def test_photographs_may_lie_in_any_layout_of_imagenet(tmp_path):
    root = mini.imagenet_s(tmp_path / "s")
    shutil.rmtree(root / "validation")
    flat = mini.imagenet_flat(tmp_path / "flat", count=2)
    found = opened("imagenet_s", root, images=str(flat), resize=16, crop=16)
    assert set(found.ids) == {mini.val_name(1), mini.val_name(2)}
    assert (mini.val_name(3), "its photograph is missing") in found.skipped


def test_the_shuffle_of_imagenet_s_comes_before_its_filter(tmp_path):
    """The order is that of the whole set permuted, filtered afterwards: filtering first would permute differently."""
    root = mini.imagenet_s(tmp_path)
    for number in range(4, 12):
        for folder, suffix in (("validation", "JPEG"), ("validation-segmentation", "png")):
            source = root / folder / mini.SYNSETS[2 if number % 2 else 0] / f"{mini.val_name(1 if number % 2 else 3)}"
            shutil.copy(source.with_suffix(f".{suffix}"), source.with_name(f"{mini.val_name(number)}.{suffix}"))
    masks = sorted((root / "validation-segmentation").rglob("*.png"))
    permuted = [masks[index].stem for index in np.random.default_rng(42).permutation(len(masks))]
    kept = {mini.val_name(number) for number in (1, 2, 5, 7, 9, 11)}
    found = opened("imagenet_s", root, protocol="skipplus", resize=16, crop=16)
    assert found.ids == tuple(name for name in permuted if name in kept)


def test_masks_and_lists_that_cannot_be_right_are_named(tmp_path):
    root = mini.imagenet_s(tmp_path)
    path = root / "validation-segmentation" / mini.SYNSETS[2] / f"{mini.val_name(1)}.png"
    Image.new("RGB", (24, 16), (200, 0, 0)).save(path)
    found = opened("imagenet_s", root, resize=16, crop=16)
    assert "holds the id 200" in dict(found.skipped)[mini.val_name(1)]
    mini.lines(root / "ImageNetS_categories_im919.txt", "n00000000", "x")
    with pytest.raises(InputError, match="no synset of ImageNet"):
        opened("imagenet_s", shutil.copytree(root, tmp_path / "again"))
    (root / "ImageNetS_categories_im919.txt").unlink()
    with pytest.raises(InputError, match=r"has no ImageNetS_categories_im919\.txt"):
        opened("imagenet_s", root)
    with pytest.raises(RecipeError, match="area=2"):
        opened("imagenet_s", root, area=2.0)


# ---- ImageNet-Segmentation -------------------------------------------------------------------------------------


def test_pictures_and_masks_of_the_matlab_file_stand_upright(tmp_path):
    path = mini.imagenet_segmentation(tmp_path / "gtsegs_ijcv.mat")
    for root in (path, tmp_path):
        found = opened("imagenet_segmentation", root)
        assert found.ids == ("segmented-0000", "segmented-0001", "segmented-0002")
        sample = found.read("segmented-0001")
        assert sample.image.size == (20, 13)
        assert sample.label is None
        want = np.zeros((13, 20))
        want[2:5, 3:9] = 1
        assert np.array_equal(sample.mask, want)
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (12, 20, 3), dtype=np.uint8)
    assert np.array_equal(np.asarray(found.read("segmented-0000").image), pixels)


def test_a_file_that_is_not_the_published_one_is_named(tmp_path):
    h5py = pytest.importorskip("h5py")
    with pytest.raises(InputError, match="is damaged, or not gtsegs_ijcv"):
        opened("imagenet_segmentation", mini.lines(tmp_path / "a.mat", "MATLAB 5.0"))
    with h5py.File(tmp_path / "b.mat", "w") as file:
        file["value/other"] = 1
    with pytest.raises(InputError, match="has no /value/img"):
        opened("imagenet_segmentation", tmp_path / "b.mat")
    path = mini.imagenet_segmentation(tmp_path / "c.mat")
    with h5py.File(path, "a") as file:
        file["#refs#/m0"][0, 0] = 7
        file["value/img"][1, 0] = h5py.Reference()
    found = opened("imagenet_segmentation", path)
    with pytest.raises(InputError, match="other numbers than 0 and 1"):
        found.read("segmented-0000")
    with pytest.raises(InputError, match="is damaged"):
        found.read("segmented-0001")
    assert opened("imagenet_segmentation", path, check="whole").ids == ("segmented-0002",)


def test_without_h5py_the_pip_line_is_told(tmp_path, monkeypatch):
    path = mini.imagenet_segmentation(tmp_path / "gtsegs_ijcv.mat")

    def absent(name):
        raise ModuleNotFoundError(name, name=name)

    monkeypatch.delitem(sys.modules, "h5py")
    monkeypatch.setattr(extras.importlib, "import_module", absent)
    with pytest.raises(MissingExtra, match=r'h5py is not installed; pip install "sightline\[data\]"'):
        opened("imagenet_segmentation", path)


# ---- COCO ------------------------------------------------------------------------------------------------------


def test_the_union_of_all_annotations_is_the_object(tmp_path):
    found = opened("coco", mini.coco(tmp_path), protocol="iia")
    assert found.ids == ("000000000001", "000000000002")
    reasons = dict(found.skipped)
    assert reasons["000000000003"] == "it has no annotation"
    assert "does not exist" in reasons["000000000004"]
    first, second = (found.read(one) for one in found.ids)
    want = np.zeros((16, 24))
    want[2:6, 2:6], want[5, 10], want[1, 20] = 1, 1, 1
    assert np.array_equal(first.mask, want)
    assert first.label is None
    crowd = np.zeros((16, 24))
    crowd[:, 4:6] = 1  # run lengths go down the columns
    assert np.array_equal(second.mask, crowd)


def test_each_category_with_an_imagenet_class_is_a_sample(tmp_path):
    root = mini.coco(tmp_path)
    found = opened("coco", root, regions="category")
    assert found.ids == ("000000000001-pizza", "000000000001-zebra", "000000000002-zebra")
    zebra = found.read("000000000001-zebra")
    assert zebra.label == 340
    assert zebra.mask.sum() == 16
    assert "no ImageNet class is known for 'person'" in dict(found.skipped)["000000000001-person"]
    published = opened("coco", root, protocol="var")  # the pizza covers 1 of 384 pixels
    assert published.ids == ("000000000001-zebra", "000000000002-zebra")
    assert "covers less than 1.0%" in dict(published.skipped)["000000000001-pizza"]
    assert "covers 0.3%" in dict(opened("coco", root, regions="category", least=0.01).skipped)["000000000001-pizza"]
    given = mini.table(tmp_path / "classes.csv", {"category": "person", "class": 401})
    assert opened("coco", root, regions="category", classes=str(given)).label("000000000001-person") == 401


def test_every_sample_of_a_picture_knows_all_its_classes(tmp_path):
    root = mini.coco(tmp_path)
    found = opened("coco", root, regions="category")
    zebra, pizza = 340, 963
    assert found.read("000000000001-zebra").classes == found.read("000000000001-pizza").classes == (zebra, pizza)
    assert opened("coco", root, protocol="var").read("000000000001-zebra").classes == (zebra,)
    assert opened("coco", root, protocol="iia").read("000000000001").classes is None


def test_small_objects_are_no_part_of_their_region(tmp_path):
    root = mini.coco(tmp_path)
    path = root / "annotations" / "instances_val2017.json"
    told = json.loads(path.read_text())
    told["annotations"] += [{"image_id": 1, "category_id": 24, "segmentation": [mini.square(12, 8, 1)]}]
    path.write_text(json.dumps(told))
    assert opened("coco", root, regions="category", least=0.01).read("000000000001-zebra").mask.sum() == 17
    assert opened("coco", root, protocol="var").read("000000000001-zebra").mask.sum() == 16
    told["annotations"][-1]["area"] = 9.0  # what the file says of an area is believed
    path.write_text(json.dumps(told))
    assert opened("coco", root, protocol="var").read("000000000001-zebra").mask.sum() == 17


def test_the_table_of_classes_names_categories_of_coco_and_no_class_of_clear_ones_twice():
    clear, every = imagenet_classes(), imagenet_classes(kinds=True)
    assert (len(clear), len(every)) == (23, 61)
    assert len(set(every.values())) == 61
    assert (every["zebra"], every["pizza"], every["cat"]) == (340, 963, 281)
    assert not {"person", "giraffe", "fork"} & set(every)


def test_a_box_may_stand_for_the_outline(tmp_path):
    found = opened("coco", mini.coco(tmp_path), regions="category", shape="box")
    assert np.array_equal(found.read("000000000001-zebra").mask, found.read("000000000001-zebra").mask > 0)
    assert found.read("000000000002-zebra").mask[:, 4:6].all()
    assert found.read("000000000002-zebra").mask.sum() == 32


def test_annotations_that_are_damaged_or_lead_out_of_the_folder_are_named(tmp_path):
    root = mini.coco(tmp_path)
    path = root / "annotations" / "instances_val2017.json"
    told = json.loads(path.read_text())
    told["images"][0]["file_name"] = "../annotations/instances_val2017.json"
    told["annotations"][0]["segmentation"] = [[1, 2]]
    path.write_text(json.dumps(told))
    found = opened("coco", root)
    assert found.ids == ("000000000001",)
    assert "leads out" in dict(found.skipped)["instances_val2017"]
    with pytest.raises(InputError, match="encloses nothing"):
        found.read("000000000001")
    del told["images"][0]["height"]
    del told["images"][1]["height"]
    path.write_text(json.dumps(told))
    with pytest.raises(InputError, match="lacks 'height'"):
        opened("coco", root)
    path.write_text("{")
    with pytest.raises(InputError, match="cannot be read as JSON"):
        opened("coco", root)
    path.write_text("{}")
    with pytest.raises(InputError, match="has no 'images'"):
        opened("coco", root)


# ---- PartImageNet ----------------------------------------------------------------------------------------------


def test_the_parts_together_are_the_object(tmp_path):
    root = mini.part_imagenet(tmp_path)
    found = opened("part_imagenet", root)
    assert found.ids == ("n01440764_0", "n01443537_1")
    sample = found.read("n01440764_0")
    want = np.zeros((16, 24))
    want[2:6, 2:10] = 1
    assert np.array_equal(sample.mask, want)
    assert (sample.label, found.label("n01443537_1")) == (0, 1)
    reasons = dict(found.skipped)
    assert "no annotation" in reasons["n02391049_2"]
    assert "no synset" in reasons["stranger_7"]
    assert opened("part_imagenet", root, part="head").ids == ("n01440764_0",)
    assert opened("part_imagenet", root, part="head").read("n01440764_0").mask.sum() == 16


# ---- VOC -------------------------------------------------------------------------------------------------------


def test_the_border_is_ignored_or_what_the_protocol_says(tmp_path):
    root = mini.voc(tmp_path)
    found = opened("voc", root)
    assert found.ids == ("2007_000042", "2007_000033")  # in the order of the list
    assert "does not exist" in dict(found.skipped)["2007_000061"]
    mask = found.read("2007_000033").mask
    want = np.zeros((16, 24))
    want[2:6, 2:6], want[10:13, 10:20], want[1, 2:6] = 1, 1, -1
    assert np.array_equal(mask, want)
    assert found.read("2007_000033").label is None
    assert np.array_equal(opened("voc", root, protocol="iia").read("2007_000033").mask, np.abs(want))
    assert np.array_equal(opened("voc", root, border="background").read("2007_000033").mask, want.clip(0))
    assert opened("voc", root / "VOCdevkit").ids == opened("voc", root / "VOCdevkit" / "VOC2012").ids == found.ids


def test_the_largest_category_may_be_the_label(tmp_path):
    sample = opened("voc", mini.voc(tmp_path), label="largest").read("2007_000033")
    assert sample.label == 2  # category 3, from 0
    assert (sample.mask == 1).sum() == 30


def test_a_mask_in_colours_or_with_a_strange_number_is_refused(tmp_path):
    root = mini.voc(tmp_path)
    top = root / "VOCdevkit" / "VOC2012" / "SegmentationClass"
    mini.picture(top / "2007_000042.png")
    mini.numbers(top / "2007_000033.png", np.full((16, 24), 99))
    found = opened("voc", root)
    with pytest.raises(InputError, match="has 3 channels"):
        found.read("2007_000042")
    with pytest.raises(InputError, match="holds the number 99"):
        found.read("2007_000033")
    with pytest.raises(InputError, match="no picture of voc is left"):
        opened("voc", root, check="whole")
