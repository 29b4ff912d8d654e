"""`sightline.compare`: maps over models, methods and targets, and how far they agree."""

import json

import numpy as np
import pytest

import sightline
from sightline.data.dataset import open_dataset
from sightline.data.shapes import Shapes
from sightline.errors import InputError, SightlineError, SightlineWarning, UnsupportedModel


@pytest.fixture(scope="module")
def models():
    return [sightline.load("bundled/shapes-vit"), sightline.load("bundled/shapes-cnn")]


@pytest.fixture(scope="module")
def images(models):
    return models[0].normalise(Shapes(seed=3).draw(1).images)


@pytest.fixture(scope="module")
def comparison(models, images):
    return sightline.compare(models, images, ["ixg", "grad_cam"], targets=["star", 0])


def test_every_model_method_and_target_has_its_map(comparison):
    maps = [(name, of.target.label, scored.recipe) for name, of, scored in comparison[0].maps]
    assert len(maps) == len(set(maps)) == 8
    assert {label for _, label, _ in maps} == {"star", "circle"}


def test_agreement_is_one_on_the_diagonal_and_the_same_both_ways(comparison):
    (matrix,) = np.array(comparison.agreement)
    assert matrix.shape == (8, 8)
    assert np.allclose(np.diag(matrix), 1)
    assert np.allclose(matrix, matrix.T, equal_nan=True)
    assert np.abs(matrix[0, 1]) < 1


def test_a_frame_has_a_row_per_map(comparison):
    frame = comparison.to_pandas()
    assert len(frame) == 8
    assert set(frame["model"]) == {"bundled/shapes-vit", "bundled/shapes-cnn"}


@pytest.mark.parametrize("suffix", [".png", ".html", ".csv", ".json"])
def test_it_is_saved_by_the_ending_of_the_name(comparison, tmp_path, suffix):
    data = comparison.save(tmp_path / f"comparison{suffix}").read_bytes()
    assert data[:4] == b"\x89PNG" if suffix == ".png" else b"grad_cam" in data
    if suffix == ".json":
        assert len(json.loads(data)["images"]) == 1
    with pytest.raises(InputError, match="end it in"):
        comparison.save(tmp_path / "comparison.txt")


def test_it_is_one_line_of_text_and_a_picture_in_a_notebook(comparison):
    assert repr(comparison) == "Comparison(bundled/shapes-vit, bundled/shapes-cnn: 1 image, 8 maps each)"
    assert "Spearman" in comparison._repr_html_()


def test_a_method_is_left_out_where_it_cannot_work_and_refused_where_it_works_nowhere(models, images):
    with pytest.warns(sightline.errors.SightlineWarning, match="left out: rollout needs attention"):
        left = sightline.compare(models, images, ["rollout", "random"])
    assert [scored.recipe for _, _, scored in left[0].maps] == ["rollout", "random", "random"]
    with pytest.raises(UnsupportedModel, match="Methods that work"):
        sightline.compare(models[1], images, "rollout")


def test_models_may_be_named_and_two_of_one_name_are_told_apart(models, images):
    named = sightline.compare({"mine": models[1]}, images, "random")
    assert [name for name, _ in named[0].views] == ["mine"]
    twice = sightline.compare([models[1], models[1]], images, "random")
    assert [name for name, _ in twice[0].views] == ["bundled/shapes-cnn (1)", "bundled/shapes-cnn (2)"]


def test_a_data_set_brings_its_pictures_and_their_classes(models):
    compared = sightline.compare(models, open_dataset("quads(of=shapes(count=8), side=64)"), "ixg")
    assert [image.name for image in compared.images] == ["quad-0000-top-left", "quad-0001-top-left"]
    for image in compared.images:
        labels = [explained.target.index for name, explained in image.views if name == models[0].name]
        assert len(labels) == len(set(labels)) > 1
    named = sightline.compare(models[1], open_dataset("shapes(count=1)"), "ixg", targets=[2], enlarge="nearest")
    assert [explained.target.index for _, explained in named[0].views] == [2]
    with pytest.raises(SightlineError, match="enlarge"):
        sightline.compare(models[1], open_dataset("shapes(count=1)"), "ixg", enlarge="cubic")


def test_an_operator_that_only_some_models_can_have_is_left_out_for_the_others(models, images):
    with pytest.warns(SightlineWarning, match="left out: .* has no blocks to start ixg at"):
        compared = sightline.compare(models, images, ["plus(ixg)", "ixg"])
    found = [(name, scored.recipe) for name, _, scored in compared[0].maps]
    vit, cnn = (model.name for model in models)
    assert found == [(vit, "plus(ixg)"), (vit, "ixg"), (cnn, "ixg")]
