from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.methods import reference_cnn
from torch.testing import assert_close

from sightline import adapt
from sightline.errors import RecipeError
from sightline.extras import require
from sightline.metrics.case import Case
from sightline.metrics.faithfulness.road import _missing
from sightline.metrics.judge import judge
from sightline.perturb.impute import impute
from sightline.recipe import parse_metric
from sightline.types import Logit

SHORT = "percentiles=(30.0, 60.0)"


def score(case, recipe):
    (values,) = judge(case, recipe).values()
    return values


@pytest.fixture
def reference():
    """The random CNN, its image, the map and the numbers, in single precision as they were made."""
    model, image = reference_cnn.network("tiny_cnn")
    numbers = reference_cnn.numbers("metric_road_adp_tiny_cnn")
    return Case(adapt(model.float()), image.float(), Logit(2), torch.from_numpy(numbers["cam"])[None]), numbers


# ---- reference numbers and peers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("percentile", [20, 50, 80, 90])
def test_one_percentile_is_that_of_grad_cam(reference, percentile):
    case, numbers = reference
    most = score(case, f"road(percentiles=({percentile}.0,), variant='most', noise=0.0)").item()
    least = score(case, f"road(percentiles=({percentile}.0,), variant='least', noise=0.0)").item()
    assert most == pytest.approx(-numbers[f"road_morf_p{percentile}"].item(), abs=1e-5)
    assert least == pytest.approx(numbers[f"road_lerf_p{percentile}"].item(), abs=1e-5)


def test_the_average_is_that_of_grad_cam(reference):
    case, numbers = reference
    options = "percentiles=(20.0, 40.0, 60.0, 80.0), noise=0.0"
    assert score(case, f"road({options})").item() == pytest.approx(numbers["road_combined"].item(), abs=1e-5)
    most = score(case, f"road({options}, variant='most')").item()
    assert most == pytest.approx(-numbers["road_morf_avg"].item(), abs=1e-5)


