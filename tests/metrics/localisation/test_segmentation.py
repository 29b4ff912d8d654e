from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, f1_score, jaccard_score
from torch.nn import functional as F
from torch.testing import assert_close

from sightline import adapt
from sightline.errors import RecipeError
from sightline.metrics.case import Case
from sightline.metrics.judge import judge
from sightline.metrics.localisation.segmentation import mean_iou_of, pixel_accuracy_of
from sightline.recipe import parse_metric, text
from sightline.types import Logit

NAMES = ["pixel_accuracy", "mean_iou", "mean_ap", "mean_f1"]
ALL = [*NAMES, "mean_f1(over='pixels')"]
MASKS = ("centre_box", "small_box", "ellipse")


def case(maps, masks):
    maps, masks = torch.as_tensor(maps), torch.as_tensor(masks)
    model = adapt(lambda images: images.mean(dim=(2, 3)))
    return Case(model, torch.zeros(len(maps), 3, *maps.shape[1:]), Logit(0), maps, masks)


def scores_of(maps, masks, names=ALL):
    return judge(case(maps, masks), names)


def box(size=(6, 8)):
    mask = torch.zeros(1, *size, dtype=torch.int8)
    mask[:, 1:3, 2:5] = 1
    return mask


# ---- reference numbers and peers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gae", "rollout", "random"])
def test_counts_and_scores_are_those_of_the_reference(shared, name):
    numbers = np.load(shared / "golden/photo/metric_segmentation_A.npz")
    maps = torch.from_numpy(numbers[f"map_{name}_A"])[None]
    if maps.shape[-1] == 14:
        maps = F.interpolate(maps[None], scale_factor=16, mode="bilinear")[0]
    masks = torch.stack([torch.from_numpy(numbers[f"mask_{mask}"].astype(np.int8)) for mask in MASKS])
    scores = scores_of(maps.expand(3, -1, -1), masks)
    for row, mask in enumerate(MASKS):
        found = f"A_{name}_{mask}_"
        assert scores.curves["pixel_accuracy"][row].tolist() == numbers[f"{found}correct_labelled"].tolist()
        counts = [*numbers[f"{found}inter"], *numbers[f"{found}union"]]
        assert scores.curves["mean_iou"][row].tolist() == counts
        assert scores["mean_ap"][row].item() == pytest.approx(numbers[f"{found}ap_f64"].item(), abs=1e-6)
        assert scores["mean_f1"][row].item() == pytest.approx(numbers[f"{found}f1_rows"].mean(), abs=1e-6)
    whole = [
        pixel_accuracy_of(scores.curves["pixel_accuracy"]),
        scores["mean_ap"].mean().item(),
        mean_iou_of(scores.curves["mean_iou"]),
        scores["mean_f1"].mean().item(),
    ]
    assert whole == pytest.approx(numbers[f"dataset_{name}_f64"].tolist(), abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), ignored=st.booleans())
def test_they_agree_with_scikit_learn(seed, ignored):
    generator = torch.Generator().manual_seed(seed)
    maps = torch.randint(0, 9, (2, 6, 7), generator=generator).double()  # ties
    maps[:, 0, :2] = torch.tensor([0.0, 9.0], dtype=torch.float64)
    masks = torch.randint(-1 if ignored else 0, 2, (2, 6, 7), generator=generator)
    masks[:, 0, :2] = torch.tensor([0, 1])
    scores = scores_of(maps, masks)
    for row in range(2):
        scaled, counted = maps[row] / 9, masks[row] >= 0
        said = (scaled > scaled.mean())[counted].numpy()
        true = (masks[row] > 0)[counted].numpy()
        values = scaled[counted].numpy()
        assert scores["pixel_accuracy"][row].item() == pytest.approx((said == true).mean())
        want = jaccard_score(true, said, average="macro", zero_division=0)
        assert scores["mean_iou"][row].item() == pytest.approx(want)
        want = f1_score(true, said, zero_division=0)
        assert scores["mean_f1(over='pixels')"][row].item() == pytest.approx(want)
        want = average_precision_score(np.concatenate([~true, true]), np.concatenate([1 - values, values]))
        assert scores["mean_ap"][row].item() == pytest.approx(want)


# ---- closed forms ----------------------------------------------------------------------------------------------------


def test_by_hand():
    maps = torch.tensor([[[4.0, 0.0, 0.0, 0.0], [0.0, 4.0, 0.0, 0.0]]])  # mean 1: two pixels stand out
    masks = torch.tensor([[[1, 1, 0, 0], [0, 0, 0, -1]]])
    scores = scores_of(maps, masks)
    assert scores["pixel_accuracy"].item() == pytest.approx(5 / 7)
    assert scores["mean_iou"].item() == pytest.approx((1 / 3 + 4 / 6) / 2)
    assert scores["mean_f1"].item() == pytest.approx((2 / 3 + 0) / 2)
    assert scores["mean_f1(over='pixels')"].item() == pytest.approx(2 / 4)


def test_a_perfect_map_scores_one_and_its_rows_the_height_of_the_object():
    scores = scores_of(box().float(), box())
    assert [scores[name].item() for name in ("pixel_accuracy", "mean_iou", "mean_ap")] == [1, 1, 1]
    assert scores["mean_f1(over='pixels')"].item() == 1
    assert scores["mean_f1"].item() == pytest.approx(2 / 6)


