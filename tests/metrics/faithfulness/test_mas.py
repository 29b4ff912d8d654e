from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from sightline import adapt
from sightline.errors import RecipeError
from sightline.metrics.case import Case
from sightline.metrics.faithfulness.insertion_deletion_mda import monotone
from sightline.metrics.faithfulness.mas import MasDeletion, MasInsDel, MasInsertion, align
from sightline.metrics.judge import judge
from sightline.models.passes import counting
from sightline.types import Logit

from .test_insertion_deletion_mda import PIXELS, SIZE, chequered, contrasted, shares, weighing, white


def case_of(maps, weights=None):
    return Case(weighing(shares() if weights is None else weights), white(len(maps)), Logit(0), maps)


def by_hand(response, density, direction):
    """The score, point by point."""
    score = []
    for m, d in zip(response, density, strict=True):
        s = m - abs(m - d) if direction == "insert" else m + abs(m - d)
        score.append(min(1.0, max(0.0, s)))
    low, high = min(score), max(score)
    return [(s - low) / (high - low) for s in score]


def test_a_map_whose_magnitudes_are_the_response_has_no_penalty():
    weights = shares()
    case = case_of(weights[None], weights)
    for metric in (MasInsertion(1, "zero"), MasDeletion(1, visible="keep")):
        found = metric.aligned(case)
        assert_close(found.penalty, torch.zeros_like(found.penalty), rtol=0, atol=1e-12)
        assert_close(found.score, found.response, rtol=0, atol=1e-12)


def test_the_right_magnitudes_beat_others_in_the_same_order():
    weights = shares()
    maps = torch.stack([weights, weights**4, weights.flatten().argsort().argsort().view(SIZE) + 50.0])
    case = case_of(maps, weights)
    best, *others = MasInsertion(1, "zero")(case).values.tolist()
    assert best > max(others)
    best, *others = MasDeletion(1, visible="keep")(case).values.tolist()
    assert best < min(others)


@pytest.mark.parametrize("step", [1, 5, 10, 42, 100])
def test_every_curve_can_be_written_down(step):
    maps = torch.randn(1, *SIZE, dtype=torch.float64)
    case = case_of(maps)
    order = np.argsort(-maps.abs().flatten().numpy(), kind="stable")
    counts = [*range(0, PIXELS, step), PIXELS]
    entered = np.concatenate([[0], np.cumsum(maps.abs().flatten().numpy()[order])])[counts]
    for metric, direction in ((MasInsertion(step, "zero"), "insert"), (MasDeletion(step, visible="keep"), "delete")):
        density = entered / entered[-1] if direction == "insert" else 1 - entered / entered[-1]
        found = metric.aligned(case)
        assert_close(found.density[0].numpy(), density)
        assert_close(found.response, monotone(metric.curve(case, direction), direction))
        want = by_hand(found.response[0].tolist(), density.tolist(), direction)
        assert_close(found.score[0], torch.tensor(want, dtype=torch.float64))
        want = sum((a + b) / 2 for a, b in pairwise(want)) / (len(want) - 1)
        assert metric(case).values.item() == pytest.approx(want, abs=1e-12)


def test_scaling_a_map_changes_nothing_and_shifting_it_does():
    maps = torch.rand(1, *SIZE, dtype=torch.float64)
    one, twice, shifted = (MasDeletion(5, visible="keep")(case_of(m)).values.item() for m in (maps, maps * 4, maps + 4))
    assert one == twice
    assert one != shifted


def test_a_score_without_a_scale_is_a_straight_line():
    response = torch.tensor([[float("nan")] * 5, [0.0, 0.5, 0.5, 0.5, 1.0]]).double()
    density = torch.linspace(0, 1, 5).double().expand(2, -1)
    found = align(response, density, "insert")
    assert found.flat.tolist() == [True, False]
    assert_close(found.score[0], density[0])
    assert_close(align(response, 1 - density, "delete").score[0], 1 - density[0])


def test_a_model_that_does_not_care_gives_one_half_and_says_so():
    model = adapt(lambda images: images.new_tensor([[1.0, 0.0]]).expand(len(images), -1))
    case = Case(model, white(), Logit(0), torch.rand(1, *SIZE))
    for metric in (MasInsertion(5, "zero"), MasDeletion(5, visible="keep")):
        found = metric(case)
        assert found.values.tolist() == [0.5]
        assert found.flags == ("image and filled image score alike",)


