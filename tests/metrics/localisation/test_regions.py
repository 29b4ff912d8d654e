from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from sightline import adapt
from sightline.errors import RecipeError
from sightline.metrics.case import Case
from sightline.metrics.judge import judge
from sightline.metrics.localisation.pointing import EnergyPointingGame
from sightline.metrics.localisation.regions import (
    F1,
    GridPointing,
    Iou,
    Precision,
    Recall,
    RegionAttribution,
    gaussian_blur,
)
from sightline.recipe import parse_metric, text
from sightline.types import Logit

PLAIN = [RegionAttribution(window=1), Iou(window=1), Precision(window=1), Recall(window=1), F1(window=1)]
BLURRED = [RegionAttribution(), Iou(), Precision(), Recall(), F1()]
BINARY = [Iou, Precision, Recall, F1]
ALL = [*BLURRED, GridPointing()]


def named(metric):
    return type(metric).__name__


def case(maps, masks):
    maps, masks = torch.as_tensor(maps), torch.as_tensor(masks)
    model = adapt(lambda images: images.mean(dim=(2, 3)))
    return Case(model, torch.zeros(len(maps), 3, *maps.shape[1:]), Logit(0), maps, masks)


def value(metric, maps, masks):
    return metric(case(maps, masks)).values.item()


def quadrant(side=64):
    mask = torch.zeros(1, side, side, dtype=torch.int8)
    mask[:, : side // 2, : side // 2] = 1
    return mask


# ---- the blur --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("window", "sigma"), [(11, None), (11, 5.0), (15, None), (3, 0.7), (31, 31.0)])
@pytest.mark.parametrize("size", [(40, 33), (224, 224), (5, 9)])
def test_the_blur_is_that_of_opencv(window, sigma, size):
    cv2 = pytest.importorskip("cv2")
    maps = torch.randn(2, *size, dtype=torch.float64)
    got = gaussian_blur(maps, window, sigma)
    want = [
        cv2.GaussianBlur(one, (window, window), sigma or 0, borderType=cv2.BORDER_REFLECT_101) for one in maps.numpy()
    ]
    assert_close(got, torch.from_numpy(np.stack(want)), rtol=0, atol=1e-12)


def test_the_blur_keeps_constants_and_its_window():
    assert_close(gaussian_blur(torch.ones(1, 3, 2), 11), torch.ones(1, 3, 2))
    point = torch.zeros(1, 31, 31, dtype=torch.float64)
    point[0, 15, 15] = 1
    spread = gaussian_blur(point, 11)[0]
    assert spread.sum().item() == pytest.approx(1)
    assert (spread > 0).sum().item() == 121
    assert spread[15, 17] / spread[15, 15] == pytest.approx(np.exp(-4 / 8))  # sigma 2


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (2, 3)])
def test_the_blur_mirrors_images_smaller_than_its_window(size):
    blurred = gaussian_blur(torch.rand(1, *size), 11)
    assert blurred.shape == (1, *size)
    assert torch.isfinite(blurred).all()


# ---- closed forms ----------------------------------------------------------------------------------------------


def test_by_hand_without_a_blur():
    maps, masks = [[[3.0, 1.0, -2.0, 0.0, 100.0]]], [[[1, 0, 1, 0, -1]]]
    assert [value(metric, maps, masks) for metric in PLAIN] == pytest.approx([3 / 4, 1 / 3, 1 / 2, 1 / 2, 1 / 2])
    assert value(GridPointing(), maps, masks) == pytest.approx(3 / 4)


def test_the_signed_map_is_blurred_before_it_is_cut():
    maps = torch.full((1, 20, 20), -1.0)
    maps[0, 5, 5] = 1.5  # drowned by its neighbours; cut first, it alone would be left
    assert [value(metric, maps, quadrant(20)) for metric in BLURRED] == [0] * 5
    assert [value(metric, maps.clamp(min=0), quadrant(20)) > 0 for metric in BLURRED] == [True] * 5


def test_a_map_positive_everywhere_scores_a_quarter_and_two_fifths_on_a_quad():
    maps = torch.rand(1, 64, 64) + 0.1
    assert value(Iou(), maps, quadrant()) == pytest.approx(0.25)
    assert value(F1(), maps, quadrant()) == pytest.approx(0.4)
    assert value(Recall(), maps, quadrant()) == 1
    assert value(RegionAttribution(), torch.ones(1, 64, 64), quadrant()) == pytest.approx(0.25)


def test_noise_of_both_signs_scores_a_fifth_and_a_third_on_a_quad():
    # half of the pixels are positive: IoU 1/8 : 5/8, as the paper finds for gradient times input
    maps = torch.randn(8, 224, 224, generator=torch.Generator().manual_seed(0))
    masks = quadrant(224).expand(8, -1, -1)
    scores = judge(case(maps, masks), ["iou", "f1", "precision", "recall"])
    assert scores["iou"].mean().item() == pytest.approx(0.2, abs=0.01)
    assert scores["f1"].mean().item() == pytest.approx(1 / 3, abs=0.02)
    assert scores["precision"].mean().item() == pytest.approx(0.25, abs=0.02)
    assert scores["recall"].mean().item() == pytest.approx(0.5, abs=0.03)


