"""`sightline compare`, and the agreement of maps."""

import json

import numpy as np
import pytest
from scipy.stats import spearmanr

from sightline.audit.agreement import agreements, spearman

VIT, CNN = "bundled/shapes-vit", "bundled/shapes-cnn"
QUICK = ("--metric-step", 1024)


def test_methods_of_one_model_stand_side_by_side(opened, sightline, photos):
    words = ("--model", VIT, "--method", "ixg", "--method", "gae", "--method", "random")
    result = sightline("compare", photos / "a.png", *words, *QUICK, "--json")
    assert result.exit_code == 0, result.stderr
    image = json.loads(result.stdout)["images"][0]
    picture = opened(image["picture"])
    assert picture.width > 3 * picture.height / 2
    assert [one["recipe"] for one in image["models"][0]["maps"]]
    matrix = np.array(image["agreement"]["spearman"])
    assert matrix.shape == (3, 3)
    assert np.allclose(matrix, matrix.T)
    assert np.allclose(np.diag(matrix), 1)


def test_models_stand_below_each_other_and_their_maps_are_compared(opened, sightline, photos):
    words = ("--model", VIT, "--model", CNN, "--method", "grad_cam")
    result = sightline("compare", photos / "a.png", *words, *QUICK, "--json")
    image = json.loads(result.stdout)["images"][0]
    assert [one["model"] for one in image["agreement"]["maps"]] == [VIT, CNN]
    assert abs(image["agreement"]["spearman"][0][1]) < 1
    picture = opened(image["picture"])
    assert picture.height > picture.width


def test_a_method_is_left_out_where_it_cannot_work_and_that_is_said(sightline, photos):
    words = ("--model", VIT, "--model", CNN, "--method", "rollout", "--method", "grad_cam")
    result = sightline("compare", photos / "a.png", *words, *QUICK, "--json")
    assert result.exit_code == 0
    models = json.loads(result.stdout)["images"][0]["models"]
    assert [{one["recipe"] for one in model["maps"]} for model in models] == [{"rollout", "grad_cam"}, {"grad_cam"}]
    assert result.stderr.startswith("note: left out: rollout needs attention maps")


def test_a_method_that_works_nowhere_is_wrong_usage(sightline, photos, tmp_path):
    result = sightline("compare", photos / "a.png", "--model", CNN, "--method", "gae", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "Methods that work: " in result.stderr
    assert not (tmp_path / "out").exists()


def test_the_table_shows_scores_and_agreement(sightline, photos):
    result = sightline("compare", photos, "--model", CNN, *QUICK)
    assert result.exit_code == 0, result.stderr
    assert "Spearman" in result.stdout
    assert "picture: sightline-out/b-compare.png" in result.stdout


def test_a_corrupt_image_is_reported_and_the_others_are_done(sightline, photos):
    (photos / "bad.png").write_bytes(b"no image")
    result = sightline("compare", photos, "--model", CNN, "--method", "ixg", *QUICK, "--json")
    assert result.exit_code == 1
    assert len(json.loads(result.stdout)["images"]) == 2
    assert "bad.png is not an image" in result.stderr


def test_the_correlation_is_scipys():
    random = np.random.default_rng(0)
    one, other = random.integers(0, 5, (2, 12, 9)).astype(float)
    assert spearman(one, other) == pytest.approx(spearmanr(one.ravel(), other.ravel()).statistic)


def test_a_constant_map_agrees_with_nothing():
    assert np.isnan(spearman(np.zeros((4, 4)), np.arange(16.0).reshape(4, 4)))


def test_maps_of_different_crops_are_compared_where_both_see():
    columns = np.tile(np.arange(100.0), (100, 1))
    whole, right = (columns, (0.0, 0.0, 100.0, 100.0)), (columns[:, 50:], (50.0, 0.0, 100.0, 100.0))
    assert agreements([whole, right])[0][1] == pytest.approx(1, abs=1e-6)
    mirrored = (columns[:, 50:][:, ::-1], right[1])
    assert agreements([whole, mirrored])[0][1] == pytest.approx(-1, abs=1e-6)


def test_crops_that_do_not_meet_have_nothing_to_compare():
    values = np.arange(100.0).reshape(10, 10)
    assert np.isnan(agreements([(values, (0.0, 0.0, 4.0, 4.0)), (values, (5.0, 5.0, 9.0, 9.0))])[0][1])