@pytest.mark.parametrize(("value", "finite"), [(0.0, False), (1.0, True), (-2.0, True), (1e30, True)])
def test_constant_maps_are_flagged_and_zeros_have_no_number(value, finite):
    for metric in (MasInsertion(5, "zero"), MasDeletion(5, visible="keep")):
        found = metric(case_of(torch.full((1, *SIZE), value)))
        assert found.values.isfinite().item() is finite
        assert found.flags == ("constant map" if finite else "constant map; no magnitude",)


def test_huge_and_sparse_maps_are_judged():
    one = torch.zeros(SIZE)
    one[3, 3] = 1.0
    maps = torch.stack([torch.rand(SIZE) * 3e38, one, -one])
    for metric in (MasInsertion(5, "zero"), MasDeletion(5, visible="keep")):
        found = metric(case_of(maps))
        assert found.values.isfinite().all()
        assert found.flags == ("", "", "")
        assert found.values[1] == found.values[2]


def test_by_value_a_negative_pixel_weighs_nothing_and_comes_last():
    weights = shares()
    maps = torch.stack([weights, torch.where(weights > weights.median(), weights, -weights)])
    found = MasDeletion(1, by="value", visible="keep").aligned(case_of(maps, weights))
    assert found.density[1, PIXELS // 2] == 0
    assert found.density[0, PIXELS // 2] > 0
    nothing = MasDeletion(5, by="value", visible="keep")(case_of(-weights[None]))
    assert nothing.values.isnan().all()
    assert nothing.flags == ("no magnitude",)


def test_the_difference_is_that_of_the_two():
    case = Case(contrasted(), chequered()[None], Logit(0), torch.rand(1, 64, 64))
    found = MasInsDel(step=512)(case)
    first, second = MasInsertion(step=512)(case), MasDeletion(step=512)(case)
    assert found.values.isfinite().all()
    assert_close(found.values, first.values - second.values)
    assert_close(found.curve, first.curve - second.curve)


def test_the_difference_costs_both_curves_and_every_blur_that_is_tried():
    case = case_of(torch.rand(2, *SIZE))
    metric = MasInsDel(5)
    with counting() as meter:
        found = metric(case)
    assert found.values.isnan().all()
    assert found.flags == ("class visible in every blur",) * 2
    assert meter.passes.forward == 2 * (2 * 10 - 1 + 35)  # ten points each, the image once, and every wider blur
    assert metric.cost(adapt(case.model.model, input_size=SIZE)).forward == 2 * 10 - 1 + 35


def test_all_three_share_their_passes():
    case = case_of(torch.rand(1, *SIZE))
    alone = judge(case_of(case.maps), "mas_ins_del(step=5)").passes.forward
    assert judge(case, ["mas_ins_del(step=5)", "mas_insertion(step=5)", "mas_deletion(step=5)"]).passes.forward == alone


def test_ranking_by_the_negative_is_refused():
    with pytest.raises(RecipeError, match="by='negative'"):
        MasInsertion(by="negative")


@pytest.mark.shared
def test_density_and_penalty_are_those_of_the_authors(shared):
    golden = np.load(shared / "golden" / "photo" / "metric_mas_A.npz")
    for name in ("gae", "rollout", "random"):
        for short, direction in (("ins", "insert"), ("del", "delete")):
            response, density = (
                torch.from_numpy(golden[f"{short}_{kind}_{name}"])[None].double() for kind in ("response", "density")
            )
            found = align(response, density, direction)
            assert_close(
                found.penalty[0].float(), torch.from_numpy(golden[f"{short}_penalty_{name}"]), rtol=0, atol=1e-5
            )
            assert_close(found.score[0].float(), torch.from_numpy(golden[f"{short}_score_{name}"]), rtol=0, atol=1e-5)
            model = adapt(lambda images: images.flatten(1)[:, :2])
            maps = torch.from_numpy(golden[f"map_{name}"])[None]
            metric = MasInsertion(fill="zero") if short == "ins" else MasDeletion(visible="keep")
            # the density does not ask the model, so the smallest one will do
            got = metric.aligned(Case(model, torch.rand(1, 3, 224, 224), Logit(0), maps)).density
            assert_close(got[0].float(), torch.from_numpy(golden[f"{short}_density_{name}"]), rtol=0, atol=1e-5)
