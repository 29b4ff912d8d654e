"""`sightline compare`, and the agreement of maps."""

import json

import numpy as np

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


def test_the_classes_of_quads_are_compared(sightline):
    words = ("--data", "quads(of=shapes(count=8), side=64)", "--limit", 1, "--model", CNN, "--method", "grad_cam")
    recipe = "var(grad_cam, classes='picture')"
    result = sightline("compare", *words, "--method", recipe, *QUICK, "--json")
    assert result.exit_code == 0, result.stderr
    (image,) = json.loads(result.stdout)["images"]
    assert image["path"] == "quad-0000-top-left"
    labels = [one["label"] for one in image["models"]]
    assert len(labels) == len(set(labels)) > 1
    assert all([scored["recipe"] for scored in one["maps"]] == ["grad_cam", recipe] for one in image["models"])


def test_a_folder_of_class_folders_brings_its_labels(sightline, photos, tmp_path):
    for index, name in enumerate("ab"):
        (tmp_path / "classes" / str(index)).mkdir(parents=True)
        (photos / f"{name}.png").rename(tmp_path / "classes" / str(index) / f"{name}.png")
    words = ("--data", tmp_path / "classes", "--model", CNN, "--method", "grad_cam", *QUICK, "--json")
    images = json.loads(sightline("compare", *words).stdout)["images"]
    assert [(image["path"], image["models"][0]["target"]) for image in images] == [("0/a", 0), ("1/b", 1)]


def test_several_targets_stand_below_each_other_and_the_enlargement_is_chosen(sightline, photos):
    words = ("--model", VIT, "--method", "gae", "--target", "star", "--target", "circle", "--metric-step", 256)
    found = []
    for mode in ("nearest", "bilinear"):
        result = sightline("compare", photos / "a.png", *words, "--enlarge", mode, "--json")
        found.append(json.loads(result.stdout)["images"][0]["models"])
    assert [[one["label"] for one in models] for models in found] == [["star", "circle"]] * 2
    assert found[0][0]["maps"][0]["insertion"] != found[1][0]["maps"][0]["insertion"]


def test_no_image_and_no_data_set_is_wrong_usage(sightline):
    for command in ("compare", "explain", "figure panel"):
        result = sightline(*command.split(), "--model", CNN)
        assert result.exit_code == 2
        assert "name images to explain, or a data set with --data" in result.stderr
    assert sightline("compare", "a.png", "--model", CNN, "--enlarge", "cubic").exit_code == 2
