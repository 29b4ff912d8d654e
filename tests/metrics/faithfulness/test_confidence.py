from __future__ import annotations

import pytest
import torch
from tests.methods import reference_cnn
from torch.testing import assert_close

from sightline import adapt
from sightline.errors import RecipeError
from sightline.metrics.case import Case
from sightline.metrics.faithfulness.confidence import AverageDrop, AverageGain, IncreaseInConfidence
from sightline.metrics.judge import judge
from sightline.metrics.scaling import min_max
from sightline.types import Logit

from .test_positive_negative import MEAN, SIZE, STD, counting_white, white


def case_of(maps, images=None, target=None, **more):
    images = white(len(maps)) if images is None else images
    return Case(counting_white(), images, target or Logit(0), maps, **more)


def full_range():
    maps = torch.rand(1, *SIZE, dtype=torch.float64)
    maps[0, 0, 0], maps[0, 0, 1] = 0, 1
    return maps


def test_the_drop_is_the_share_of_what_the_map_darkens():
    maps = full_range()
    before, after = 0.98, 0.02 + 0.96 * maps.mean().item()
    assert AverageDrop()(case_of(maps)).values.item() == pytest.approx((before - after) / before)
    assert AverageDrop(relative=False)(case_of(maps)).values.item() == pytest.approx(before - after)
    assert IncreaseInConfidence()(case_of(maps)).values.item() == 0


def test_darkening_what_speaks_for_another_class_raises_the_confidence():
    maps = full_range()
    case = case_of(maps, target=Logit(1))
    assert AverageDrop()(case).values.item() == 0
    assert IncreaseInConfidence()(case).values.item() == 1


def test_a_map_without_shades_leaves_the_picture_as_it_is_where_it_is_one():
    images = torch.randn(1, 3, *SIZE, dtype=torch.float64)
    maps = torch.ones(1, *SIZE)
    maps[0, 2, 2] = 0
    seen = AverageDrop().masked(case_of(maps, images))
    black = -torch.tensor(MEAN).double() / torch.tensor(STD).double()
    assert_close(seen[0, :, 2, 2], black)
    different = (seen != images).any(dim=1)
    assert different.sum() == 1


def test_seeing_through_a_map_is_multiplying_the_raw_picture():
    images, maps = torch.randn(2, 3, *SIZE, dtype=torch.float64), torch.rand(2, *SIZE, dtype=torch.float64)
    model = counting_white()
    case = case_of(maps, images)
    want = model.normalise(model.denormalise(images) * min_max(maps)[:, None])
    assert_close(AverageDrop().masked(case), want)
    assert_close(AverageDrop(fill="zero", scale="none").masked(case), images * maps[:, None])


@pytest.mark.parametrize(("factor", "shift"), [(3.0, 0.0), (0.5, 7.0), (1e6, -3.0)])
def test_scale_and_shift_of_a_map_do_not_matter(factor, shift):
    maps = torch.rand(2, *SIZE, dtype=torch.float64)
    assert_close(AverageDrop()(case_of(maps * factor + shift)).values, AverageDrop()(case_of(maps)).values)


def test_equal_scores_are_neither_drop_nor_increase():
    case = case_of(torch.ones(1, *SIZE))
    assert AverageDrop(scale="none")(case).values.item() == 0
    assert IncreaseInConfidence(scale="none")(case).values.item() == 0


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 3e38])
def test_a_constant_map_shows_nothing(value):
    case = case_of(torch.full((1, *SIZE), value))
    found = AverageDrop()(case)
    assert found.values.item() == pytest.approx(0.96 / 0.98)
    assert found.flags == ("constant map",)
    assert IncreaseInConfidence()(case).flags == ("constant map",)


def test_huge_maps_are_scaled_without_overflow():
    maps = torch.rand(1, *SIZE) * 3e38
    maps[0, 0, 0] = -3e38
    assert min_max(maps).isfinite().all()
    assert AverageDrop()(case_of(maps)).values.isfinite().all()


def test_no_share_can_be_taken_of_a_negative_score_and_zero_loses_nothing():
    values = torch.tensor([-1.0, 0.0])
    model = adapt(lambda images: images.mean(dim=(2, 3)))
    images = values[:, None, None, None].expand(2, 3, *SIZE).clone()
    case = Case(model, images, Logit(0), torch.rand(2, *SIZE))
    found = AverageDrop(score="logit", fill="zero")(case)
    assert found.values.isnan().tolist() == [True, False]
    assert found.flags == ("negative score", "")
    assert found.values[1] == 0


def test_the_label_can_be_asked_for():
    maps = full_range()
    case = case_of(maps, target=Logit(1), labels=(0,))
    assert_close(AverageDrop(label=True)(case).values, AverageDrop()(case_of(maps)).values)
    assert AverageDrop()(case).values.item() == 0


def test_both_share_two_passes():
    case = case_of(torch.rand(2, *SIZE))
    names = ["average_drop", "increase_in_confidence", "average_gain", "average_drop(relative=False)"]
    assert judge(case, names).passes.forward == 4
    assert AverageDrop().cost(case.model).forward == 2


@pytest.mark.parametrize("options", [{"fill": "red"}, {"scale": "max"}, {"score": "sum"}])
def test_wrong_options_are_refused(options):
    with pytest.raises(RecipeError, match="got"):
        AverageDrop(**options)


@pytest.mark.parametrize(("score", "key"), [("probability", "softmax"), ("logit", "logit")])
def test_drop_and_increase_are_those_of_pytorch_grad_cam(score, key):
    model, images = reference_cnn.network("tiny_cnn")
    numbers = reference_cnn.numbers("metric_road_adp_tiny_cnn")
    maps = torch.from_numpy(numbers["cam"])[None].double()
    case = Case(adapt(model), images, Logit(reference_cnn.TARGET), maps)
    options = {"fill": "zero", "scale": "none", "score": score}
    drop = AverageDrop(**options, relative=False)(case).values.item()
    assert drop == pytest.approx(float(numbers[f"drop_{key}"][0]), abs=1e-5)
    assert IncreaseInConfidence(**options)(case).values.item() == float(numbers[f"increase_{key}"][0])
    if key == "softmax":
        share = AverageDrop(**options)(case).values.item()
        assert share == pytest.approx(1 - float(numbers["p_masked"]) / float(numbers["p_original"]), abs=1e-5)


def test_the_gain_is_the_share_of_what_the_probability_lacks():
    maps = full_range()
    case = case_of(maps, target=Logit(1))
    before, after = 0.02, 0.98 - 0.96 * maps.mean().item()
    assert AverageGain()(case).values.item() == pytest.approx((after - before) / (1 - before))
    assert AverageGain()(case_of(maps)).values.item() == 0  # what drops gains nothing
    assert AverageDrop()(case).values.item() == 0


def test_nothing_is_gained_on_what_is_sure_or_no_probability():
    sure = Case(adapt(lambda x: 1e4 * x.mean(dim=(2, 3))), torch.ones(1, 3, 8, 8), Logit(0), torch.rand(1, 8, 8))
    sure.images[:, 1:] = -1
    found = AverageGain()(sure)
    assert found.values.isnan().all()
    assert found.flags == ("no room to gain",)
    with pytest.raises(RecipeError, match="score='logit'"):
        AverageGain(score="logit")
