"""Region perturbation, selectivity, pixel flipping and Arya's monotonicity: Quantus, closed forms, and edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.metrics import peer_quantus
from tests.metrics.peer_quantus import plain, quantus
from torch.testing import assert_close

from sightline import adapt
from sightline.errors import RecipeError
from sightline.metrics.case import Case
from sightline.metrics.judge import judge
from sightline.recipe import parse_metric
from sightline.types import Logit


def judged(case, recipe):
    scores = judge(case, recipe)
    return scores[recipe], scores.curves[recipe]


# ---- Quantus ---------------------------------------------------------------------------------------------------------


def test_region_perturbation_is_that_of_quantus(parity):
    metric = quantus.RegionPerturbation(patch_size=4, regions_evaluation=6, perturb_baseline="black", **plain())
    drops = torch.from_numpy(np.asarray(metric.evaluate_batch(**peer_quantus.batch()))).double()
    recipe = "region_perturbation(patch=4, steps=6, fill='black')"
    values, curve = judged(peer_quantus.case(), recipe)
    assert_close(curve[:, :1] - curve[:, 1:], drops, rtol=0, atol=1e-5)
    assert_close(values, torch.cat([torch.zeros(3, 1), drops], dim=1).mean(dim=1), rtol=0, atol=1e-5)
    parity("region_perturbation", "quantus RegionPerturbation", curve[:, :1] - curve[:, 1:], drops, 1e-5)


def test_selectivity_is_that_of_quantus(parity):
    metric = quantus.Selectivity(patch_size=4, perturb_baseline="black", **plain())
    want = torch.from_numpy(np.asarray(metric.evaluate_batch(**peer_quantus.batch()))).double()
    values, curve = judged(peer_quantus.case(), "selectivity(patch=4)")
    assert_close(curve[:, 1:], want, rtol=0, atol=1e-5)
    assert_close(values, torch.trapezoid(curve, dim=1) / 9)
    parity("selectivity", "quantus Selectivity", curve[:, 1:], want, 1e-5)


def test_pixel_flipping_is_that_of_quantus(parity):
    metric = quantus.PixelFlipping(features_in_step=12, perturb_baseline="black", **plain())
    want = torch.from_numpy(np.asarray(metric.evaluate_batch(**peer_quantus.batch()))).double()
    _, curve = judged(peer_quantus.case(), "pixel_flipping(step=12)")
    assert_close(curve[:, 1:].double(), want, rtol=0, atol=1e-5)
    parity("pixel_flipping", "quantus PixelFlipping", curve[:, 1:], want, 1e-5)


def test_quantus_passes_every_map_by_never_adding_a_pixel_and_we_do_not():
    metric = quantus.Monotonicity(features_in_step=12, perturb_baseline="black", **plain())
    assert metric.evaluate_batch(**peer_quantus.batch()) == [True] * 3
    values, curve = judged(peer_quantus.case(), "monotonicity_arya(step=12)")
    assert values.tolist() == [0.0] * 3
    assert (curve.diff(dim=1) < 0).any(dim=1).all()


# ---- closed forms ----------------------------------------------------------------------------------------------------


def brightness(images):
    seen = images.mean(dim=(1, 2, 3))
    return torch.stack([seen, torch.zeros_like(seen)], dim=1)


def bright_case(maps=None):
    images = torch.rand(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return Case(adapt(brightness), images, Logit(0), images.mean(dim=1) if maps is None else maps)


def test_the_drop_is_the_mean_over_the_removed_patches():
    recipe = "region_perturbation(patch=4, steps=2, fill='zero', score='logit')"
    case = bright_case()
    values, _ = judged(case, recipe)
    patches = case.images.mean(dim=1).unfold(1, 4, 4).unfold(2, 4, 4).sum(dim=(3, 4)).flatten(1) / 64
    highest = patches.sort(dim=1, descending=True).values
    assert_close(values, (highest[:, 0] + highest[:, :2].sum(dim=1)) / 3)


def test_a_model_that_adds_up_rises_monotonically_whatever_the_order_and_one_that_subtracts_does_not():
    recipe = "monotonicity_arya(step=4, fill='zero', score='logit')"
    assert judged(bright_case(), recipe)[0].tolist() == [1.0, 1.0]
    assert judged(bright_case(torch.randn(2, 8, 8)), recipe)[0].tolist() == [1.0, 1.0]
    case = bright_case()
    fallen = Case(case.model, -case.images, case.target, case.maps)
    share = recipe.replace("(", "(variant='share', ")
    assert judge(fallen, share)[share].tolist() == [0.0, 0.0]


def test_patches_at_the_border_may_be_smaller_and_all_are_removed():
    recipe = "selectivity(patch=3, fill='zero', score='logit')"
    _, curve = judged(bright_case(), recipe)
    assert curve.shape == (2, 10)
    assert_close(curve[:, -1], torch.zeros(2, dtype=torch.float64))


def test_noise_belongs_to_the_image_and_the_seed():
    case = bright_case()
    recipe = "region_perturbation(patch=4)"
    whole, _ = judged(case, recipe)
    alone, _ = judged(Case(case.model, case.images[1:], case.target, case.maps[1:]), recipe)
    assert_close(alone, whole[1:], rtol=0, atol=1e-12)
    assert not torch.equal(judged(case, "region_perturbation(patch=4, seed=1)")[0], whole)


@pytest.mark.parametrize(
    "recipe",
    ["selectivity(patch=0)", "region_perturbation(steps=0)", "region_perturbation(radius=7)", "pixel_flipping(step=0)"],
)
def test_wrong_options_are_refused(recipe):
    with pytest.raises(RecipeError, match="got "):
        parse_metric(recipe)
