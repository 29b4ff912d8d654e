from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from tests.data import miniature as mini

from sightline.data.dataset import open_dataset
from sightline.data.sets.csv_file import CsvFile
from sightline.errors import InputError

# ---- folders ---------------------------------------------------------------------------------------------------


def test_folders_of_classes_are_numbered_in_alphabetical_order(tmp_path):
    for number, name in enumerate(("zebra/b.png", "ant/a.png", "ant/deep/c.jpg", "bee/a.png")):
        mini.picture(tmp_path / name, number)
    found = open_dataset(tmp_path)
    assert {one: found.read(one).label for one in found.ids} == {"ant/a": 0, "ant/deep/c": 0, "bee/a": 1, "zebra/b": 2}
    assert found.ids == ("ant/a", "ant/deep/c", "bee/a", "zebra/b")
    assert found.read("bee/a").mask is None


def test_folders_named_by_synset_have_imagenets_classes(tmp_path):
    for synset in mini.SYNSETS:
        mini.picture(tmp_path / synset / "a.png")
    found = open_dataset(tmp_path)
    assert [found.read(one).label for one in found.ids] == list(mini.CLASSES)
    numbered = open_dataset({"name": "folder", "root": str(tmp_path), "labels": "folders"})
    assert [numbered.label(one) for one in numbered.ids] == [0, 1, 2]


def test_plain_images_have_no_label(tmp_path):
    mini.picture(tmp_path / "b.png")
    mini.picture(tmp_path / "a.jpg")
    mini.picture(tmp_path / "more" / "c.png")
    found = open_dataset(tmp_path)
    assert found.ids == ("a", "b", "more/c")
    assert [found.read(one).label for one in found.ids] == [None] * 3


def test_numbers_as_folder_names_are_classes_when_asked_for(tmp_path):
    for name in ("7", "12"):
        mini.picture(tmp_path / name / "a.png")
    options = {"name": "folder", "root": str(tmp_path), "labels": "numbers"}
    found = open_dataset(options)
    assert {one: found.label(one) for one in found.ids} == {"12/a": 12, "7/a": 7}
    mini.picture(tmp_path / "cat" / "a.png")
    with pytest.raises(InputError, match=r"the folder 'cat' .* is no class"):
        open_dataset(options)


def test_two_files_that_differ_in_their_suffix_keep_it(tmp_path):
    mini.picture(tmp_path / "a.png")
    mini.picture(tmp_path / "a.jpg")
    mini.picture(tmp_path / "b.jpg")
    assert open_dataset(tmp_path).ids == ("a.jpg", "a.png", "b")


# ---- a folder with labels.csv ----------------------------------------------------------------------------------


def test_a_labelled_folder_gives_labels_and_masks_in_the_order_of_its_table(tmp_path):
    found = open_dataset(mini.labelled(tmp_path / "set"))
    assert found.name == "set"
    assert found.ids == ("p0", "p1", "p2", "p3", "p4")
    sample = found.read("p2")
    assert sample.label == 2
    assert sample.image.size == (24, 16)
    assert sample.mask.dtype == np.int8
    want = np.zeros((16, 24))
    want[2:6, 3:9], want[7] = 1, -1
    assert np.array_equal(sample.mask, want)
    assert found.read("p1").mask is None
    assert open_dataset({"name": str(tmp_path / "set"), "masked": True}).ids == ("p0", "p2", "p4")
    assert open_dataset({"name": str(tmp_path / "set"), "confidence": 0.75}).ids == ("p3", "p4")


def test_rows_that_lead_nowhere_or_out_of_the_folder_are_named(tmp_path):
    root = mini.labelled(tmp_path / "set", count=2)
    mini.picture(tmp_path / "secret.png")
    with (root / "labels.csv").open("a") as lines:
        lines.write("gone.png,1,0.5\n../../secret.png,1,0.5\np0.png,one,0.5\n")
    found = open_dataset(root)
    assert found.ids == ("p0", "p1")
    assert [name for name, _ in found.skipped] == ["gone.png", "../../secret.png", "p0.png"]
    assert "no such image" in found.skipped[0][1]
    assert "not a path" in found.skipped[1][1]
    assert "where a number belongs" in found.skipped[2][1]


def test_the_shared_photographs_open_by_path(shared):
    pets = open_dataset(shared / "data" / "pets")
    samples = open_dataset(shared / "data" / "imagenet-samples")
    assert (len(pets), len(samples)) == (144, 200)
    assert pets.skipped == samples.skipped == ()
    sample = pets.read("Egyptian_Mau_46")
    assert sample.label == 285
    assert set(np.unique(sample.mask)) <= {-1, 0, 1}
    assert len(open_dataset({"name": str(shared / "data" / "imagenet-samples"), "confidence": 0.9})) < 200


# ---- a CSV file ------------------------------------------------------------------------------------------------


def test_a_table_lists_files_anywhere_below_its_folder(tmp_path):
    mini.labelled(tmp_path)
    rows = [
        {"path": "images/p0.png", "label": 4, "mask": "masks/p0.png", "id": "first"},
        {"path": "images/p1.png", "label": "", "mask": "", "id": ""},
        {"path": "images/gone.png", "label": 1, "mask": "", "id": ""},
        {"path": "../secret.png", "label": 1, "mask": "", "id": ""},
        {"path": str(tmp_path / "images" / "p2.png"), "label": 1, "mask": "", "id": ""},
        {"path": "images/p3.png", "label": "cat", "mask": "", "id": ""},
        {"path": "images/p3.png", "label": 1, "mask": "../x.png", "id": ""},
    ]
    found = open_dataset(mini.table(tmp_path / "list.csv", *rows))
    assert found.name == "list"
    assert found.ids == ("first", "images/p1")
    assert found.read("first").label == 4
    assert (found.read("first").mask == 1).sum() == 4 * 6
    assert found.read("images/p1").label is None
    reasons = [reason for _, reason in found.skipped]
    for reason, says in zip(reasons, ("does not exist", "leads out", "leads out", "cat", "leads out"), strict=True):
        assert says in reason


def test_the_pictures_of_a_table_may_lie_elsewhere(tmp_path):
    mini.labelled(tmp_path / "set")
    path = mini.table(tmp_path / "list.csv", {"file": "p0.png", "label": 1})
    found = open_dataset({"name": "csv", "root": str(path), "images": str(tmp_path / "set" / "images")})
    assert found.ids == ("p0",)


def test_a_table_without_a_column_of_files_is_refused(tmp_path):
    with pytest.raises(InputError, match="no column"):
        open_dataset(mini.table(tmp_path / "list.csv", {"name": "a", "label": 1}))
    bad = tmp_path / "bad.csv"
    bad.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(InputError, match="cannot be read"):
        open_dataset(bad)


def test_a_table_may_name_absolute_paths_where_that_is_allowed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    Image.new("RGB", (8, 6), "red").save(elsewhere / "photo.png")
    table = tmp_path / "tables" / "list.csv"
    table.parent.mkdir()
    table.write_text(f"file,label\n{elsewhere / 'photo.png'},3\n{elsewhere / 'gone.png'},1\n")
    refused = CsvFile(table).listing()
    assert refused.entries == ()
    assert "absolute=True" in refused.skipped[0][1]
    taken = CsvFile(table, absolute=True).listing()
    assert [entry.path for entry in taken.entries] == [elsewhere / "photo.png"]
    assert "gone.png does not exist" in taken.skipped[0][1]
    assert CsvFile(table, absolute=True).read(taken.entries[0]).image.size == (8, 6)
