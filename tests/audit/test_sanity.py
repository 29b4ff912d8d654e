"""`sightline.sanity`: which methods depend on the model at all."""

import json

import pytest

import sightline
from sightline.data.shapes import Shapes
from sightline.errors import InputError, UnsupportedModel


@pytest.fixture(scope="module")
def check():
    model = sightline.load("bundled/shapes-cnn")
    return sightline.sanity(model, model.normalise(Shapes(seed=3).draw(2).images), ["grad_cam", "sobel"], stages=2)


def test_a_control_fails_and_a_method_that_looks_inside_passes(check):
    assert check.failed == ["sobel"]
    assert check.verdicts["grad_cam"].startswith("passes: Changes with the model")
    assert check.verdicts["sobel"].startswith("fails: Does not depend on the model")


def test_a_frame_has_a_row_per_method(check):
    frame = check.to_pandas().set_index("recipe")
    assert list(frame.index) == ["grad_cam", "sobel"]
    assert frame.loc["sobel", "spearman_all_random"] == pytest.approx(1)
    assert frame.loc["grad_cam", "verdict"] == "passes"


def test_a_strip_has_a_map_for_the_model_and_for_each_stage(check):
    assert [len(method.strip) for method in check.methods] == [3, 3]


@pytest.mark.parametrize("suffix", [".html", ".csv", ".json"])
def test_it_is_saved_by_the_ending_of_the_name(check, tmp_path, suffix):
    text = check.save(tmp_path / f"check{suffix}").read_text("utf-8")
    assert "grad_cam" in text
    if suffix == ".json":
        assert json.loads(text)["images"] == 2
    with pytest.raises(InputError, match="end it in"):
        check.save(tmp_path / "check.txt")


def test_it_is_one_line_of_text_and_a_strip_in_a_notebook(check):
    assert repr(check) == "SanityCheck(bundled/shapes-cnn: 2 images; grad_cam passes, sobel fails)"
    html = check._repr_html_()
    assert html.count("<img") == 2
    assert "http" not in html


def test_without_images_shapes_are_drawn():
    check = sightline.sanity(sightline.load("bundled/shapes-cnn"), methods="centre", stages=1)
    assert check.images == 4
    assert "nor on the image" in check.verdicts["centre"]


def test_a_method_that_cannot_work_is_refused():
    with pytest.raises(UnsupportedModel, match="Methods that work"):
        sightline.sanity(sightline.load("bundled/shapes-cnn"), methods=["rollout"], stages=1)
