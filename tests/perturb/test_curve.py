from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from sightline import adapt
from sightline.errors import NumericalError, RecipeError, ShapeError, TargetError
from sightline.models.passes import counting
from sightline.perturb.curve import (
    Accuracy,
    Curve,
    LabelAccuracy,
    importance_order,
    ranks,
    response_curve,
    responses,
    scored,
)
from sightline.perturb.fill import Black, Blur, Mean, Zero
from sightline.types import Contrast, Custom, Logit, LogProbability, PerImage, Probability, Value

SIZE = (5, 6)
PIXELS = 30


def linear(images):
    """Two classes; the probability of class 0 is a tenth plus eight tenths of the mean of the pixels in 0..1."""
    p = 0.1 + 0.8 * images.mean(dim=(1, 2, 3))
    return torch.stack([p.log(), (1 - p).log()], dim=1)


@pytest.fixture
def model():
    return adapt(linear, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), batch=7)


@pytest.fixture
def images():
    return torch.rand(3, 3, *SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def order():
    return importance_order(torch.rand(3, *SIZE, generator=torch.Generator().manual_seed(1)))


def one_by_one(model, images, target, order, curve):
    """The definition, a pixel and an image at a time."""
    rows = []
    for image, pixels, row in zip(images, order, range(len(images)), strict=True):
        filled = curve.fill(model, image[None])[0]
        before, after = (image, filled) if curve.direction == "delete" else (filled, image)
        scores = []
        for count in curve.counts(PIXELS):
            mixed = before.clone()
            for pixel in pixels[:count].tolist():
                mixed[:, pixel // SIZE[1], pixel % SIZE[1]] = after[:, pixel // SIZE[1], pixel % SIZE[1]]
            scores.append(scored(target, curve.score, model).take([row])(model(mixed[None])))
        rows.append(torch.cat(scores))
    return torch.stack(rows)


@pytest.mark.parametrize("step", [1, 4, 30])
@pytest.mark.parametrize("direction", ["insert", "delete"])
@pytest.mark.parametrize("fill", [Zero(), Mean(), Black(), Blur(1, 2.0)], ids=repr)
def test_the_curve_follows_its_definition(model, images, order, direction, fill, step):
    curve = Curve(direction, fill, step)
    target = Logit((0, 1, 0))
    assert_close(response_curve(model, images, target, order, curve), one_by_one(model, images, target, order, curve))


def test_deleting_from_a_linear_model_gives_the_line_that_can_be_written_down(model):
    white = torch.ones(1, 3, *SIZE, dtype=torch.float64)
    order = torch.randperm(PIXELS, generator=torch.Generator().manual_seed(0))[None]
    deleted = response_curve(model, white, Logit(0), order, Curve("delete", Zero(), step=3))
    want = 0.1 + 0.8 * (1 - torch.arange(11, dtype=torch.float64) / 10)
    assert_close(deleted[0], want)
    assert_close(response_curve(model, white, Logit(0), order, Curve("insert", Zero(), step=3))[0], want.flip(0))


@pytest.mark.parametrize(
    ("step", "counts"),
    [
        (10, [0, 10, 20, 30]),
        (7, [0, 7, 14, 21, 28, 30]),
        (29, [0, 29, 30]),
        (30, [0, 30]),
        (31, [0, 30]),
        (999, [0, 30]),
    ],
)
def test_the_last_step_reaches_the_end_exactly(step, counts):
    assert Curve("delete", Zero(), step).counts(PIXELS) == counts


@settings(max_examples=30, deadline=None)
@given(step=st.integers(1, 40), batch=st.integers(1, 40), direction=st.sampled_from(["insert", "delete"]))
def test_the_batch_size_changes_nothing(step, batch, direction):
    images = torch.rand(3, 3, *SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    order = importance_order(torch.rand(3, *SIZE, generator=torch.Generator().manual_seed(1)))
    curve = Curve(direction, Zero(), step)
    want = response_curve(adapt(linear, batch=1), images, Logit((0, 1, 0)), order, curve)
    assert want.shape == (3, -(-PIXELS // step) + 1)
    assert_close(response_curve(adapt(linear, batch=batch), images, Logit((0, 1, 0)), order, curve), want)


def test_a_batch_equals_its_images_one_by_one(model, images, order):
    curve = Curve("insert", Blur(1, 2.0), 4)
    alone = [
        response_curve(model, images[row : row + 1], Logit(label), order[row : row + 1], curve)
        for row, label in enumerate((0, 1, 0))
    ]
    assert_close(response_curve(model, images, Logit((0, 1, 0)), order, curve), torch.cat(alone))


def test_the_ends_are_the_image_and_the_filled_image(model, images, order):
    curve = response_curve(model, images, Logit(0), order, Curve("insert", Mean(), 4))
    assert_close(curve[:, 0], Probability(0)(linear(Mean()(model, images))))
    assert_close(curve[:, -1], Probability(0)(linear(images)))


def test_known_ends_are_not_computed_again(model, images, order):
    curve = Curve("delete", Zero(), 10)
    with counting() as all_of_it:
        want = response_curve(model, images, Logit(0), order, curve)
    clean, filled = linear(images), linear(torch.zeros_like(images))
    with counting() as rest:
        assert_close(response_curve(model, images, Logit(0), order, curve, clean=clean, filled=filled), want)
    assert all_of_it.passes.forward == 3 * 4
    assert rest.passes.forward == 3 * 2


def test_running_out_of_memory_halves_the_batch_and_gives_the_same_curve(images, order):
    sizes = []

    def short_of_memory(batch):
        sizes.append(len(batch))
        if len(batch) > 3:
            raise torch.OutOfMemoryError("no")
        return linear(batch)

    curve = Curve("delete", Zero(), 4)
    got = response_curve(adapt(short_of_memory, batch=16), images, Logit((0, 1, 0)), order, curve)
    assert_close(got, response_curve(adapt(linear), images, Logit((0, 1, 0)), order, curve))
    assert max(sizes) > 3


def test_a_model_that_writes_on_its_input_does_not_spoil_the_next_batch(images, order):
    def scribbling(batch):
        logits = linear(batch)
        batch.fill_(0.5)
        return logits

    curve = Curve("delete", Zero(), 4)
    known = {"clean": linear(images), "filled": linear(torch.zeros_like(images))}
    got = response_curve(adapt(scribbling, batch=4), images, Logit(0), order, curve, **known)
    assert_close(got, response_curve(adapt(linear), images, Logit(0), order, curve))


def test_no_graph_is_kept_and_the_images_stay_as_they_were(model, images, order):
    images.requires_grad_()
    before = images.detach().clone()
    curve = response_curve(model, images, Logit(0), order, Curve("delete", Zero(), 4))
    assert not curve.requires_grad
    assert not curve.is_inference()
    assert_close(images.detach(), before, rtol=0, atol=0)


def test_a_half_precision_model_gives_a_single_precision_curve(order):
    def half(batch):
        return linear(batch.float()).half()

    images = torch.rand(3, 3, *SIZE, generator=torch.Generator().manual_seed(0))
    curve = Curve("delete", Zero(), 4)
    got = response_curve(adapt(half), images.half(), Logit(0), order, curve)
    assert got.dtype == torch.float32
    assert_close(got, response_curve(adapt(linear), images, Logit(0), order, curve), rtol=0, atol=2e-3)


@pytest.mark.parametrize("target", [Logit(1), Probability(1), LogProbability(1)], ids=repr)
@pytest.mark.parametrize(
    ("score", "read"),
    [
        ("probability", Probability(1, "softmax")),
        ("log_probability", LogProbability(1, "softmax")),
        ("logit", Logit(1)),
        ("accuracy", Accuracy(1)),
    ],
)
def test_whatever_was_explained_of_a_class_the_score_says_what_is_read(target, score, read, model):
    assert scored(target, score, model) == read


@pytest.mark.parametrize("target", [Logit(1), Probability(1), LogProbability(1)], ids=repr)
@pytest.mark.parametrize("link", ["sigmoid", "identity"])
@pytest.mark.parametrize(
    ("score", "read"),
    [
        ("probability", lambda link: Probability(1, link)),
        ("log_probability", lambda link: LogProbability(1, link)),
        ("logit", lambda link: Logit(1)),
        ("accuracy", lambda link: LabelAccuracy(Probability(1, link))),
    ],
)
def test_of_several_labels_each_has_a_probability_of_its_own(target, link, score, read):
    assert scored(target, score, adapt(linear, output="sigmoid", link=link)) == read(link)


def test_a_link_that_the_target_names_is_kept(model):
    assert scored(Probability(1, "identity"), "log_probability", model) == LogProbability(1, "identity")
    assert scored(Probability(1, "sigmoid"), "accuracy", model) == LabelAccuracy(Probability(1, "sigmoid"))


@pytest.mark.parametrize("output", ["value", "embedding"])
@pytest.mark.parametrize(("score", "word"), [("probability", "probability"), ("log_probability", "log probability")])
def test_a_number_that_is_no_probability_is_refused_as_one_and_followed_as_a_logit(output, score, word):
    model = adapt(linear, output=output, name="net")
    with pytest.raises(TargetError, match=rf"net returns an? {output} .* no {word}; .* insertion\(score='logit'\)"):
        scored(Logit(1), score, model)
    with pytest.raises(TargetError, match="no accuracy"):
        scored(PerImage((Logit(1),)), "accuracy", model)
    assert scored(Logit(1), "logit", model) == Logit(1)


@pytest.mark.parametrize("score", ["probability", "log_probability", "accuracy"])
def test_a_value_is_followed_as_a_logit_alone(score, model):
    assert scored(Value(1), "logit", model) == Value(1)
    with pytest.raises(TargetError, match="got Value as a target, which has no "):
        scored(Value(1), score, model)


@pytest.mark.parametrize("score", ["probability", "log_probability", "accuracy"])
@pytest.mark.parametrize("target", [Logit(0), PerImage((Logit(0),) * 3)], ids=["logit", "one each"])
def test_the_softmax_of_a_single_number_is_refused(score, target, images, order):
    single = adapt(lambda batch: linear(batch)[:, :1], name="single")  # a function: how many numbers, only a pass tells
    with pytest.raises(TargetError, match="single returns one number per image, whose softmax is always 1"):
        response_curve(single, images, target, order, Curve("delete", Zero(), 10, score))
    followed = response_curve(single, images, target, order, Curve("delete", Zero(), 10, "logit"))
    assert_close(followed[:, 0], linear(images)[:, 0])


def test_the_accuracy_of_a_label_asks_for_half_its_probability():
    logits = torch.tensor([[0.1, 2.0, 0.0], [3.0, -0.1, 0.0]])
    assert LabelAccuracy(Probability(0, "sigmoid"))(logits).tolist() == [1, 1]
    assert LabelAccuracy(Probability((1, 1), "sigmoid"))(logits).tolist() == [1, 0]
    assert LabelAccuracy(Probability(2, "sigmoid"))(logits).tolist() == [1, 1]
    assert LabelAccuracy(Probability((1, 0), "identity")).take([1, 1]) == LabelAccuracy(Probability((0, 0), "identity"))


@pytest.mark.parametrize("score", ["probability", "logit"])
@pytest.mark.parametrize("target", [Contrast(0, 1), Custom(lambda logits: logits[:, 0])], ids=["contrast", "function"])
def test_a_target_without_a_class_is_followed_itself(target, score, model, images, order):
    assert scored(target, score, model) is target
    curve = response_curve(model, images, target, order, Curve("delete", Zero(), 10, score))
    assert_close(curve[:, 0], target(linear(images)))


def test_targets_of_several_kinds_are_read_each_in_its_own_way(model, images, order):
    target = PerImage((Logit(1), Contrast(0, 1), Probability(0)))
    read = PerImage((Probability(1, "softmax"), Contrast(0, 1), Probability(0, "softmax")))
    assert scored(target, "probability", model) == read
    curve = Curve("delete", Zero(), 10)
    assert_close(response_curve(model, images, target, order, curve), one_by_one(model, images, target, order, curve))


def test_accuracy_is_one_where_the_class_is_the_first_choice():
    logits = torch.tensor([[1.0, 2.0, 0.0], [3.0, 2.0, 0.0]])
    assert Accuracy(1)(logits).tolist() == [1, 0]
    assert Accuracy((1, 0))(logits).tolist() == [1, 1]
    assert Accuracy((1, 0)).take([1, 1, 0]) == Accuracy((0, 0, 1))
    assert Accuracy(1).take([1, 1, 0]) == Accuracy(1)


def test_accuracy_of_a_target_without_a_class_is_refused(model):
    with pytest.raises(TargetError, match="got Contrast as a target; score='accuracy' needs a class"):
        scored(Contrast(0, 1), "accuracy", model)


def test_any_counts_of_pixels_can_be_asked_for(model, images, order):
    counts = [0, 3, 3, 30, 12]
    got = responses(model, images, torch.zeros_like(images), Probability(0), ranks(order), counts)
    every = response_curve(model, images, Logit(0), order, Curve("delete", Zero(), 1))
    assert_close(got, every[:, counts])


def test_two_curves_with_the_same_settings_are_one():
    assert Curve("insert", Blur(5, 5.0)) == Curve("insert", Blur())
    assert len({Curve("insert", Blur()), Curve("insert", Blur()), Curve("insert", Zero())}) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step": 0}, "got step=0"),
        ({"step": -5}, "got step=-5"),
        ({"score": "loss"}, "got score='loss'; choose from probability"),
        ({"tie": "first"}, "got tie='first'"),
        ({"direction": "add"}, "got direction='add'; choose from insert, delete"),
    ],
)
def test_a_wrong_setting_is_refused(options, message):
    with pytest.raises(RecipeError, match=message):
        Curve(**{"direction": "insert", "fill": Zero()} | options)


def test_an_order_of_another_size_is_refused(model, images, order):
    with pytest.raises(ShapeError, match=r"order of shape \(3, 29\) for 3 images of 30 pixels"):
        response_curve(model, images, Logit(0), order[:, 1:], Curve("delete", Zero()))


def test_logits_that_are_no_numbers_are_refused(images, order):
    broken = adapt(lambda batch: linear(batch) * float("nan"), name="broken")
    with pytest.raises(NumericalError, match="broken returned NaN"):
        response_curve(broken, images, Logit(0), order, Curve("delete", Zero(), 10))
