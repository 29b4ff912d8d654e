"""`sightline sanity`: controls are unmasked, sound methods pass, and the rule behind the verdicts."""

import json

import pytest

from sightline.audit import panel
from sightline.audit import sanity as checking
from sightline.audit.sanity_verdict import FAILS, PASSES
from sightline.errors import NumericalError

VIT, CNN = "bundled/shapes-vit", "bundled/shapes-cnn"
QUICK = ("--count", 3, "--stages", 3)


def verdicts(result):
    return {one["recipe"]: one["verdict"] for one in json.loads(result.stdout)["methods"]}


def methods(*names):
    return [word for name in names for word in ("--method", name)]


def test_on_the_transformer_controls_fail_and_methods_that_look_inside_pass(sightline):
    result = sightline("sanity", "--model", VIT, *methods("gae", "ixg", "sobel", "centre"), *QUICK, "--json")
    assert verdicts(result) == {"gae": PASSES, "ixg": PASSES, "sobel": FAILS, "centre": FAILS}
    assert result.exit_code == 1  # methods that were named have failed
    found = {one["recipe"]: one for one in json.loads(result.stdout)["methods"]}
    assert found["sobel"]["spearman_all_random"] == pytest.approx(1)
    assert found["sobel"]["sentence"].startswith("Does not depend on the model")
    assert "nor on the image" in found["centre"]["sentence"]
    assert found["sobel"]["control"]
    assert not found["gae"]["control"]
    assert len(found["gae"]["stages"]) == 3


def test_on_the_convolutional_network_grad_cam_and_ixg_pass(sightline):
    result = sightline("sanity", "--model", CNN, *methods("grad_cam", "ixg"), *QUICK, "--json")
    assert result.exit_code == 0, result.stderr
    assert verdicts(result) == {"grad_cam": PASSES, "ixg": PASSES}


def test_guided_backprop_is_doubtful_and_the_sentence_says_why(sightline):
    result = sightline("sanity", "--model", CNN, *methods("guided_backprop"), *QUICK)
    assert result.exit_code == 0
    assert "guided_backprop doubtful: Hardly depends on the later layers" in result.stdout
    assert "Passing is necessary, not sufficient" in result.stdout


def test_without_methods_the_panel_is_checked_and_failing_controls_are_no_failure(sightline, monkeypatch):
    monkeypatch.setattr(panel, "choose", lambda model: ["ixg", "centre"])
    result = sightline("sanity", "--model", CNN, "--count", 2, "--stages", 2)
    assert result.exit_code == 0, result.stderr
    assert "centre (a control: it should fail) fails" in result.stdout
    assert "ixg passes: Changes with the model" in result.stdout


def test_the_same_command_gives_the_same_numbers_and_another_seed_others(sightline):
    words = ("sanity", "--model", CNN, "--method", "ixg", "--count", 1, "--stages", 1, "--json")
    first, again, other = sightline(*words), sightline(*words), sightline(*words, "--seed", 7)
    assert first.stdout == again.stdout
    assert first.stdout != other.stdout
    assert json.loads(first.stdout)["methods"][0]["other_image"] is None  # a single image has no other


def test_own_images_and_one_that_cannot_be_read(sightline, photos):
    (photos / "bad.png").write_bytes(b"no image")
    words = ("--model", CNN, "--method", "ixg", "--images", photos, "--stages", 1, "--json")
    result = sightline("sanity", *words)
    assert result.exit_code == 1
    assert "bad.png is not an image" in result.stderr
    found = json.loads(result.stdout)
    assert found["images"] == 2
    assert len(found["methods"]) == 1


def test_a_strip_of_maps_per_method_is_drawn(sightline, opened, tmp_path):
    words = ("--model", VIT, "--method", "sobel", "--count", 1, "--stages", 2, "--out", tmp_path / "out", "--json")
    (picture,) = json.loads(sightline("sanity", *words).stdout)["pictures"]
    drawn = opened(picture)
    assert drawn.width > 3 * drawn.height / 2


def test_a_class_can_be_named_and_a_wrong_one_is_wrong_usage(sightline):
    words = ("--model", CNN, "--method", "ixg", "--count", 1, "--stages", 1)
    assert sightline("sanity", *words, "--target", "star").exit_code == 0
    assert sightline("sanity", *words, "--target", "zebra").exit_code == 2


@pytest.mark.parametrize(("recipe", "said"), [("gae", "Methods that work: "), ("ixgg", "did you mean 'ixg'")])
def test_a_method_that_cannot_work_is_wrong_usage(recipe, said, sightline):
    result = sightline("sanity", "--model", CNN, "--method", recipe)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_method_that_breaks_is_reported_and_the_others_are_done(sightline, monkeypatch):
    check_method = checking.check_method

    def breaking(model, batch, method, *rest):
        if type(method).__name__ == "Centre":
            raise NumericalError("it broke")
        return check_method(model, batch, method, *rest)

    monkeypatch.setattr(checking, "check_method", breaking)
    words = (*methods("centre", "ixg"), "--count", 1, "--stages", 1, "--json")
    result = sightline("sanity", "--model", CNN, *words)
    assert result.exit_code == 1
    assert "it broke" in result.stderr
    assert list(verdicts(result)) == ["ixg"]


def test_help_has_an_example(sightline):
    result = sightline("sanity", "--help")
    assert result.exit_code == 0
    assert "sightline sanity --model bundled/shapes-vit" in result.stdout
