from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score
from torch.testing import assert_close

from sightline import adapt
from sightline.metrics.case import Case
from sightline.metrics.judge import judge
from sightline.metrics.localisation.pointing import (
    AveragePrecision,
    EnergyPointingGame,
    PointingGame,
    average_precision,
)
from sightline.types import Logit

ALL = [AveragePrecision(), PointingGame(), EnergyPointingGame()]


def measure(metric, maps, masks):
    maps, masks = torch.as_tensor(maps), torch.as_tensor(masks)
    model = adapt(lambda images: images.mean(dim=(2, 3)))
    return metric(Case(model, torch.zeros(len(maps), 3, *maps.shape[1:]), Logit(0), maps, masks))


def draw(seed, count=3, size=(5, 6), levels=6, ignore=0.2):
    """Maps with many ties and masks with a part to ignore."""
    generator = torch.Generator().manual_seed(seed)
    maps = torch.randint(-levels, levels, (count, *size), generator=generator).float()
    masks = torch.randint(0, 2, (count, *size), generator=generator)
    masks[torch.rand(masks.shape, generator=generator) < ignore] = -1
    masks[:, 0, 0], masks[:, 0, 1] = 1, 0
    return maps, masks


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), levels=st.sampled_from([1, 2, 6, 10**6]), ignore=st.sampled_from([0.0, 0.3]))
def test_average_precision_is_that_of_scikit_learn(seed, levels, ignore):
    maps, masks = draw(seed, levels=levels, ignore=ignore)
    got = measure(AveragePrecision(), maps, masks).values
    for row, (scores, labels) in enumerate(zip(maps.flatten(1).numpy(), masks.flatten(1).numpy(), strict=True)):
        want = average_precision_score(labels[labels >= 0], scores[labels >= 0])
        assert got[row].item() == pytest.approx(want, abs=1e-9)


def test_average_precision_of_a_large_map_is_that_of_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(2, 14, 14, generator=generator).repeat_interleave(16, 1).repeat_interleave(16, 2)
    maps[1] += torch.randn(224, 224, generator=generator)
    masks = (torch.rand(2, 224, 224, generator=generator) < 0.3).long()
    got = measure(AveragePrecision(), maps, masks).values
    want = [average_precision_score(m.flatten(), a.flatten()) for a, m in zip(maps.numpy(), masks.numpy(), strict=True)]
    assert_close(got, torch.tensor(want, dtype=torch.float64), rtol=0, atol=1e-9)


def test_average_precision_counts_steps_not_trapezoids():
    # the hits stand first and third: precision 1 at recall 1/2, then 2/3 at recall 1
    assert measure(AveragePrecision(), [[[0.9, 0.5, 0.1]]], [[[1, 0, 1]]]).values.item() == pytest.approx(0.5 + 1 / 3)


def test_every_item_counts_by_default():
    scores, positive = torch.rand(2, 20), torch.rand(2, 20) < 0.5
    assert_close(average_precision(scores, positive), average_precision(scores, positive, torch.ones_like(positive)))


@pytest.mark.parametrize("value", [0.0, -2.0, 7.0])
def test_a_constant_map_scores_the_share_of_evidence(value):
    masks = torch.tensor([[[1, 0, 0, -1], [1, 1, 0, -1]]])
    found = measure(AveragePrecision(), torch.full((1, 2, 4), value), masks)
    assert found.values.item() == pytest.approx(0.5)
    assert found.flags == ("constant map",)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_perfect_map_beats_its_shuffle_beats_its_negation(seed):
    generator = torch.Generator().manual_seed(seed)
    mask = draw(seed, count=1, ignore=0.0)[1][0]
    perfect = mask + torch.rand(mask.shape, generator=generator) * 0.5
    shuffled = perfect.flatten()[torch.randperm(mask.numel(), generator=generator)].view(mask.shape)
    maps, masks = torch.stack([perfect, shuffled, -perfect]), mask.expand(3, -1, -1)
    for metric in ALL:
        best, middle, worst = measure(metric, maps, masks).values.tolist()
        assert best >= middle >= worst
        assert best > worst
    assert measure(AveragePrecision(), maps, masks).values[0].item() == pytest.approx(1)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), factor=st.sampled_from([0.5, 2.0, 64.0]), shift=st.integers(-20, 20))
def test_scale_and_shift_change_nothing_that_depends_on_the_order(seed, factor, shift):
    maps, masks = draw(seed)
    for metric in (AveragePrecision(), PointingGame()):
        found = measure(metric, maps * factor + shift, masks)
        assert_close(found.values, measure(metric, maps, masks).values)
        assert found.flags == measure(metric, maps, masks).flags
    assert_close(
        measure(EnergyPointingGame(), maps * factor, masks).values, measure(EnergyPointingGame(), maps, masks).values
    )


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), new=st.floats(-1e6, 1e6, width=32))
@pytest.mark.parametrize("metric", ALL, ids=lambda metric: type(metric).__name__)
def test_what_the_map_says_of_ignored_pixels_does_not_matter(metric, seed, new):
    maps, masks = draw(seed, ignore=0.4)
    changed = maps.masked_fill(masks < 0, new)
    assert_close(measure(metric, changed, masks).values, measure(metric, maps, masks).values)


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: type(metric).__name__)
def test_a_batch_equals_its_images_one_by_one(metric):
    maps, masks = draw(3, count=4)
    together = measure(metric, maps, masks)
    alone = [measure(metric, maps[row : row + 1], masks[row : row + 1]) for row in range(4)]
    assert_close(together.values, torch.cat([one.values for one in alone]))
    assert together.flags == tuple(one.flags[0] for one in alone)


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: type(metric).__name__)
@pytest.mark.parametrize("empty", [0, -1])
def test_without_evidence_the_score_is_nan_and_says_why(metric, empty):
    maps = torch.rand(2, 3, 3)
    masks = torch.full((2, 3, 3), empty)
    masks[1, 1, 1] = 1
    found = measure(metric, maps, masks)
    assert torch.isnan(found.values).tolist() == [True, False]
    assert found.flags[0] == "no foreground"


