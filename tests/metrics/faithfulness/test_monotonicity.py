from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch.testing import assert_close

from sightline import adapt
from sightline.errors import RecipeError
from sightline.metrics.case import Case
from sightline.metrics.faithfulness.monotonicity import Monotonicity
from sightline.metrics.judge import judge
from sightline.types import Logit

from .test_insertion_deletion_mda import chequered, contrasted

SIZE = (8, 12)
SIGNED = torch.linspace(-1, 2, 96, dtype=torch.float64).view(SIZE)


def weighing(weights):
    """A model whose probability of class 0 is 0.3 + 0.4 Σ w x, for a white image with weights that sum to one."""

    def logits(images):
        p = 0.3 + 0.4 * (images.mean(dim=1) * weights).sum(dim=(1, 2))
        return torch.stack([p.log(), (1 - p).log()], dim=1)

    return adapt(logits, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def white(count=1):
    return torch.ones(count, 3, *SIZE, dtype=torch.float64)


def case_of(maps, weights=None):
    weights = torch.full(SIZE, 1 / 96).double() if weights is None else weights
    return Case(weighing(weights), white(len(maps)), Logit(0), maps)


def patch_curve(weights, maps, rows, columns):
    """The probability as patches enter a black image, by hand."""
    height, width = SIZE[0] // rows, SIZE[1] // columns

    def patches(values):
        return values.reshape(rows, height, columns, width).transpose(0, 2, 1, 3).reshape(rows * columns, -1)

    order = np.argsort(-patches(maps.numpy()).mean(axis=1), kind="stable")
    return 0.3 + 0.4 * np.concatenate([[0], np.cumsum(patches(weights.numpy()).sum(axis=1)[order])])


def test_where_every_piece_helps_it_is_one_in_whatever_order():
    case = case_of(torch.randn(3, *SIZE))
    for metric in (
        Monotonicity(fill="zero", cells=4),
        Monotonicity("negative", fill="zero", cells=4),
        Monotonicity(unit="pixel", fill="zero", step=7),
        Monotonicity("negative", unit="pixel", fill="zero", step=7),
        Monotonicity(variant="aix360", fill="zero", cells=4),
    ):
        assert metric(case).values.tolist() == pytest.approx([1.0, 1.0, 1.0])


def test_patches_enter_by_the_mean_of_their_signed_values():
    weights = (SIGNED / SIGNED.sum())[:, torch.randperm(12)]
    maps = torch.randn(1, *SIZE, dtype=torch.float64)
    found = Monotonicity(fill="zero", cells=4)(case_of(maps, weights))
    want = patch_curve(weights, maps[0], 4, 4)
    assert_close(found.curve[0].numpy(), want)
    assert found.values.item() == pytest.approx(spearmanr(np.arange(17), want).statistic)
    deleted = Monotonicity("negative", fill="zero", cells=4)(case_of(maps, weights))
    assert_close(deleted.curve[0].numpy(), 1.0 - want)


def test_a_map_that_gives_the_evidence_first_and_what_speaks_against_it_last_scores_low():
    weights = SIGNED / SIGNED.sum()
    maps = torch.stack([weights, -weights, torch.rand(SIZE).double()])
    found = Monotonicity(unit="pixel", fill="zero", step=1)(case_of(maps, weights)).values
    assert found[0] < 0.7 < 0.9 < found[2]
    reverse = Monotonicity("negative", unit="pixel", fill="zero", step=1)(case_of(maps, weights)).values
    assert_close(found[:2], reverse[:2].flip(0), rtol=0, atol=1e-12)


def test_the_other_variant_adds_the_least_important_first_and_answers_yes_or_no():
    weights = SIGNED / SIGNED.sum()
    case = case_of(torch.stack([weights, weights * -1, weights * 0 + 1]), weights)
    metric = Monotonicity(variant="aix360", unit="pixel", fill="zero", step=24)
    curve = metric(case).curve
    assert_close(curve[0], Monotonicity(unit="pixel", fill="zero", step=24)(case).curve[1])
    want = [(np.diff(one[1:].numpy()) >= 0).all() for one in curve]
    assert metric(case).values.tolist() == want == [True, False, True]
    # from the first piece on the probability rises, although that piece itself lowered it
    dip = torch.full(SIZE, 1 / 96).double()
    dip[:4, :6] = -1 / 96
    maps = torch.ones(1, *SIZE)
    maps[0, :4, :6] = 0
    assert Monotonicity(variant="aix360", fill="zero", cells=2)(case_of(maps, dip)).values.tolist() == [1.0]


def test_a_response_that_never_changes_has_no_rank():
    case = case_of(torch.rand(2, *SIZE), torch.zeros(SIZE).double())
    found = Monotonicity(fill="zero", cells=2)(case)
    assert found.values.isnan().all()
    assert found.flags == ("constant response",) * 2
    assert Monotonicity(variant="aix360", fill="zero", cells=2)(case).values.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 1e30])
