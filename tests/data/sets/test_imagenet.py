from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from tests.data import miniature as mini

from sightline.data.dataset import open_dataset
from sightline.data.sets.imagenet_classes import class_of_synset, synsets
from sightline.errors import InputError, RecipeError

TRUTH = "ILSVRC2012_validation_ground_truth.txt"


def labels(found):
    return [found.read(one).label for one in found.ids]


def opened(root, **options):
    return open_dataset({"name": "imagenet", "root": str(root), **options})


def test_the_thousand_classes_are_sorted_synsets():
    assert len(set(synsets())) == 1000
    assert list(synsets()) == sorted(synsets())
    # three that every list of ImageNet's classes agrees on: tench, zebra, toilet tissue
    assert [class_of_synset(one) for one in ("n01440764", "n02391049", "n15075141")] == [0, 340, 999]
    assert class_of_synset("n00000000") is None


def test_the_three_layouts_hold_the_same_data(tmp_path):
    found = [
        opened(mini.imagenet_flat(tmp_path / "flat")),
        opened(mini.imagenet_folders(tmp_path / "folders")),
        opened(mini.imagenet_kaggle(tmp_path / "kaggle")),
        opened(tmp_path / "flat", layout="flat"),
        opened(tmp_path / "kaggle", layout="kaggle"),
        opened(tmp_path / "folders" / "val"),
    ]
    for one in found:
        assert one.ids == tuple(mini.val_name(number) for number in range(1, 7))
        assert labels(one) == [mini.CLASSES[number % 3] for number in range(1, 7)]
        assert one.skipped == ()
    assert len({one.digest() for one in found}) == 1


def test_a_layout_that_is_not_there_is_refused(tmp_path):
    root = mini.imagenet_flat(tmp_path)
    with pytest.raises(InputError, match="kaggle layout is missing"):
        opened(root, layout="kaggle")
    (root / "val.txt").unlink()
    with pytest.raises(InputError, match=r"the file of classes is missing; looked for .*val\.txt"):
        opened(root)


# ---- the file that tells the classes ---------------------------------------------------------------------------


def test_the_devkits_numbers_are_ilsvrc_ids_and_not_classes(tmp_path):
    root = mini.imagenet_flat(tmp_path, count=3)
    (root / "val.txt").unlink()
    others = [one for one in synsets() if one not in mini.SYNSETS]
    order = (mini.SYNSETS[2], *others[:988], mini.SYNSETS[0], *others[988:], mini.SYNSETS[1])  # ids 1, 990 and 1000
    mini.lines(root / TRUTH, "1", "990", "1000")
    with pytest.raises(InputError, match=r"counts by ILSVRC ids, .* is missing"):
        opened(root)
    mini.devkit_meta(root / "ILSVRC2012_devkit_t12" / "data" / "meta.mat", order)
    assert labels(opened(root)) == [340, 0, 1]
    with pytest.raises(InputError, match="counts from 1 as the devkit does"):
        opened(root, numbering="sorted")


def test_a_file_of_classes_from_zero_is_taken_as_it_is(tmp_path):
    root = mini.imagenet_flat(tmp_path, count=3)
    (root / "val.txt").unlink()
    mini.lines(root / TRUTH, "0", "5", "999")
    assert labels(opened(root)) == [0, 5, 999]
    with pytest.raises(InputError, match="holds 0, so its numbers are no ILSVRC ids"):
        opened(root, numbering="devkit")


def test_numbers_that_do_not_tell_what_they_are_are_not_guessed(tmp_path):
    root = mini.imagenet_flat(tmp_path, count=2)
    (root / "val.txt").unlink()
    mini.lines(root / TRUTH, "5", "6")
    with pytest.raises(InputError, match="say numbering='devkit' or numbering='sorted'"):
        opened(root)
    assert labels(opened(root, numbering="sorted")) == [5, 6]
    meta = mini.devkit_meta(tmp_path / "elsewhere" / "meta.mat", synsets()[::-1])
    assert labels(opened(root, numbering="devkit", meta=str(meta))) == [995, 994]


def test_a_list_may_tell_synsets_and_its_faults_are_named(tmp_path):
    root = mini.imagenet_flat(tmp_path, count=3)
    first, second, third = (mini.val_name(number) for number in (1, 2, 3))
    told = mini.lines(tmp_path / "told.txt", f"{first}.JPEG n02391049", f"{second}.JPEG 1001", f"{third}x.JPEG 7")
    found = opened(root, truth=str(told))
    assert (found.ids, labels(found)) == ((first,), [340])
    reasons = dict(found.skipped)
    assert "none of 1000" in reasons[second]
    assert reasons[third] == "its class is not told"
    assert reasons[f"{third}x"] == "its file is missing"