@pytest.mark.parametrize(("turned", "key"), [(False, "morf"), (True, "lerf")])
def test_the_filled_image_is_that_of_grad_cam(reference, turned, key):
    case, numbers = reference
    missing = _missing(case.maps[0], (80.0,), turned)[0]
    want = torch.from_numpy(numbers[f"road_{key}_p80_image"])
    assert_close(impute(case.images[0], missing), want, rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:__array_wrap__")  # grad-cam hands tensors to numpy
@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_holes_are_filled_as_grad_cam_does(share):
    imputer = require("pytorch_grad_cam.metrics.road").NoisyLinearImputer(noise=0)
    image, missing = torch.randn(3, 17, 23), torch.rand(17, 23) < share
    want = imputer(image, (~missing).float())
    assert_close(impute(image, missing), want, rtol=0, atol=1e-5)


# ---- filling ---------------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), share=st.floats(0.05, 0.98))
def test_every_hole_is_the_mean_of_its_neighbours(seed, share):
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(2, 9, 8, generator=generator, dtype=torch.float64)
    missing = torch.rand(9, 8, generator=generator) < share
    missing[4, 4] = False
    filled = impute(image, missing)
    assert_close(filled[:, ~missing], image[:, ~missing], rtol=0, atol=0)
    kernel = torch.tensor([[1, 2, 1], [2, 0, 2], [1, 2, 1]], dtype=torch.float64)[None, None] / 12
    near = torch.nn.functional.conv2d(filled[:, None], kernel, padding=1)[:, 0]
    weight = torch.nn.functional.conv2d(torch.ones(1, 1, 9, 8, dtype=torch.float64), kernel, padding=1)[0]
    assert_close((near / weight)[:, missing], filled[:, missing])
    known = image[:, ~missing]
    assert (filled <= known.amax(dim=1)[:, None, None] + 1e-9).all()
    assert (filled >= known.amin(dim=1)[:, None, None] - 1e-9).all()


def test_nothing_missing_and_nothing_known():
    image = torch.randn(3, 5, 5)
    assert_close(impute(image, torch.zeros(5, 5, dtype=torch.bool)), image)
    blank = impute(image, torch.ones(5, 5, dtype=torch.bool))
    assert_close(blank, image.mean(dim=(1, 2), keepdim=True).expand_as(image))


# ---- the metric ------------------------------------------------------------------------------------------------------


def corner(images):
    """The first class is likelier the brighter the upper left corner is."""
    seen = images[:, :, :4, :4].mean(dim=(1, 2, 3))
    return torch.stack([2 * seen, torch.zeros_like(seen)], dim=1)


def bright(count=2):
    images = 0.1 * torch.randn(count, 3, 12, 12, dtype=torch.float64)
    images[:, :, :4, :4] += 2
    maps = torch.zeros(count, 12, 12, dtype=torch.float64)
    maps[:, :4, :4] = 1
    return images, maps + 1e-3 * torch.rand(count, 12, 12, dtype=torch.float64)


def test_the_true_map_beats_its_shuffle_beats_its_negative():
    images, true = bright(4)
    shuffled = true.flatten(1)[:, torch.randperm(144)].reshape(true.shape)
    best, chance, worst = (
        score(Case(adapt(corner), images, Logit(0), maps), "road") for maps in (true, shuffled, -true)
    )
    assert (best > chance).all()
    assert (chance > worst).all()
    assert_close(best, -worst, rtol=0, atol=0.05)  # the two sides change places


def test_the_variants_add_up_and_share_their_passes():
    images, maps = bright()
    case = Case(adapt(corner), images, Logit(0), maps)
    names = [f"road({SHORT}, variant='{variant}')" for variant in ("most", "least")]
    scores = judge(case, [f"road({SHORT})", *names])
    combined, most, least = scores.values()
    assert_close(combined, (most + least) / 2)
    assert scores.passes.forward == 2 * 5
    for name in (f"road({SHORT})", *names):
        alone = judge(Case(adapt(corner), images, Logit(0), maps), name)
        assert alone.passes.forward == 2 * parse_metric(name).cost(adapt(corner)).forward
    assert parse_metric("road").cost(adapt(corner)).forward == 19


def test_noise_depends_on_the_seed_and_the_image_alone():
    images, maps = bright(3)
    recipe = f"road({SHORT}, noise=0.5)"
    together = score(Case(adapt(corner), images, Logit(0), maps), recipe)
    alone = score(Case(adapt(corner), images[2:], Logit(0), maps[2:]), recipe)
    other = score(Case(adapt(corner), images, Logit(0), maps), f"road({SHORT}, noise=0.5, seed=1)")
    assert_close(together[2:], alone, rtol=0, atol=1e-12)
    assert not torch.allclose(together, other)


def test_a_positive_affine_change_of_the_map_changes_nothing():
    images, maps = bright()
    before, after = (score(Case(adapt(corner), images, Logit(0), each), "road") for each in (maps, 4 * maps + 2))
    assert_close(before, after)


@pytest.mark.parametrize("value", [0.0, -3.0])
def test_a_constant_map_scores_zero_and_is_flagged(value):
    images, maps = bright(1)
    scores = judge(Case(adapt(corner), images, Logit(0), torch.full_like(maps, value)), "road(noise=0.0)")
    assert next(iter(scores.values())).item() == pytest.approx(0)
    assert next(iter(scores.flags.values())) == ("constant map",)


def test_a_map_of_mostly_zeros_loses_everything_and_says_so():
    images, maps = bright(1)
    maps = torch.where(maps > 0.5, maps, 0)
    scores = judge(Case(adapt(corner), images, Logit(0), maps), "road")
    assert next(iter(scores.flags.values())) == ("nothing left to fill from",)
    assert torch.isfinite(next(iter(scores.values()))).all()


def test_a_tiny_transformer_and_a_single_huge_pixel(tiny_vit, images):
    maps = torch.zeros(2, 32, 32, dtype=torch.float64)
    maps[:, 3, 4] = 1e300
    assert torch.isfinite(score(Case(adapt(tiny_vit), images, Logit(1), maps), f"road({SHORT}, score='logit')")).all()


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ("road(percentiles=())", "from 0 to 100"),
        ("road(percentiles=(101.0,))", "between 0 and 100"),
        ("road(noise=-1.0)", "noise is between 0 and"),
        ("road(variant='both')", "variant='both'"),
    ],
)
def test_wrong_options_are_refused_at_once(recipe, said):
    with pytest.raises(RecipeError, match=said):
        parse_metric(recipe)


def test_percentiles_are_those_of_numpy():
    values = torch.rand(6, 7)
    found = _missing(values, (25.0, 80.0), negated=False)
    for row, percentile in enumerate((25, 80)):
        assert torch.equal(found[row], values >= float(np.percentile(values.numpy(), percentile)))
