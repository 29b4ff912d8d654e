"""`sightline.tune`: chosen on one half of the images, reported on the other, resumable."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import sightline
from sightline.api.prepare import prepare
from sightline.audit import score_store
from sightline.audit.search_space import candidates, expand, varied
from sightline.catalogue.options import hints_of
from sightline.catalogue.ranges import range_of
from sightline.catalogue.variations import KEPT, variations
from sightline.cli.main import app
from sightline.data import open_dataset
from sightline.data.shapes import Shapes
from sightline.errors import InputError, RecipeError, ShapeError, UnsupportedModel
from sightline.recipe import parse, text
from sightline.registry import check_option, numbers_in

METRIC = "insertion(step=1024)"
RECIPES = ["grad_cam", "ixg", "gradient", "smooth_grad(samples={1,2})", "ig(steps={1,2,3})"]


@pytest.fixture(scope="module")
def cnn():
    return sightline.load("bundled/shapes-cnn")


@pytest.fixture(scope="module")
def images(cnn):
    return cnn.normalise(Shapes(seed=3).draw(12).images)


@pytest.fixture(scope="module")
def searched(cnn, images, tmp_path_factory):
    store = tmp_path_factory.mktemp("store") / "scores.jsonl"
    return sightline.tune(cnn, images, RECIPES, METRIC, store=store), store


def test_braces_stand_for_each_of_their_values():
    assert expand("ixg") == ["ixg"]
    assert expand("f(a={1, 2}, b={x,y})") == ["f(a=1, b=x)", "f(a=1, b=y)", "f(a=2, b=x)", "f(a=2, b=y)"]


def test_half_of_the_recipes_goes_on_to_twice_the_images(searched):
    found, _ = searched
    assert found.images == (6, 6)
    assert found.rounds == ((8, 2), (4, 4), (3, 6))
    assert [each.images for each in found.recipes if not each.control] == [6, 6, 6]


def test_every_score_is_on_record_once_and_the_held_out_means_are_those_of_the_metric(searched, cnn, images):
    found, store = searched
    entries = [json.loads(line) for line in store.read_text().splitlines() if line]
    assert len({entry["key"] for entry in entries}) == len(entries)
    used = {each.recipe: {e["image"] for e in entries if e["recipe"] == each.recipe} for each in found.recipes}
    controls = [each.recipe for each in found.recipes if each.control]
    held_out = used[controls[0]]
    assert len(held_out) == 6  # controls see the images held out alone
    assert all(used[control] == held_out for control in controls)
    dropped = {entry["image"] for entry in entries if entry["recipe"] not in used}
    assert not dropped & held_out  # nothing that was dropped has seen them
    batch = images[sorted(held_out)]
    maps = sightline.explain(cnn, batch, found.chosen.recipe)
    expected = sightline.evaluate(cnn, batch, maps, METRIC)[METRIC].mean().item()
    assert found.chosen.held_out == pytest.approx(expected, abs=1e-5)


def test_the_chosen_one_won_the_search_and_is_measured_against_the_best_control(searched):
    found, _ = searched
    methods = [each for each in found.recipes if not each.control]
    assert found.chosen.searched == max(each.searched for each in methods)
    controls = [each.held_out for each in found.recipes if each.control]
    assert controls == sorted(controls, reverse=True)
    assert found.chosen.margin == pytest.approx(found.chosen.held_out - controls[0])
    low, high = found.chosen.margin_interval
    assert low <= found.chosen.margin <= high
    assert found.best == (found.chosen.recipe if low > 0 else None)
    assert len(found.to_pandas()) == len(found.recipes)


def test_a_lower_score_is_better_where_the_metric_says_so(cnn, images):
    found = sightline.tune(cnn, images[:4], ["ixg", "gradient"], "deletion(step=2048)")
    first, second = found.recipes[:2]
    assert first.searched <= second.searched
    best = min(each.held_out for each in found.recipes if each.control)
    assert first.margin == pytest.approx(best - first.held_out)


def test_a_second_run_takes_every_score_from_the_store(searched, cnn, images, monkeypatch):
    found, store = searched

    def refused(*words, **options):
        raise AssertionError("explained again")

    with store.open("a") as file:
        file.write('\n{"key": "half')
    monkeypatch.setattr(score_store.api, "explain", refused)
    again = sightline.tune(cnn, images, RECIPES, METRIC, store=store)
    assert again.json() == found.json()
    with pytest.raises(AssertionError, match="explained again"):  # another model's scores are not taken for its own
        sightline.tune(lambda batch: cnn.model(batch) * 2, images, ["centre", "simple_insertion"], METRIC, store=store)


def test_what_cannot_be_searched_is_refused_in_a_sentence(cnn, images):
    with pytest.raises(InputError, match="got 3 images"):
        sightline.tune(cnn, images[:3])
    with pytest.raises(RecipeError, match="no recipe to search"):
        sightline.tune(cnn, images, ["random"])
    with pytest.raises(UnsupportedModel):
        sightline.tune(cnn, images, ["rollout"])
    with pytest.raises(InputError, match="pointing_game needs a mask for every image"):
        sightline.tune(cnn, images[:4], ["ixg"], "pointing_game")
    with pytest.raises(InputError, match="none of the recipes could be scored"):
        sightline.tune(cnn, images[:4], ["ixg"], "pointing_game", masks=torch.zeros(4, 64, 64))
    with pytest.raises(ShapeError, match=r"masks of shape \(3, 64, 64\) for 4 images"):
        sightline.tune(cnn, images[:4], ["ixg"], masks=torch.zeros(3, 64, 64))
    with pytest.raises(InputError, match="brings its own"):
        sightline.tune(cnn, open_dataset("shapes(count=4)"), ["ixg"], masks=torch.zeros(4, 64, 64))


@pytest.mark.parametrize("name", ["bundled/shapes-cnn", "bundled/shapes-vit"])
def test_the_recipes_searched_by_default_suit_the_model(name):
    failures = {}
    wanted, controls = candidates(sightline.load(name), None, failures)
    assert len(wanted) >= 10
    assert "grad_cam" in wanted
    assert len(controls) >= 3
    assert not set(wanted) & {*controls, *failures}


# ---- masks and data sets ---------------------------------------------------------------------------------------------


def test_a_data_set_with_masks_is_searched_by_average_precision_of_its_labels(cnn):
    data = open_dataset("shapes(count=8, seed=5)")
    found = sightline.tune(cnn, data, ["ixg", "grad_cam"])
    assert (found.metric, found.direction) == ("average_precision", "higher")
    samples = list(data)
    batch = torch.stack([prepare(cnn, sample)[0] for sample in samples])
    masks = torch.stack([torch.from_numpy(sample.mask) for sample in samples])
    labels = [sample.label for sample in samples]
    order = np.random.default_rng(0).permutation(8)
    for each in found.recipes[:2]:
        maps = sightline.explain(cnn, batch, each.recipe, target=labels)
        scores = sightline.evaluate(cnn, batch, maps, "average_precision", masks=masks)["average_precision"]
        assert each.searched == pytest.approx(scores[order[:4]].mean().item(), abs=1e-5)
        assert each.held_out == pytest.approx(scores[order[4:]].mean().item(), abs=1e-5)


def test_masks_can_be_given_beside_images_and_are_part_of_what_a_store_knows(cnn, tmp_path):
    drawn = Shapes(seed=5).draw(4)
    images, store = cnn.normalise(drawn.images), tmp_path / "scores.jsonl"
    found = sightline.tune(cnn, images, ["ixg"], masks=drawn.evidence.long(), store=store)
    assert found.metric == "average_precision"
    turned = sightline.tune(cnn, images, ["ixg"], masks=1 - drawn.evidence.long(), store=store)
    assert turned.chosen.held_out != found.chosen.held_out
    assert sightline.tune(cnn, images, ["ixg"], masks=drawn.evidence.long(), store=store).json() == found.json()


# ---- the space that is searched --------------------------------------------------------------------------------------


def test_options_vary_within_their_annotation_and_range(cnn):
    found = varied("smooth(ig(steps=1), samples=4)", cnn)
    assert {"smooth(ig(steps=1), samples=2)", "smooth(ig(steps=2), samples=4)"} <= {*found}
    assert "smooth(ig(steps=1, rule='right'), samples=4)" in found
    assert not any("steps=0" in recipe or "seed" in recipe for recipe in found)
    for recipe in found:
        assert text(parse(recipe)) == recipe


def test_what_a_model_cannot_do_or_costs_much_more_is_not_tried(cnn):
    strides = {parse(recipe).stride for recipe in varied("occlusion(window=8, stride=4)", cnn)}
    assert strides == {4, 8}  # 2 needs four times the passes
    for recipe in varied("smooth(ixg)", cnn):
        sightline.api.check_needs(parse(recipe), cnn)


def test_the_options_of_the_finalists_are_varied_and_judged_with_them(cnn, images):
    plain = sightline.tune(cnn, images[:4], ["grad_cam"], METRIC)
    found = sightline.tune(cnn, images[:4], ["grad_cam"], METRIC, vary=True)
    count = 1 + len(varied("grad_cam", cnn))
    assert plain.rounds == ((1, 2),)
    assert found.rounds == ((1, 2), (count, 2))
    assert found.chosen.searched >= plain.chosen.searched
    assert len([each for each in found.recipes if not each.control]) == 3


def test_no_variation_of_a_method_leaves_the_range_or_the_type_of_its_option():
    built = [parse(name) for name in sightline.METHODS]
    found = [(method, option, value) for method in built for option, value in variations(method)]
    assert len(found) > 200
    for method, option, value in found:
        assert option not in KEPT
        assert value != getattr(method, option)
        hint = hints_of(type(method))[option]
        check_option(type(method).__name__, option, value, hint)
        assert all(
            range_of(option, hint).least <= number <= range_of(option, hint).most for number in numbers_in(value)
        )


def test_the_command_takes_a_data_set():
    words = ["tune", "bundled/shapes-cnn", "shapes(count=4, seed=5)", "--recipe", "ixg", "--json"]
    told = json.loads(CliRunner().invoke(app, words).stdout)
    assert told["metric"] == "average_precision"
    assert told["images"] == {"searched": 2, "held_out": 2}


def test_the_command_ends_in_a_recipe_or_says_why_not(tmp_path, cnn):
    from PIL import Image

    for index in range(4):
        Image.fromarray(Shapes(seed=7)[index].image).save(tmp_path / f"{index}.png")
    words = ["tune", "bundled/shapes-cnn", str(tmp_path), "--recipe", "ixg", "--metric", METRIC]
    result = CliRunner().invoke(app, [*words, "--store", str(tmp_path / "scores.jsonl")])
    assert result.exit_code == 0, result.stderr
    told = json.loads(CliRunner().invoke(app, [*words, "--store", str(tmp_path / "scores.jsonl"), "--json"]).stdout)
    assert told["recipes"][0]["recipe"] == "ixg"
    assert told["images"] == {"searched": 2, "held_out": 2}
    assert " ".join(told["verdict"].split()) in " ".join(result.stdout.split())
    assert ("recipe: ixg" in result.stdout) == (told["best"] == "ixg")
