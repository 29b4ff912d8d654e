from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score
from torch.testing import assert_close

from sightline import adapt
from sightline.metrics.case import Case
from sightline.metrics.judge import judge
from sightline.metrics.localisation.pointing import AveragePrecision
from sightline.metrics.localisation.precision_recall import Aupr0, Aupr1
from sightline.types import Logit


def case(maps, masks):
    maps, masks = torch.as_tensor(maps), torch.as_tensor(masks)
    model = adapt(lambda images: images.mean(dim=(2, 3)))
    return Case(model, torch.zeros(len(maps), 3, *maps.shape[1:]), Logit(0), maps, masks)


def draw(seed, ignore=0.2, levels=6):
    generator = torch.Generator().manual_seed(seed)
    maps = torch.randint(-levels, levels, (3, 5, 6), generator=generator).float()
    masks = torch.randint(0, 2, (3, 5, 6), generator=generator)
    masks[torch.rand(masks.shape, generator=generator) < ignore] = -1
    masks[:, 0, 0], masks[:, 0, 1] = 1, 0
    return maps, masks


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), levels=st.sampled_from([1, 2, 6, 10**6]), ignore=st.sampled_from([0.0, 0.3]))
def test_both_are_the_areas_of_scikit_learn_for_the_scaled_map_and_its_complement(seed, levels, ignore):
    maps, masks = draw(seed, ignore, levels)
    one, zero = Aupr1()(case(maps, masks)).values, Aupr0()(case(maps, masks)).values
    for row, (scores, labels) in enumerate(zip(maps.double().flatten(1), masks.flatten(1), strict=True)):
        scaled = (scores - scores.min()) / (scores.max() - scores.min()).clamp(min=1)
        keep = labels >= 0
        scaled, truth = scaled[keep].numpy(), labels[keep].numpy()
        assert one[row].item() == pytest.approx(average_precision_score(truth, scaled), abs=1e-9)
        assert zero[row].item() == pytest.approx(average_precision_score(1 - truth, -scaled), abs=1e-9)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_second_is_the_first_with_map_and_mask_turned(seed):
    maps, masks = draw(seed)
    turned = torch.where(masks < 0, masks, 1 - masks)
    assert_close(Aupr0()(case(maps, masks)).values, Aupr1()(case(-maps, turned)).values)


def test_the_first_is_average_precision_under_another_name():
    maps, masks = draw(5)
    assert torch.equal(Aupr1()(case(maps, masks)).values, AveragePrecision()(case(maps, masks)).values)


def test_a_perfect_map_scores_one_twice_and_its_negation_little():
    mask = torch.tensor([[[1, 1, 0, 0, 0, 0, 0, 0]]])
    for metric in (Aupr1(), Aupr0()):
        assert metric(case(mask.float(), mask)).values.item() == pytest.approx(1)
        assert metric(case(-mask.float(), mask)).values.item() < 0.8


def test_a_peak_on_the_object_amid_noise_has_the_fair_first_and_the_poor_second():
    masks = torch.tensor([[[1, 1, 1, 0, 0, 0]]])
    maps = torch.tensor([[[9.0, 8.0, -1.0, 0.0, 0.0, 0.0]]])
    one, zero = (metric(case(maps, masks)).values.item() for metric in (Aupr1(), Aupr0()))
    assert one == pytest.approx((1 + 1 + 3 / 6) / 3)
    assert zero == pytest.approx(3 / 4)


def test_a_constant_map_scores_the_shares_of_evidence_and_background():
    masks = torch.tensor([[[1, 0, 0, 0, -1]]])
    found = {metric: metric(case(torch.zeros(1, 1, 5), masks)) for metric in (Aupr1(), Aupr0())}
    assert [one.values.item() for one in found.values()] == [pytest.approx(0.25), pytest.approx(0.75)]
    assert all(one.flags == ("constant map",) for one in found.values())


@pytest.mark.parametrize(("fill", "flag"), [(0, "no foreground"), (1, "no background")])
def test_without_one_of_the_two_there_is_no_second_score(fill, flag):
    found = Aupr0()(case(torch.rand(1, 3, 3), torch.full((1, 3, 3), fill)))
    assert torch.isnan(found.values).all()
    assert found.flags == (flag,)


def test_they_are_found_by_name_and_run_no_model():
    maps, masks = draw(1)
    scores = judge(case(maps, masks), ["aupr1", "aupr0"])
    assert scores.passes.forward == 0
    assert set(scores) == {"aupr1", "aupr0"}
