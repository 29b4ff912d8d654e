"""`sightline.rank`: which of these maps should I believe, for any model that `explain` takes."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import sightline
from sightline.audit.panel import CONTROLS, CONVOLUTIONAL
from sightline.cli.main import app
from sightline.data.shapes import Shapes
from sightline.errors import InputError, RecipeError, TargetError, UnsupportedModel

QUICK = ["grad_cam", "ixg", "random"]


@pytest.fixture(scope="module")
def cnn():
    return sightline.load("bundled/shapes-cnn")


@pytest.fixture(scope="module")
def images(cnn):
    return cnn.normalise(Shapes(seed=3).draw(2).images)


@pytest.fixture(scope="module")
def ranking(cnn, images):
    return sightline.rank(cnn, images, QUICK)


def test_each_image_has_its_maps_in_order(ranking):
    assert len(ranking) == 2
    for image in ranking:
        scores = [scored.score for scored in image.maps]
        assert scores == sorted(scores, reverse=True)
        assert [scored.rank for scored in image.maps] == [1, 2, 3]


def test_the_best_recipe_is_the_first_unless_a_control_wins_or_the_verdict_is_withheld(ranking, cnn, images):
    for image, best in zip(ranking, ranking.best, strict=True):
        assert best == (None if image.verdict.withheld else image.maps[0].recipe)
    controls = sightline.rank(cnn, images[:1], ["centre", "sobel"])
    assert controls.best == [None]
    assert controls.verdicts[0].startswith("No method beat the controls on this image.")


def test_a_map_below_zero_is_not_to_be_believed(cnn, images):
    class Turned:
        def attribute(self, inputs, target):
            return -ixg.pixels()[: len(inputs), None].expand_as(inputs)

    ixg = sightline.explain(cnn, images[:1], "ixg")
    ranking = sightline.rank(cnn, images[:1], [Turned()])
    assert ranking[0].maps[0].ins_del < 0
    assert ranking.best == [None]
    assert "trust none" in ranking.verdicts[0]


def test_a_frame_has_a_row_per_image_and_recipe(ranking):
    frame = ranking.to_pandas()
    assert len(frame) == 2 * len(QUICK)
    assert {"image", "recipe", "rank", "insertion", "deletion", "ins_del", "control", "forward", "seconds"} <= {*frame}
    assert frame[frame["recipe"] == "random"]["control"].all()
    assert (frame["ins_del"] - (frame["insertion"] - frame["deletion"])).abs().max() < 1e-6
    fills = ["fill_blur", "fill_strong_blur", "fill_zero", "fill_noise"]
    assert {"score", "low", "high", "share", *fills} <= {*frame}
    assert ((frame["low"] <= frame["score"]) & (frame["score"] <= frame["high"])).all()
    assert frame[frame["recipe"] == "random"]["share"].isna().all()
    assert frame[frame["recipe"] != "random"]["share"].between(0, 1).all()


@pytest.mark.parametrize("suffix", [".html", ".csv", ".json"])
def test_it_is_saved_by_the_ending_of_the_name(ranking, tmp_path, suffix):
    path = ranking.save(tmp_path / f"ranking{suffix}")
    text = path.read_text("utf-8")
    assert all(recipe in text for recipe in QUICK)
    if suffix == ".json":
        assert len(json.loads(text)["images"]) == 2


def test_another_ending_is_refused(ranking, tmp_path):
    with pytest.raises(InputError, match=r"end it in \.html, \.csv or \.json"):
        ranking.save(tmp_path / "ranking.pdf")


def test_it_is_one_line_of_text_and_a_panel_in_a_notebook(ranking):
    assert repr(ranking).startswith("Ranking(bundled/shapes-cnn: 2 images; best: ")
    html = ranking._repr_html_()
    assert html.count("<img") == 2 * (1 + len(QUICK))
    assert html.count("<caption>Insertion \N{MINUS SIGN} deletion under each fill</caption>") == 2
    assert "beats controls" in html
    assert "http" not in html


def test_the_command_gives_the_same_ranking(tmp_path, cnn):
    photograph = Image.fromarray(Shapes(seed=5)[0].image)
    photograph.save(tmp_path / "shape.png")
    words = ["explain", str(tmp_path / "shape.png"), "--model", "bundled/shapes-cnn", "--no-page", "--json"]
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "out")])
    (record,) = json.loads(result.stdout)["images"]
    (image,) = sightline.rank(cnn.model, [photograph])  # the user's own module, adapted anew
    assert [scored.recipe for scored in image.maps] == [entry["recipe"] for entry in record["maps"]]
    assert [scored.ins_del for scored in image.maps] == pytest.approx([entry["ins_del"] for entry in record["maps"]])
    assert image.verdict.sentence == record["verdict"]
    assert [scored.share for scored in image.maps] == [entry["share"] for entry in record["maps"]]
    assert record["best"] == image.verdict.best
    assert set(record["fills"]) == {"blur", "strong_blur", "zero", "noise"} == set(record["maps"][0]["fills"])


def test_a_users_own_module_is_ranked_with_the_controls(images):
    torch.manual_seed(0)
    own = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 5),
    ).eval()  # fmt: skip
    (image,) = sightline.rank(own, images[:1], target=2)
    recipes = {scored.recipe for scored in image.maps}
    assert set(CONTROLS) <= recipes
    assert set(CONVOLUTIONAL) <= recipes
    assert image.target.label == "class 2"


def test_paths_and_pictures_are_shown_as_the_model_sees_them(cnn, tmp_path):
    photograph = Image.fromarray(np.repeat(Shapes(seed=1)[0].image, 2, axis=1))  # 128 × 64: the crop is the middle
    photograph.save(tmp_path / "wide.png")
    (image,) = sightline.rank(cnn, str(tmp_path / "wide.png"), ["ixg"])
    assert image.name == "wide.png"
    assert image.view.picture.width == image.view.picture.height


def test_a_list_of_tensors_or_arrays_is_ranked_image_by_image(cnn, images):
    whole = sightline.rank(cnn, images, ["ixg"])
    for form in (list(images), [images[:1], images[1:]], [image.numpy() for image in images]):
        ranking = sightline.rank(cnn, form, ["ixg"])
        assert [image.maps[0].ins_del for image in ranking] == [image.maps[0].ins_del for image in whole]


def test_targets_are_one_for_all_or_one_each(cnn, images):
    assert [image.target.label for image in sightline.rank(cnn, images, ["random"], target="star")] == ["star"] * 2
    each = sightline.rank(cnn, images, ["random"], target=["star", 1])
    assert [image.target.index for image in each] == [4, 1]
    with pytest.raises(TargetError, match="got 3 targets for 2 images"):
        sightline.rank(cnn, images, ["random"], target=[0, 1, 2])


def test_a_method_that_cannot_work_is_refused(cnn, images):
    with pytest.raises(UnsupportedModel, match="Methods that work"):
        sightline.rank(cnn, images, ["rollout"])
    with pytest.raises(RecipeError, match="empty list of methods"):
        sightline.rank(cnn, images, [])


def test_a_regression_is_ranked_by_its_value(images):
    torch.manual_seed(0)
    own = nn.Sequential(nn.Conv2d(3, 4, 5, stride=4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(1)).eval()
    own(images)
    model = sightline.adapt(own, output="value")
    (image,) = sightline.rank(model, images[:1], ["ixg", "random"])
    assert image.target.probability is None
    assert image.top == ()
    whole = own(images[:1])[0, 0].item()
    assert image.maps[0].curves["insertion"][-1] == pytest.approx(whole, abs=1e-5)
    assert "ixg" in sightline.rank(model, images[:1], ["ixg"])._repr_html_()


def test_several_labels_are_ranked_by_their_own_probability(images):
    torch.manual_seed(0)
    own = nn.Sequential(nn.Conv2d(3, 4, 5, stride=4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4)).eval()
    logits = own(images)
    (image,) = sightline.rank(sightline.adapt(own, output="sigmoid"), images[:1], ["ixg"], target=2)
    assert image.target.probability == pytest.approx(logits[0, 2].sigmoid().item(), abs=1e-6)
    assert image.maps[0].curves["deletion"][0] == pytest.approx(image.target.probability, abs=1e-5)
