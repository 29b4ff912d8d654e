"""Judging under several fills: each score is the metric's own, passes are shared, and fills without room are told."""

from dataclasses import replace

import pytest
import torch

import sightline
from sightline.audit.fills import FILLS, FillScores, Judge, fill_cost
from sightline.audit.panel import explain_image, judge_map, metric_step, metrics_of, panel_of, score_map
from sightline.data.shapes import Shapes
from sightline.metrics.case import Case, area
from sightline.models.passes import counting, ready
from sightline.perturb.curve import Curve
from sightline.recipe import parse, parse_metric
from sightline.types import Logit

BEFORE = 57  # forward passes of the two main curves
ONCE = 3  # of them for the image and the two filled images, which all maps share


@pytest.fixture(scope="module", params=["bundled/shapes-vit", "bundled/shapes-cnn"])
def model(request):
    return sightline.load(request.param)


@pytest.fixture(scope="module")
def image(model):
    return model.normalise(Shapes(seed=3).draw(1).images)


def judged(model, image, target, recipe="ixg"):
    step = metric_step(image)
    metrics = metrics_of(model, target, step)
    with ready(model):
        judge = Judge(model, image, target, model.predict(image), metrics)
        scored = score_map(model, image, parse(recipe), target, metrics, judge)
    return judge, scored, Case(model, image, target, torch.from_numpy(scored.map)[None]), 4 * step


def test_every_score_is_that_of_the_metric_at_coarser_steps(model, image):
    _, scored, case, step = judged(model, image, Logit(1))
    expected = {
        "blur": f"ins_del(step={step}, fill=('blur', 'blur'))",
        "strong_blur": f"ins_del(step={step}, fill=('blur', 'blur'), radius=15, sigma=31.0)",
        "zero": f"ins_del(step={step}, fill=('zero', 'zero'))",
    }
    for fill, metric in expected.items():
        assert scored.fills.draws[fill] == pytest.approx(parse_metric(metric)(case).values.tolist(), abs=1e-6)
    for fill, value in zip(FILLS["noise"], scored.fills.draws["noise"], strict=True):
        inserted, deleted = (case.curve(Curve(direction, fill, step)) for direction in ("insert", "delete"))
        assert value == pytest.approx(float(area(inserted - deleted)[0]), abs=1e-6)
    assert ("tokens" in scored.fills.draws) == ("tokens" in model.offers)
    if "tokens" in scored.fills.draws:
        over = [parse_metric(f"{name}_aopc(steps=7)")(case).values for name in ("deletion", "insertion")]
        assert scored.fills.draws["tokens"] == pytest.approx((over[0] - over[1]).tolist(), abs=1e-6)


def test_the_main_scores_are_those_of_the_main_fills(model, image):
    _, scored, case, step = judged(model, image, Logit(1))
    assert scored.insertion == pytest.approx(float(parse_metric(f"insertion(step={step // 4})")(case).values), abs=1e-6)
    assert scored.deletion == pytest.approx(float(parse_metric(f"deletion(step={step // 4})")(case).values), abs=1e-6)


def test_a_map_costs_at_most_twice_the_passes_of_the_main_curves(model, image):
    methods = panel_of(model, ["ixg", "random", "centre", "sobel"])
    with counting() as meter:
        explained = explain_image(model, image, methods)
    own = sum(scored.passes.forward for scored in explained.maps)
    with counting() as plain:
        explain_image(model, image, methods, fills=False)
    assert (plain.passes.forward - own - ONCE) / len(methods) == BEFORE - ONCE
    assert BEFORE < (meter.passes.forward - own) / len(methods) <= 2 * BEFORE


def test_a_map_that_is_scored_already_is_judged_at_the_cost_of_the_fills_alone(model, image):
    judge, whole, _, _ = judged(model, image, Logit(1))
    with counting() as meter:
        later = judge_map(model, image, replace(whole, fills=None), Logit(1), judge)
    assert later.fills.means == pytest.approx(whole.fills.means, abs=1e-6)
    assert meter.passes.forward <= fill_cost(28, model) + 0.5  # dropped tokens are counted by their share


def test_a_map_tells_that_insertion_has_no_room():
    model = sightline.adapt(lambda images: images.new_tensor([[4.0, 0.0]]).expand(len(images), -1))
    image = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    (explained,) = sightline.rank(model, image, ["random"], step=16)
    assert "insertion has no room" in explained.maps[0].note


def test_one_map_alone_is_judged_by_the_main_fills_unless_more_are_asked_for(model, image):
    (single,) = sightline.rank(model, image, ["ixg"])
    assert single.maps[0].fills is None
    assert single.maps[0].score == single.maps[0].ins_del
    assert single.json()["maps"][0]["fills"] == {}
    (asked,) = sightline.rank(model, image, ["ixg"], fills=True, step=1024)
    assert {"blur", "noise"} <= set(asked.json()["maps"][0]["fills"])


def test_a_fill_that_leaves_the_class_has_no_room_and_does_not_count():
    """The class is how bright the image is on the average: a blur keeps it, zero does not."""

    def bright(images):
        mean = images.mean(dim=(1, 2, 3))
        return torch.stack([20 * mean - 4, torch.zeros_like(mean)], dim=1)

    model = sightline.adapt(bright, output="softmax")
    image = torch.full((1, 3, 64, 64), 0.6)
    judge, scored, *_ = judged(model, image, Logit(0), "sobel")
    rooms = {room.fill: room.room for room in judge.rooms}
    assert (rooms["blur"], rooms["strong_blur"], rooms["zero"]) == (False, False, True)
    assert scored.fills.counted == tuple(fill for fill, room in rooms.items() if room)
    zero = next(room for room in judge.rooms if room.fill == "zero")
    assert zero.filled == pytest.approx(torch.tensor(-4.0).sigmoid().item(), abs=1e-6)


def test_a_number_without_probability_always_has_room(image):
    model = sightline.adapt(lambda images: images.mean(dim=(1, 2, 3))[:, None] + 9, output="value")
    (explained,) = sightline.rank(model, image, ["sobel", "random"], step=1024)
    assert [room.fill for room in explained.rooms] == list(FILLS)
    assert all(room.room for room in explained.rooms)


def test_the_score_is_the_mean_over_fills_and_the_share_counts_strict_wins():
    scores = FillScores({"blur": (0.5,), "zero": (0.2,), "noise": (0.1, 0.5)}, ("blur", "noise"))
    assert scores.means == {"blur": 0.5, "zero": 0.2, "noise": pytest.approx(0.3)}
    assert scores.score == pytest.approx(0.4)
    assert scores.share({"blur": 0.5, "zero": 0.0, "noise": 0.2}) == 0.5


def test_the_interval_spans_fills_and_draws():
    two = FillScores({"blur": (0.0,), "zero": (1.0,)}, ("blur", "zero"))
    assert two.interval == (0.0, 1.0)  # both the lowest and the highest resample have a chance of a quarter
    draws = FillScores({"noise": (0.0, 1.0)}, ("noise",))
    assert draws.interval == (0.0, 1.0)
    assert FillScores({"noise": (0.5, 0.5)}, ("noise",)).interval == (0.5, 0.5)
