from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data import miniature as mini

from sightline.data.dataset import DATASETS, open_dataset, options_of
from sightline.data.selection import Selection
from sightline.errors import InputError, RecipeError

NAMED = {
    "csv", "coco", "folder", "food101", "hub", "imagenet", "imagenet_hard", "imagenet_s", "imagenet_segmentation",
    "labelled", "mura", "part_imagenet", "pets", "quads", "shapes", "shapes_scenes", "voc",
}  # fmt: skip


# ---- what there is ---------------------------------------------------------------------------------------------


def test_every_data_set_is_registered():
    assert set(DATASETS) == NAMED


@pytest.mark.parametrize("name", sorted(NAMED))
def test_every_data_set_tells_what_it_is_and_what_its_options_mean(name):
    spec = DATASETS[name]
    assert spec.summary.endswith(".")
    assert "`" not in spec.summary
    assert spec.layout
    for option in (field.name for field in fields(spec.build)):
        assert f"\n    {option}: " in spec.doc, option
    for protocol, fixed in spec.protocols.items():
        assert set(fixed) <= set(options_of(spec)), protocol


def test_the_options_of_every_set_are_documented():
    for option in fields(Selection):
        assert f"        {option.name}: " in (Selection.__doc__ or "")


def test_data_sets_stay_out_of_the_way_until_asked_for():
    code = "import sys, sightline, sightline.cli.main; print([n for n in ('torch', 'PIL', 'h5py') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---- opening ---------------------------------------------------------------------------------------------------


def test_text_a_table_and_positions_open_the_same(tmp_path):
    root = mini.labelled(tmp_path / "set")
    ways = [
        f"labelled(root={str(root)!r}, limit=3)",
        f"labelled({str(root)!r}, limit=3)",
        {"name": "labelled", "root": str(root), "limit": 3},
        {"name": str(root), "limit": 3},
    ]
    found = [open_dataset(way) for way in ways]
    assert {one.ids for one in found} == {("p0", "p1", "p2")}
    assert len({one.digest() for one in found}) == 1


def test_a_relative_path_is_looked_up_beside_the_plan_first(tmp_path, monkeypatch):
    mini.labelled(tmp_path / "plan" / "set", count=2)
    mini.labelled(tmp_path / "here" / "set", count=3)
    mini.labelled(tmp_path / "here" / "other", count=4)
    monkeypatch.chdir(tmp_path / "here")
    base = tmp_path / "plan"
    assert len(open_dataset("set", base=base)) == 2
    assert len(open_dataset("labelled(root='set')", base=base)) == 2
    assert len(open_dataset("set")) == 3
    assert len(open_dataset("other", base=base)) == 4
    assert len(open_dataset(Path("set"), base=base)) == 2


def test_a_registered_name_wins_over_a_folder_of_that_name(tmp_path, monkeypatch):
    mini.labelled(tmp_path / "shapes", count=2)
    monkeypatch.chdir(tmp_path)
    assert len(open_dataset("shapes(count=5)")) == 5
    assert len(open_dataset("./shapes")) == 2


def test_a_registered_name_without_what_it_needs_may_be_a_folder(tmp_path, monkeypatch):
    mini.labelled(tmp_path / "pets", count=2)
    monkeypatch.chdir(tmp_path)
    assert open_dataset("pets").ids == open_dataset({"name": "pets"}).ids == ("p0", "p1")
    assert open_dataset("pets(limit=1)").ids == ("p0",)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(RecipeError, match="pets needs root"):
        open_dataset("pets")


def test_a_folder_whose_name_looks_like_a_call_opens(tmp_path, monkeypatch):
    mini.labelled(tmp_path / "photos(1)", count=2)
    monkeypatch.chdir(tmp_path)
    assert len(open_dataset("photos(1)")) == 2