def test_without_background_every_map_scores_one():
    masks = torch.tensor([[[1, 1], [1, -1]]])
    found = measure(AveragePrecision(), torch.rand(1, 2, 2), masks)
    assert found.values.item() == 1
    assert found.flags == ("no background",)
    assert measure(PointingGame(), torch.rand(1, 2, 2), masks).values.item() == 1
    assert measure(EnergyPointingGame(), torch.rand(1, 2, 2), masks).values.item() == pytest.approx(1)


def test_one_pixel_of_evidence_is_enough():
    maps, masks = torch.zeros(1, 3, 3), torch.zeros(1, 3, 3, dtype=torch.int64)
    maps[0, 1, 2] = masks[0, 1, 2] = 1
    for metric in ALL:
        assert measure(metric, maps, masks).values.item() == 1
        assert measure(metric, maps.flip(1, 2), masks).values.item() < 0.5


def test_pointing_asks_where_the_highest_pixel_is():
    maps = [[[0.0, 3.0], [1.0, 2.0]], [[0.0, 3.0], [1.0, 4.0]]]
    masks = [[[0, 1], [0, 0]], [[0, 1], [0, 0]]]
    assert measure(PointingGame(), maps, masks).values.tolist() == [1, 0]


def test_among_equal_maxima_the_first_counts_and_a_disagreement_is_flagged():
    maps = [[[1.0, 5.0, 5.0, 5.0]]] * 3
    masks = [[[0, 1, 0, 0]], [[0, 0, 1, 1]], [[1, 0, 0, 0]]]
    found = measure(PointingGame(), maps, masks)
    assert found.values.tolist() == [1, 0, 0]
    assert found.flags == ("1 of 3 highest pixels inside", "2 of 3 highest pixels inside", "")


def test_nobody_points_at_an_ignored_pixel():
    assert measure(PointingGame(), [[[9.0, 2.0, 1.0]]], [[[-1, 1, 0]]]).values.item() == 1


def test_a_constant_map_points_at_the_first_pixel():
    found = measure(PointingGame(), torch.zeros(2, 1, 4), [[[1, 0, 0, 0]], [[0, 0, 0, 1]]])
    assert found.values.tolist() == [1, 0]
    assert all(flag.startswith("constant map; 1 of 4 highest") for flag in found.flags)


def test_energy_is_the_share_of_the_positive_part():
    found = measure(EnergyPointingGame(), [[[3.0, 1.0, -7.0, 100.0]]], [[[1, 0, 1, -1]]])
    assert found.values.item() == pytest.approx(0.75)


def test_a_uniform_positive_map_has_the_share_of_evidence_as_energy():
    found = measure(EnergyPointingGame(), torch.full((1, 2, 4), 0.3), [[[1, 0, 0, -1], [1, 1, 0, -1]]])
    assert found.values.item() == pytest.approx(0.5)


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_map_without_a_positive_value_has_no_energy(value):
    maps = torch.full((1, 2, 2), value)
    maps[0, 0, 0] = -3.0
    found = measure(EnergyPointingGame(), maps, [[[1, 0], [0, 1]]])
    assert found.values.item() == 0
    assert found.flags == ("no positive value",)


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: type(metric).__name__)
def test_huge_and_tiny_maps_do_not_overflow(metric):
    maps, masks = draw(0)
    maps = maps.double()
    want = measure(metric, maps, masks).values
    assert_close(measure(metric, maps * 1e307, masks).values, want)
    assert_close(measure(metric, maps * 1e-300, masks).values, want)


def test_a_chance_map_scores_about_the_share_of_evidence():
    generator = torch.Generator().manual_seed(0)
    masks = (torch.rand(8, 100, 100, generator=generator) < 0.2).long()
    scores = judge_all(torch.rand(8, 100, 100, generator=generator), masks)
    for name in ("average_precision", "energy_pointing_game"):
        assert np.isclose(scores[name].mean().item(), 0.2, atol=0.01)


def judge_all(maps, masks):
    model = adapt(lambda images: images.mean(dim=(2, 3)))
    case = Case(model, torch.zeros(len(maps), 3, *maps.shape[1:]), Logit(0), maps, masks)
    scores = judge(case, ["average_precision", "pointing_game", "energy_pointing_game"])
    assert scores.passes.forward == 0
    return scores
