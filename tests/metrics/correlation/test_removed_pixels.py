"""Correlations of attributions with drops: Quantus on the same subsets and noise, closed forms, and edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from tests.metrics import peer_quantus
from tests.metrics.peer_quantus import SIDE, plain, quantus
from torch.testing import assert_close

from sightline import adapt
from sightline.errors import RecipeError
from sightline.metrics.case import Case
from sightline.metrics.correlation.subsets import random_cells, random_pixels
from sightline.metrics.judge import judge
from sightline.perturb.fill import Noise
from sightline.recipe import parse_metric
from sightline.types import Logit


def score(case, recipe):
    return judge(case, recipe)[recipe]


def weights():
    return torch.linspace(-1, 2, 144, dtype=torch.float64).reshape(12, 12)


def linear(images):
    seen = (images.mean(dim=1) * weights()).sum(dim=(1, 2))
    return torch.stack([seen, -seen], dim=1)


def right_case(sign=1, count=2):
    """A linear model on images whose mean is zero after normalisation, and its contributions."""
    images = torch.rand(count, 3, 12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) - 0.3
    return Case(adapt(linear), images, Logit(0), sign * images.mean(dim=1) * weights())


# ---- Quantus ---------------------------------------------------------------------------------------------------------


def test_faithfulness_correlation_is_that_of_quantus_on_the_same_subsets(monkeypatch, parity):
    case = peer_quantus.case()
    subsets = [masks.flatten(1) for masks in random_pixels(case, [20] * 30, 0)]
    drawn = iter([subsets[row][run].nonzero()[:, 0].numpy() for run in range(30) for row in range(3)])
    monkeypatch.setattr(np.random, "choice", lambda *args, **options: next(drawn))
    metric = quantus.FaithfulnessCorrelation(subset_size=20, nr_runs=30, perturb_baseline="black", **plain())
    want = metric.evaluate_batch(**peer_quantus.batch())
    recipe = "faithfulness_correlation(size=20, samples=30)"
    assert_close(score(case, recipe), torch.tensor(want, dtype=torch.float64), rtol=0, atol=1e-5)
    parity("faithfulness_correlation", "quantus FaithfulnessCorrelation", score(case, recipe), want, 1e-5)


def test_faithfulness_estimate_is_that_of_quantus(parity):
    case = peer_quantus.case()
    metric = quantus.FaithfulnessEstimate(features_in_step=9, perturb_baseline="black", **plain())
    want = metric.evaluate_batch(**peer_quantus.batch())
    got = score(case, "faithfulness_estimate(step=9)")
    assert_close(got, torch.tensor(want, dtype=torch.float64), rtol=0, atol=1e-5)
    parity("faithfulness_estimate", "quantus FaithfulnessEstimate", got, want, 1e-5)


def test_monotonicity_of_nguyen_is_that_of_quantus_on_the_same_noise(parity):
    case = peer_quantus.case()
    draws = [Noise(seed)(case.model, case.images).flatten(1)[:, : SIDE**2].numpy() for seed in range(3)]
    calls = iter(range(3 * 12))

    def perturbed(arr, indices, **options):
        noise, found = draws[next(calls) % 3], arr.copy()
        rows = np.arange(len(arr))[:, None]
        found[rows, indices] = noise[rows, indices]
        return found

    metric = quantus.MonotonicityCorrelation(features_in_step=12, nr_samples=3, perturb_func=perturbed, **plain())
    given = peer_quantus.batch()
    want = metric.evaluate_batch(**given | {"a_batch": np.abs(given["a_batch"])})
    got = score(case, "monotonicity_nguyen(step=12)")  # the model looks at the first of three channels of noise
    assert_close(got, torch.tensor(want, dtype=torch.float64), rtol=0, atol=1e-6)
    parity("monotonicity_nguyen", "quantus MonotonicityCorrelation", got, want, 1e-6)


# ---- closed forms ----------------------------------------------------------------------------------------------------

CLOSED = [
    "faithfulness_correlation(size=20, fill='zero', score='logit', samples=30)",
    "faithfulness_estimate(step=12, fill='zero', score='logit')",
    "sensitivity_n",
    "mu_fidelity(grid=(4, 4))",
]


@pytest.mark.parametrize("recipe", CLOSED)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_contributions_of_a_linear_model_score_one_and_their_negative_minus_one(recipe, sign):
    assert_close(score(right_case(sign), recipe), torch.full((2,), float(sign), dtype=torch.float64))


def test_sensitivity_n_holds_at_every_n_and_the_curve_says_so():
    scores = judge(right_case(), "sensitivity_n(shares=(0.1, 0.5))")
    (curve,) = scores.curves.values()
    assert_close(curve, torch.ones(2, 2, dtype=torch.float64))


def test_by_hand(tiny_cnn, images):
    maps = torch.randn(2, 32, 32, dtype=torch.float64)
    case = Case(adapt(tiny_cnn), images, Logit((1, 3)), maps)
    cells, pixels = "mu_fidelity(grid=(4, 4), samples=12)", "sensitivity_n(shares=(0.3,), samples=12)"
    got = judge(case, [cells, pixels])
    for row, target in enumerate((1, 3)):
        for recipe, subsets in (
            (cells, list(random_cells(case, (4, 4), 3, 12, 0))[row]),
            (pixels, list(random_pixels(case, [round(0.3 * 1024)] * 12, 0))[row]),
        ):
            with torch.no_grad():
                whole = tiny_cnn(images[row : row + 1])[0, target]
                drops = [whole - tiny_cnn((images[row] * ~mask)[None])[0, target] for mask in subsets]
            sums = [maps[row][mask].sum() for mask in subsets]
            want = (
                spearmanr(sums, drops).statistic
                if recipe == cells
                else np.corrcoef(np.array(sums), np.array(drops))[0, 1]
            )
            assert got[recipe][row].item() == pytest.approx(want, abs=1e-9)


def test_subsets_have_their_size_and_belong_to_the_image():
    case = right_case(count=3)
    for masks in random_pixels(case, [5, 60], 0):
        assert masks.flatten(1).sum(dim=1).tolist() == [5, 60]
    for masks in random_cells(case, (3, 3), 2, 6, 0):
        assert masks.flatten(1).sum(dim=1).tolist() == [32] * 6
    alone = Case(case.model, case.images[2:], case.target, case.maps[2:])
    assert torch.equal(next(iter(random_pixels(alone, [9], 4))), list(random_pixels(case, [9], 4))[2])


def test_a_subset_may_have_a_quarter_of_the_pixels_of_an_ordinary_image():
    assert parse_metric("faithfulness_correlation(size=12544)").size == 224 * 224 // 4


def test_magnitudes_count_for_nguyen():
    recipe = "monotonicity_nguyen(step=12)"
    assert_close(score(right_case(1), recipe), score(right_case(-1), recipe))


@pytest.mark.parametrize(
    "recipe",
    [
        "faithfulness_correlation(size=0)",
        "faithfulness_correlation(samples=1)",
        "faithfulness_estimate(step=0)",
        "sensitivity_n(shares=())",
        "sensitivity_n(shares=(1.5,))",
        "mu_fidelity(share=1.0)",
        "mu_fidelity(grid=(0, 3))",
        "monotonicity_nguyen(samples=0)",
    ],
)
def test_wrong_options_are_refused(recipe):
    with pytest.raises(RecipeError, match="got "):
        parse_metric(recipe)