def test_a_constant_map_has_a_score_and_a_flag(value):
    found = Monotonicity(fill="zero", cells=4)(case_of(torch.full((1, *SIZE), value)))
    assert found.values.isfinite().all()
    assert found.flags == ("constant map",)


def test_the_blur_begins_with_the_image_itself():
    case = Case(contrasted(), chequered()[None], Logit(0), torch.rand(1, 64, 64))
    found = Monotonicity(cells=4)(case)
    assert found.curve.shape == (1, 17)
    assert found.curve[0, 0] <= 0.01
    visible = Case(contrasted(), torch.ones(1, 3, 64, 64).double(), Logit(0), torch.rand(1, 64, 64))
    found = Monotonicity(cells=4)(visible)
    assert found.values.isnan().all()
    assert found.flags == ("class visible in every blur",)


def test_a_transformer_brings_its_own_patches(tiny_vit, images):
    model = adapt(tiny_vit)
    case = Case(model, images, Logit(1), torch.rand(2, 32, 32))
    assert Monotonicity(fill="zero")(case).curve.shape == (2, 17)
    assert Monotonicity(fill="zero").cost(model).forward == 17
    assert Monotonicity().cost(model).forward == 17 + 49
    assert Monotonicity(fill="zero").cost(adapt(lambda x: x.mean(dim=(2, 3)))).forward == 197
    assert Monotonicity(fill="zero", unit="pixel").cost(adapt(lambda x: x.mean(dim=(2, 3)))).forward == 225


def test_equal_settings_share_their_passes():
    case = case_of(torch.rand(1, *SIZE))
    recipes = ["insertion(step=12)", "mas_insertion(step=12, fill='blur')", "insertion_mda(step=12, fill='blur')"]
    got = judge(case, [*recipes, "monotonicity(unit='pixel', step=12, fill='blur')"])
    assert got.passes.forward == 9
    assert_close(got.curves["insertion(step=12)"], got.curves["monotonicity(unit='pixel', step=12, fill='blur')"])


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "both"},
        {"variant": "pearson"},
        {"unit": "row"},
        {"variant": "aix360", "mode": "negative"},
        {"cells": 0},
        {"cells": 4, "unit": "pixel"},
        {"step": 0},
        {"window": 2},
        {"window": 3, "fill": "zero"},
        {"tie": "no"},
    ],
)
def test_wrong_options_are_refused(options):
    with pytest.raises(RecipeError, match="got"):
        Monotonicity(**options)


@pytest.mark.shared
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("mode", "unit", "name"),
    [
        ("positive", "patch", "rollout"),
        *(
            pytest.param(mode, unit, name, marks=pytest.mark.slow)
            for mode in ("positive", "negative")
            for unit in ("patch", "pixel")
            for name in ("rollout", "gae", "random")
            if (mode, unit, name) != ("positive", "patch", "rollout")
        ),
    ],
)
def test_curves_and_correlations_are_those_of_the_authors_on_a_photograph(mode, unit, name, shared, real_vit):
    golden = np.load(shared / "golden" / "photo" / "metric_monotonicity_A.npz")
    photograph = torch.from_numpy(np.load(shared / "golden" / "photo" / "inputs_A.npz")["input"])
    maps = torch.from_numpy(golden[f"map_{name}"])[None]
    case = Case(adapt(real_vit), photograph, Logit(int(golden["target"])), maps)
    found = Monotonicity(mode, unit=unit)(case)
    want = torch.from_numpy(golden[f"{mode}_{unit}_response_{name}"])
    assert_close(found.curve[0], want, rtol=0, atol=1e-4)
    assert found.values.item() == pytest.approx(golden[f"{mode}_{unit}_rho_{name}_f64"], abs=1e-3)