def test_the_right_cell_alone_scores_nearly_one():
    maps = quadrant().float()
    assert value(RegionAttribution(), maps, quadrant()) > 0.9
    assert value(Recall(), maps, quadrant()) == 1
    assert value(Iou(window=1), maps, quadrant()) == 1
    assert [value(metric, maps.flip(2), quadrant()) < 0.2 for metric in BLURRED] == [True] * 5


# ---- laws ------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), window=st.sampled_from([1, 3, 11]))
def test_f1_is_the_harmonic_mean_and_a_function_of_iou(seed, window):
    generator = torch.Generator().manual_seed(seed)
    maps = torch.randn(3, 12, 10, generator=generator)
    masks = torch.randint(-1, 2, (3, 12, 10), generator=generator)
    iou, precision, recall, f1 = (metric(window=window)(case(maps, masks)).values for metric in BINARY)
    assert_close(f1, 2 * iou / (1 + iou))
    harmonic = 2 * precision * recall / (precision + recall)
    assert_close(f1, harmonic.nan_to_num(0.0))
    assert (iou <= torch.minimum(precision, recall) + 1e-12).all()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_without_a_blur_the_share_is_the_energy(seed):
    generator = torch.Generator().manual_seed(seed)
    maps = torch.randn(3, 7, 8, generator=generator)
    masks = torch.randint(-1, 2, (3, 7, 8), generator=generator)
    masks[:, 0, 0] = 1
    want = EnergyPointingGame()(case(maps, masks)).values
    assert_close(RegionAttribution(window=1)(case(maps, masks)).values, want)
    assert_close(GridPointing()(case(maps, masks)).values, want)


@pytest.mark.parametrize("metric", ALL, ids=named)
def test_a_positive_factor_changes_nothing(metric):
    maps, masks = torch.randn(2, 30, 30), torch.randint(0, 2, (2, 30, 30))
    assert_close(metric(case(maps * 64, masks)).values, metric(case(maps, masks)).values)


@pytest.mark.parametrize("metric", ALL, ids=named)
def test_a_batch_equals_its_images_one_by_one(metric):
    maps, masks = torch.randn(4, 20, 24), torch.randint(-1, 2, (4, 20, 24))
    together = metric(case(maps, masks)).values
    alone = torch.cat([metric(case(maps[row : row + 1], masks[row : row + 1])).values for row in range(4)])
    assert_close(together, alone, rtol=0, atol=1e-12)


# ---- edges -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ALL, ids=named)
@pytest.mark.parametrize("empty", [0, -1])
def test_without_a_region_the_score_is_nan_and_says_why(metric, empty):
    found = metric(case(torch.rand(1, 6, 6), torch.full((1, 6, 6), empty)))
    assert torch.isnan(found.values).all()
    assert found.flags == ("no foreground",)


@pytest.mark.parametrize("metric", ALL, ids=named)
def test_an_empty_prediction_scores_zero_and_says_so(metric):
    found = metric(case(-torch.rand(1, 6, 6) - 0.1, quadrant(6)))
    assert found.values.item() == 0
    assert found.flags[0] in ("no positive value", "nothing above the threshold")


def test_a_total_of_next_to_nothing_scores_zero():
    maps = torch.full((1, 4, 4), 1e-9)
    assert value(RegionAttribution(), maps, quadrant(4)) == 0
    assert value(RegionAttribution(), maps * 1e3, quadrant(4)) == pytest.approx(0.25)


@pytest.mark.parametrize("metric", BINARY)
def test_the_threshold_counts_in_the_units_of_the_map(metric):
    maps = torch.ones(1, 8, 8)
    maps[quadrant(8) > 0] = 3
    assert value(metric(window=1, threshold=2.0), maps, quadrant(8)) == 1
    assert value(metric(window=1, threshold=3.0), maps, quadrant(8)) == 0


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ("iou(window=10)", "odd number"),
        ("region_attribution(window=0)", "odd number"),
        ("f1(sigma=0.0)", "choose a larger number"),
        ("recall(threshold=-1.0)", "0 or more"),
    ],
)
def test_wrong_options_are_refused_at_once(recipe, said):
    with pytest.raises(RecipeError, match=said):
        parse_metric(recipe)


@pytest.mark.parametrize(
    "recipe", ["region_attribution(window=5, sigma=1.5)", "iou(threshold=0.5)", "precision", "grid_pointing"]
)
def test_recipes_come_back_as_they_were(recipe):
    assert text(parse_metric(recipe)) == recipe


def test_they_share_one_blur_and_run_no_model(monkeypatch):
    from sightline.metrics.localisation import regions

    calls = []
    monkeypatch.setattr(regions, "gaussian_blur", lambda *args: (calls.append(args), gaussian_blur(*args))[1])
    scores = judge(
        case(torch.randn(2, 9, 9), torch.ones(2, 9, 9, dtype=torch.int8)), ["region_attribution", "iou", "f1"]
    )
    assert len(calls) == 1
    assert scores.passes.forward == 0
