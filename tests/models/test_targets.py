"""What may be given as a target, and what it becomes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests import tiny
from tests.models.test_facts import End, mean_colour
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline import errors
from sightline.models import adapt
from sightline.models.adapter import Adapter
from sightline.models.passes import counting
from sightline.models.targets import find_class, resolve_target
from sightline.types import (
    Contrast,
    FinerContrast,
    Logit,
    LogProbability,
    PerImage,
    Probability,
    ResidualSoftmax,
    Value,
)

PETS = ("tabby, tabby cat", "Egyptian cat", "beagle", "crane, bird", "crane")


def pets() -> Adapter:
    return adapt(tiny.vit(), labels=PETS)


def pixels(count: int = 2) -> Tensor:
    return torch.randn(count, 3, 32, 32)


# ---- nothing given ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["softmax", "sigmoid"])
def test_without_a_target_the_largest_logit_is_explained(output: str) -> None:
    adapter, images = adapt(tiny.vit(), output=output), pixels(3)
    with counting() as meter:
        target = resolve_target(None, adapter, images)
    assert target == Logit(tuple(adapter.predict(images).argmax(dim=1).tolist()))
    assert meter.passes.forward == 3


@pytest.mark.parametrize("model", [tiny.vit(num_classes=0), adapt(tiny.Cnn().eval(), output="embedding")])
def test_without_a_target_an_embedding_is_refused(model: Any) -> None:
    sentence = r"returns an embedding and no classes, so it predicts none; give TextSimilarity\(text\), Similarity"
    with pytest.raises(errors.TargetError, match=sentence):
        sightline.explain(model, pixels(), "ixg")
    for target in (3, Value(3), lambda embedding: embedding.norm(dim=1)):
        assert sightline.explain(model, pixels(), "ixg", target=target).map.abs().sum() > 0


def test_without_a_target_a_regression_of_one_value_is_explained_and_of_several_refused() -> None:
    one, several = (adapt(End(nn.Identity(), count).eval(), output="value") for count in (1, 3))
    assert resolve_target(None, one, pixels()) == Value(0)
    with pytest.raises(errors.TargetError, match=r"returns 3 values; say which one is explained with Value\(index\)"):
        resolve_target(None, several, pixels())
    assert resolve_target(Value(2), several, pixels()) == Value(2)


def test_the_one_logit_of_a_model_that_says_nothing_can_be_explained() -> None:
    model = End(nn.Identity(), 1).eval()
    for target in (None, 0):
        assert sightline.explain(model, pixels(), "ixg", target=target).map.abs().sum() > 0


# ---- names -----------------------------------------------------------------------------------------------------------


def test_a_label_is_a_class() -> None:
    images = pixels()
    named = sightline.explain(pets(), images, "ixg", target="beagle").values
    assert_close(named, sightline.explain(pets(), images, "ixg", target=2).values)


@pytest.mark.parametrize(("wanted", "index"), [
    ("1", 1), ("Tabby", 0), ("tabby cat", 0), (" EGYPTIAN CAT", 1), ("tabby, tabby cat", 0), ("bird", 3), ("crane", 4),
])  # fmt: skip
def test_a_class_is_found_by_number_label_and_synonym(wanted: str, index: int) -> None:
    assert find_class(pets(), wanted) == index


@pytest.mark.parametrize(("wanted", "message"), [
    ("begle", "has no class called 'begle'; did you mean 'beagle'?"),
    ("Egypt", "did you mean 'egyptian cat'?"),
    ("aeroplane", "its 5 classes begin with 'tabby, tabby cat'"),
    ("9", "got class 9; VisionTransformer has classes 0 to 4"),
    ("-1", "got class -1"),
])  # fmt: skip
def test_a_class_that_is_not_there_is_answered_with_the_nearest(wanted: str, message: str) -> None:
    with pytest.raises(errors.TargetError, match=message.replace("?", r"\?")):
        resolve_target(wanted, pets(), pixels())


def test_a_name_without_labels_asks_for_a_number() -> None:
    with pytest.raises(errors.TargetError, match="does not name its classes; give a number"):
        resolve_target("cat", adapt(mean_colour), pixels())


def test_a_list_of_names_and_numbers_is_a_class_each() -> None:
    assert resolve_target(["beagle", 1, "tabby", "3"], pets(), pixels(4)) == Logit((2, 1, 0, 3))
    assert resolve_target(["beagle"], pets(), pixels(4)) == Logit(2)


def test_a_list_may_mix_names_numbers_targets_functions_and_predictions() -> None:
    adapter, images = pets(), pixels(6)
    logits = adapter.predict(images)
    listed: list[Any] = [None, "beagle", 1, Probability(3), lambda z: -z[:, 0], None]
    target = resolve_target(listed, adapter, images)
    best = logits.max(dim=1).values
    want = [best[0], logits[1, 2], logits[2, 1], logits[3].softmax(dim=0)[3], -logits[4, 0], best[5]]
    assert_close(target(logits), torch.stack(want))
    assert_close(target.take([5, 3])(logits[[5, 3]]), torch.stack([want[5], want[3]]))


# ---- indices and links -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "message"), [
    (Value(5), "got value 5; VisionTransformer has values 0 to 4"),
    (Value(-1), "got value -1"),
    (Logit(5), "got class 5; VisionTransformer has classes 0 to 4"),
    (Probability((1, 9)), "got class 9"),
    (PerImage((Logit(0), Contrast(1, 7))), "got class 7"),
    (FinerContrast(0, ((1, 7),)), "got class 7"),
    (ResidualSoftmax(8), "got class 8"),
    (PerImage((Logit(0),)), "got 1 targets for 2 images"),
])  # fmt: skip
def test_indices_out_of_range_are_refused(target: Any, message: str) -> None:
    with pytest.raises(errors.TargetError, match=message):
        resolve_target(target, pets(), pixels())


@pytest.mark.parametrize(("facts", "link"), [({}, "softmax"), ({"output": "sigmoid"}, "sigmoid")])
@pytest.mark.parametrize("kind", [Probability, LogProbability])
def test_probabilities_become_those_of_the_models_output(kind: Any, facts: Any, link: Any) -> None:
    adapter = adapt(tiny.vit(), **facts)
    assert resolve_target(kind(2), adapter, pixels()) == kind(2, link)
    assert resolve_target(PerImage((kind(1), Logit(0))), adapter, pixels()) == PerImage((kind(1, link), Logit(0)))
    assert resolve_target(kind(2, "identity"), adapter, pixels()) == kind(2, "identity")


def test_probabilities_of_a_model_that_ends_in_them_are_taken_as_they_are() -> None:
    images, model = pixels(), End(nn.Sigmoid()).eval()
    target = resolve_target(Probability(1), adapt(model), images)
    assert_close(target(model(images)), model(images)[:, 1])


@pytest.mark.parametrize("model", [
    adapt(tiny.vit(), output="value"), adapt(tiny.vit(num_classes=0)), adapt(End(nn.Identity(), 1).eval()),
    adapt(lambda images: images.mean(dim=(1, 2, 3))[:, None]),
], ids=["value", "embedding", "one number", "a function of one number"])  # fmt: skip
def test_probabilities_where_there_are_none_are_refused(model: Adapter) -> None:
    with pytest.raises(errors.TargetError, match=r"which has no probabilities|whose softmax is always 1"):
        resolve_target(Probability(0), model, pixels())


@pytest.mark.parametrize("target", [True, 2.5, object(), [1.5, 2]])
def test_what_is_no_target_is_refused(target: Any) -> None:
    with pytest.raises(errors.TargetError, match="as a target; a class index or name, one per image, or a Target is"):
        resolve_target(target, pets(), pixels())


@pytest.mark.parametrize("recipe", ["ixg", "grad_cam", "gae", "lrp", "ig(steps=2)"])
def test_a_target_function_without_a_gradient_is_refused_by_methods_that_take_one(recipe: str) -> None:
    model, images = tiny.vit(), torch.randn(2, 3, 32, 32)
    with pytest.raises(errors.TargetError, match="gave numbers that have no gradient by the logits; compute them from"):
        sightline.explain(model, images, recipe, target=lambda logits: logits.detach()[:, 0])


def test_a_target_function_without_a_gradient_is_explained_by_masks() -> None:
    model, images = tiny.vit(), torch.randn(2, 3, 32, 32)
    found = sightline.explain(model, images, "occlusion", target=lambda logits: logits.detach()[:, 0])
    assert_close(found.map, sightline.explain(model, images, "occlusion", target=0).map)