def test_a_variable_may_name_the_folder_of_data_sets(tmp_path, monkeypatch):
    mini.labelled(tmp_path / "all" / "mine", count=2)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("SIGHTLINE_DATA", raising=False)
    with pytest.raises(InputError, match="set SIGHTLINE_DATA"):
        open_dataset("labelled(root='mine')")
    monkeypatch.setenv("SIGHTLINE_DATA", str(tmp_path / "all"))
    assert len(open_dataset("labelled(root='mine')")) == len(open_dataset("mine")) == 2


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ("shape", RecipeError, "did you mean 'shapes'"),
        ("shapes(cuont=3)", RecipeError, "no option called 'cuont' in shapes; it has count"),
        ("shapes(count='three')", RecipeError, "count='three'"),
        ("shapes(variant='dirty')", RecipeError, "shapes got variant='dirty'; choose from clean, shortcut, conflict"),
        ("shapes(limit=0)", RecipeError, "limit=0"),
        ("shapes(count=1, count=2)", RecipeError, "shapes got count twice"),
        ("shapes(1, count=2)", RecipeError, "shapes got count twice"),
        ("shapes(check='all')", RecipeError, "check='all'; choose from header, whole, none"),
        ("shapes(count=[1 for _ in 'x'])", RecipeError, "literals"),
        ("shapes(**{'count': 1})", RecipeError, r"\*\*"),
        ("shapes(count=__import__('os').getpid())", RecipeError, "names and literals only"),
        ("shapes(count=three)", RecipeError, "count=three; options are literals"),
        ("__import__('os').getcwd()", InputError, "neither a data set nor a path"),
        ("imagenet", RecipeError, "imagenet needs root"),
        ("imagenet(root='nowhere')", InputError, "'nowhere', which does not exist"),
        ("imagenet(root=3)", RecipeError, "give the path as text"),
        ("nowhere/at/all", InputError, "neither a data set nor a path"),
        ("", RecipeError, "as a data set"),
        ("\0", InputError, "neither"),
        ({"root": "x"}, RecipeError, "needs name"),
        ("shapes(protocol='iia')", RecipeError, "no protocol 'iia'; it has none"),
        ("shapes(confidence=2)", RecipeError, "confidence=2"),
        ("shapes(per_class=0)", RecipeError, "per_class=0"),
        ("quads(0)", RecipeError, "got 0 as a data set"),
        ("shapes(count=0)", RecipeError, "count is between 1 and"),
        ("quads(of=shapes(count=3))", InputError, "no picture of quads of shapes"),
    ],
)
def test_what_cannot_be_opened_says_why(given, error, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=says):
        open_dataset(given)


def test_a_file_that_is_no_table_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"give a folder of images, or a \.csv"):
        open_dataset(mini.lines(tmp_path / "a.txt", "x"))


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no image"):
        open_dataset(tmp_path)


def test_a_set_travels_to_another_process(tmp_path):
    found = open_dataset(mini.labelled(tmp_path / "set"))
    again = pickle.loads(pickle.dumps(found))
    assert again.ids == found.ids
    assert again.digest() == found.digest()
    assert np.array_equal(np.asarray(again.read("p0").image), np.asarray(found.read("p0").image))


# ---- choosing --------------------------------------------------------------------------------------------------


def test_a_limit_takes_the_first_and_a_seed_shuffles_the_whole_set(tmp_path):
    root = mini.labelled(tmp_path / "set", count=9)
    everything = open_dataset(root).ids
    assert open_dataset({"name": str(root), "limit": 4}).ids == everything[:4]
    shuffled = [everything[index] for index in np.random.default_rng(43).permutation(9)]
    assert open_dataset({"name": str(root), "seed": 43}).ids == tuple(shuffled)
    assert open_dataset({"name": str(root), "seed": 43, "limit": 4}).ids == tuple(shuffled[:4])
    assert open_dataset({"name": str(root), "limit": 99}).ids == everything


def test_a_damaged_file_is_named_and_left_out(tmp_path):
    root = mini.labelled(tmp_path / "set")
    mini.no_image(root / "images" / "p1.png")
    (root / "images" / "p3.png").write_bytes(b"")
    found = open_dataset(root)
    assert found.ids == ("p0", "p2", "p4")
    reasons = dict(found.skipped)
    assert "not an image" in reasons["p1"]
    assert "empty" in reasons["p3"]
    with pytest.raises(InputError, match="not an image"):
        found.read("p1")
    with pytest.raises(InputError, match="not in the list"):
        found.read("p9")


def test_damage_behind_the_header_is_found_when_reading_or_when_asked_to_look(tmp_path):
    root = tmp_path / "set"
    mini.picture(root / "whole.jpg")
    mini.broken(root / "half.jpg")
    found = open_dataset(root)
    assert found.ids == ("half", "whole")
    with pytest.raises(InputError, match="damaged or cut short"):
        found.read("half")
    checked = open_dataset({"name": str(root), "check": "whole"})
    assert checked.ids == ("whole",)
    assert "damaged or cut short" in dict(checked.skipped)["half"]
    mini.no_image(root / "text.jpg")
    assert "text" in open_dataset({"name": str(root), "check": "none"}).ids


def test_an_image_that_goes_away_later_is_an_input_error(tmp_path):
    root = mini.labelled(tmp_path / "set")
    found = open_dataset(root)
    (root / "images" / "p2.png").unlink()
    with pytest.raises(InputError, match=r"p2\.png does not exist"):
        found.read("p2")