def test_sets_are_ratios_of_sums_not_means():
    maps, masks = torch.rand(3, 6, 8), torch.randint(0, 2, (3, 6, 8))
    masks[0, 1:] = -1  # hardly labelled, so it hardly counts
    scores = scores_of(maps, masks)
    counts = scores.curves["pixel_accuracy"].sum(dim=0)
    assert pixel_accuracy_of(scores.curves["pixel_accuracy"]) == pytest.approx((counts[0] / counts[1]).item())
    assert pixel_accuracy_of(scores.curves["pixel_accuracy"]) != pytest.approx(scores["pixel_accuracy"].mean().item())
    assert np.isnan(pixel_accuracy_of(torch.zeros(2, 2)))
    assert np.isnan(mean_iou_of(torch.zeros(2, 4)))


# ---- laws ------------------------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_true_map_beats_its_shuffle_beats_its_negative(seed):
    generator = torch.Generator().manual_seed(seed)
    true = box().float() + 0.3 * torch.rand(1, 6, 8, generator=generator)
    shuffled = true.flatten()[torch.randperm(48, generator=generator)].reshape(true.shape)
    ranked = [scores_of(maps, box()) for maps in (true, shuffled, -true)]
    for name in ALL:
        best, chance, worst = (scores[name].item() for scores in ranked)
        assert best >= chance
        assert best > worst
    assert ranked[1]["mean_ap"].item() > ranked[2]["mean_ap"].item()


def test_a_positive_affine_change_of_the_map_changes_nothing():
    maps, masks = torch.randn(2, 9, 9).double(), torch.randint(-1, 2, (2, 9, 9))
    before, after = (scores_of(each, masks) for each in (maps, 64 * maps - 5))
    for name in ALL:
        assert_close(before[name], after[name])


def test_a_batch_equals_its_images_one_by_one():
    maps, masks = torch.randn(4, 9, 7), torch.randint(-1, 2, (4, 9, 7))
    together = scores_of(maps, masks)
    for row in range(4):
        alone = scores_of(maps[row : row + 1], masks[row : row + 1])
        for name in ALL:
            assert_close(together[name][row], alone[name][0], rtol=0, atol=1e-12)


# ---- edges -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.0, 5.0, -2.0])
def test_a_constant_map_marks_nothing(value):
    scores = scores_of(torch.full((1, 6, 8), value), box())
    assert scores["pixel_accuracy"].item() == pytest.approx(42 / 48)
    assert scores["mean_iou"].item() == pytest.approx(42 / 48 / 2)
    assert scores["mean_ap"].item() == pytest.approx(0.5)
    assert scores["mean_f1"].item() == 0
    assert set(scores.flags.values()) == {("constant map",)}


def test_without_an_object_the_score_stands_and_without_a_label_it_does_not():
    scores = scores_of(torch.rand(2, 6, 8), torch.stack([torch.zeros(6, 8), -torch.ones(6, 8)]).to(torch.int8))
    for name in ALL:
        assert torch.isfinite(scores[name][0])
        assert torch.isnan(scores[name][1])
        assert scores.flags[name] == ("no foreground", "no labelled pixel")
    assert pixel_accuracy_of(scores.curves["pixel_accuracy"]) == pytest.approx(scores["pixel_accuracy"][0].item())


@pytest.mark.parametrize("mask", [torch.ones(1, 1, 1), torch.zeros(1, 1, 1)])
def test_one_pixel(mask):
    scores = scores_of(torch.ones(1, 1, 1), mask.to(torch.int8))
    assert scores["pixel_accuracy"].item() == 1 - mask.item()


def test_huge_and_single_pixel_maps():
    maps = torch.zeros(2, 6, 8, dtype=torch.float64)
    maps[0, 1, 3], maps[1] = 1e308, 1.7e308 * (2 * box()[0].double() - 1)
    scores = scores_of(maps, box().expand(2, -1, -1))
    assert scores["mean_iou"][1].item() == 1
    assert scores["mean_iou"][0].item() == pytest.approx((1 / 6 + 42 / 47) / 2)
    assert all(torch.isfinite(values).all() for values in scores.values())


def test_they_run_no_model_and_are_refused_when_wrong():
    assert scores_of(torch.rand(1, 6, 8), box()).passes.forward == 0
    with pytest.raises(RecipeError, match="rows"):
        parse_metric("mean_f1(over='columns')")
    assert text(parse_metric("mean_f1(over='pixels')")) == "mean_f1(over='pixels')"


def test_the_average_precision_of_a_map_that_was_cut():
    """Of zeros and ones it follows from the accuracy p: p² + (1 - p)/2; the best cut is that of the best accuracy."""
    maps = torch.rand(3, 6, 8, generator=torch.Generator().manual_seed(0)) + box()
    masks = box().expand(3, -1, -1).clone()
    masks[1, 0] = -1
    scores = scores_of(maps, masks, ["pixel_accuracy", "mean_ap(cut='mean')", "mean_ap(cut='best')", "mean_ap"])
    right = scores["pixel_accuracy"].double()
    assert_close(scores["mean_ap(cut='mean')"].double(), right**2 + (1 - right) / 2)
    scaled = (maps - maps.amin(dim=(1, 2), keepdim=True)) / (maps.amax(dim=(1, 2)) - maps.amin(dim=(1, 2)))[
        :, None, None
    ]
    for row in range(3):
        known = masks[row] >= 0
        best = max(float(((scaled[row] > cut / 100) == (masks[row] > 0))[known].double().mean()) for cut in range(100))
        assert scores["mean_ap(cut='best')"][row].item() == pytest.approx(best**2 + (1 - best) / 2)
    assert (scores["mean_ap(cut='best')"] >= scores["mean_ap(cut='mean')"] - 1e-9).all()