def test_a_damaged_meta_file_is_named(tmp_path):
    root = mini.imagenet_flat(tmp_path, count=1)
    (root / "val.txt").unlink()
    mini.lines(root / TRUTH, "1000")
    (root / "meta.mat").write_bytes(b"MATLAB 5.0 MAT-file" + b"\0" * 200)
    with pytest.raises(InputError, match=r"meta\.mat cannot be read"):
        opened(root)


def test_a_folder_that_is_no_class_is_named(tmp_path):
    root = mini.imagenet_folders(tmp_path, count=3)
    mini.picture(root / "val" / "stuff" / "x.JPEG")
    found = opened(root)
    assert len(found) == 3
    assert found.skipped == (("stuff", "the folder is none of ImageNet's thousand synsets"),)


def test_the_kaggle_layout_knows_boxes(tmp_path):
    root = mini.imagenet_kaggle(tmp_path)
    mask = opened(root, mask="boxes").read(mini.val_name(1)).mask
    want = np.zeros((16, 24))
    want[3:7, 2:6], want[8:10, 8:24] = 1, 1  # the third box is of another class
    assert np.array_equal(mask, want)
    assert opened(root).read(mini.val_name(1)).mask is None
    with pytest.raises(InputError, match="boxes are not known"):
        opened(mini.imagenet_flat(tmp_path / "flat"), mask="boxes")


# ---- protocols -------------------------------------------------------------------------------------------------


def test_the_filter_of_mda_takes_few_sure_colour_pictures_per_predicted_class(tmp_path):
    root = mini.imagenet_flat(tmp_path / "set", count=24)  # classes 1, 340, 0, 1, …
    mini.picture(root / f"{mini.val_name(1)}.JPEG", 1, mode="L")
    rows = [
        {"id": mini.val_name(number), "predicted": mini.CLASSES[number % 3], "probability": 0.5 if number == 4 else 0.7}
        for number in range(1, 25)
    ]
    rows[1]["predicted"] = 77
    said = mini.table(tmp_path / "said.csv", *rows)
    found = opened(root, protocol="mda", predictions=str(said))
    by_class = {index: [n for n in range(1, 25) if mini.CLASSES[n % 3] == index] for index in mini.CLASSES}
    want = [*by_class[0][:5], *[n for n in by_class[1] if n not in (1, 4)][:5], *by_class[340][1:6]]
    assert found.ids == tuple(mini.val_name(number) for number in sorted(want))
    reasons = dict(found.skipped)
    assert reasons[mini.val_name(1)] == "it is stored as L, not RGB"
    assert "below 0.6" in reasons[mini.val_name(4)]
    assert "classified as 77" in reasons[mini.val_name(2)]
    with pytest.raises(RecipeError, match="give predictions="):
        opened(root, protocol="mda")


def test_the_choice_of_skipplus_is_the_shuffle_of_its_library(tmp_path):
    datasets = pytest.importorskip("datasets")
    root = mini.imagenet_flat(tmp_path, count=12)
    shuffled = datasets.Dataset.from_dict({"row": list(range(1, 13))}).shuffle(seed=43)["row"][:]
    assert opened(root, protocol="skipplus").ids == tuple(mini.val_name(number) for number in shuffled)
    assert len(opened(root, protocol="skipplus", limit=5)) == 5


def test_a_protocol_fixes_only_what_the_options_leave_open(tmp_path):
    root = mini.imagenet_flat(tmp_path, count=12)
    assert opened(root, protocol="caap").ids == opened(root, seed=0, limit=500).ids
    assert opened(root, protocol="caap", seed=1).ids == opened(root, seed=1).ids
    with pytest.raises(RecipeError, match="no protocol 'xyz'; it has iia, var"):
        opened(root, protocol="xyz")


def test_pictures_come_as_they_are_stored(tmp_path):
    """ImageNet's published numbers are of pictures that nobody turned by their EXIF block."""
    root = mini.imagenet_flat(tmp_path, count=1)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (24, 16)).save(root / f"{mini.val_name(1)}.JPEG", exif=exif)
    assert opened(root).read(mini.val_name(1)).image.size == (24, 16)