def test_a_disk_that_fails_is_an_input_error(tmp_path, monkeypatch):
    found = open_dataset(mini.labelled(tmp_path / "set"))

    def failing(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("sightline.data.sets.folder.read_mask", failing)
    with pytest.raises(InputError, match=r"'p0' of set cannot be read .*Input/output error"):
        found.read("p0")


def test_a_picture_of_too_many_pixels_is_left_out(tmp_path, monkeypatch):
    root = tmp_path / "set"
    mini.picture(root / "small.png")
    mini.picture(root / "large.png", size=(64, 64))
    monkeypatch.setattr("sightline.data.images.MAX_PIXELS", 1000)
    found = open_dataset(root)
    assert found.ids == ("small",)
    assert "64×64" in dict(found.skipped)["large"]


def test_a_limit_counts_good_files_only(tmp_path):
    root = mini.labelled(tmp_path / "set")
    mini.no_image(root / "images" / "p0.png")
    assert open_dataset({"name": str(root), "limit": 2}).ids == ("p1", "p2")


def test_where_nothing_is_left_the_first_reason_is_told(tmp_path):
    root = mini.labelled(tmp_path / "set", count=1)
    mini.no_image(root / "images" / "p0.png")
    with pytest.raises(InputError, match=r"no picture of set is left; of 1 left out the first is 'p0': .*not an image"):
        open_dataset(root)


# ---- predictions -----------------------------------------------------------------------------------------------


def test_only_what_was_classified_correctly_and_surely_is_kept(tmp_path):
    root = mini.labelled(tmp_path / "set", count=6)  # labels 0 1 2 0 1 2
    said = [("p0.png", 0, 0.9), ("p1", 1, 0.5), ("p2", 0, 0.99), ("p3", 0, 0.7), ("p4", 1, 0.6)]
    path = mini.table(tmp_path / "said.csv", *({"id": a, "predicted": b, "probability": c} for a, b, c in said))
    options = {"name": str(root), "predictions": str(path), "confidence": 0.6}
    found = open_dataset(options)
    assert found.ids == ("p0", "p3", "p4")
    reasons = dict(found.skipped)
    assert "probability of 0.5, below 0.6" in reasons["p1"]
    assert "classified as 0 and is 2" in reasons["p2"]
    assert "nobody says" in reasons["p5"]
    few = open_dataset({**options, "per_class": 1})
    assert few.ids == ("p0", "p4")
    assert "1 pictures already" in dict(few.skipped)["p3"]


def test_of_several_models_each_must_be_right_and_the_least_sure_counts(tmp_path):
    root = mini.labelled(tmp_path / "set", count=3)
    said = [("p0", 0, 0.9), ("p0", 0, 0.7), ("p1", 1, 0.9), ("p1", 2, 0.99), ("p2", 2, 0.99), ("p2", 2, 0.98)]
    path = mini.table(tmp_path / "said.csv", *({"id": a, "predicted": b, "probability": c} for a, b, c in said))
    assert open_dataset({"name": str(root), "predictions": str(path), "confidence": 0.8}).ids == ("p2",)
    assert open_dataset({"name": str(root), "predictions": str(path)}).ids == ("p0", "p2")


def test_a_table_of_predictions_that_is_none_is_refused(tmp_path):
    root = mini.labelled(tmp_path / "set", count=2)
    for text, says in (("id,predicted\np0,0", "lacks a number"), ("name,predicted,probability\np0,0,1", "has no id")):
        path = mini.lines(tmp_path / "said.csv", text)
        with pytest.raises(InputError, match=says):
            open_dataset({"name": str(root), "predictions": str(path)})


# ---- the digest ------------------------------------------------------------------------------------------------


def test_the_same_data_in_another_folder_has_the_same_digest(tmp_path):
    first = mini.labelled(tmp_path / "one")
    shutil.copytree(first, tmp_path / "two" / "renamed")
    assert open_dataset(first).digest() == open_dataset(tmp_path / "two" / "renamed").digest()
    assert open_dataset(first).name == "one"


def test_other_pictures_labels_or_options_change_the_digest(tmp_path):
    root = mini.labelled(tmp_path / "set")
    voc = mini.voc(tmp_path / "voc")
    digests = [open_dataset({"name": str(root), "limit": 3}).digest(), open_dataset(root).digest()]
    digests += [open_dataset({"name": "voc", "root": str(voc), "border": how}).digest() for how in ("ignore", "object")]
    digests += [open_dataset(f"shapes(count=3, seed={seed})").digest() for seed in (0, 1)]
    told = (root / "labels.csv").read_text()
    (root / "labels.csv").write_text(told.replace("p4.png,1", "p4.png,2"))
    digests.append(open_dataset(root).digest())
    assert len(set(digests)) == len(digests)


def test_how_many_were_asked_for_does_not_change_the_digest_only_which_were_taken():
    assert open_dataset("shapes(count=4)").digest() == open_dataset("shapes(count=9, limit=4)").digest()


# ---- masks -----------------------------------------------------------------------------------------------------


def test_a_mask_of_another_size_than_its_image_is_an_input_error(tmp_path):
    root = mini.labelled(tmp_path / "set")
    Image.new("L", (5, 5)).save(root / "masks" / "p0.png")
    with pytest.raises(InputError, match="5×5 and the image 16×24"):
        open_dataset(root).read("p0")
