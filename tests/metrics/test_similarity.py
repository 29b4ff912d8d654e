"""Similarities of maps against scipy and scikit-image, and their laws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.distance import cosine as scipy_cosine
from scipy.stats import pearsonr, rankdata, spearmanr
from skimage.metrics import structural_similarity
from torch.testing import assert_close

from sightline.errors import ShapeError
from sightline.metrics.similarity import SIMILARITIES, cosine, pearson, ranks, spearman, ssim

SHAPE = (3, 14, 17)


def maps(seed=0, shape=SHAPE, ties=False):
    random = np.random.default_rng(seed)
    values = random.integers(-3, 4, shape) if ties else random.normal(size=shape)
    return torch.from_numpy(values.astype(np.float64))


def by_image(function, one, other):
    return torch.tensor([float(function(a.numpy(), b.numpy())) for a, b in zip(one, other, strict=True)]).double()


@pytest.mark.parametrize("ties", [False, True])
def test_correlations_are_scipys(ties):
    one, other = maps(0, ties=ties), maps(1, ties=ties)
    want = [float(spearmanr(a.flatten(), b.flatten()).statistic) for a, b in zip(one, other, strict=True)]
    assert_close(spearman(one, other), torch.tensor(want, dtype=torch.float64), rtol=0, atol=1e-12)
    want = [float(pearsonr(a.flatten(), b.flatten()).statistic) for a, b in zip(one, other, strict=True)]
    assert_close(pearson(one, other), torch.tensor(want, dtype=torch.float64), rtol=0, atol=1e-12)
    want = [1 - float(scipy_cosine(a.flatten(), b.flatten())) for a, b in zip(one, other, strict=True)]
    assert_close(cosine(one, other), torch.tensor(want, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("odd", [[2.0, 2.0, 2.0], [1.0, float("nan"), 3.0]], ids=["constant", "not all numbers"])
def test_a_row_without_ranks_has_no_rank_correlation(odd):
    first, second = torch.tensor([[1.0, 2.0, 3.0], odd]), torch.tensor([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
    for one, other in ((first, second), (second, first)):
        assert_close(spearman(one, other), torch.tensor([-1.0, torch.nan]).double(), equal_nan=True)


def test_whole_numbers_are_ranked_too():
    assert_close(spearman(torch.tensor([[1, 2, 3]]), torch.tensor([[5, 9, 7]])), torch.tensor([0.5]).double())


def test_ranks_are_scipys_average_ranks():
    values = maps(2, ties=True).flatten(1)
    assert_close(ranks(values), torch.from_numpy(np.stack([rankdata(row) for row in values])))


def test_values_that_rounding_parted_share_a_rank_and_others_do_not():
    eps = torch.finfo(torch.float64).eps
    values = torch.tensor([[1.0, 1 + eps, 1 - eps, 1 + 1e-12, -2.0, 0.0, 1e-9]], dtype=torch.float64)
    assert ranks(values).tolist() == [[5, 5, 5, 7, 1, 2, 3]]


def test_an_enlarged_map_is_ranked_alike_in_a_batch_and_alone():
    coarse = maps(3, (3, 1, 4, 4))
    together = torch.nn.functional.interpolate(coarse, size=(32, 32), mode="bilinear")[:, 0]
    turned = torch.nn.functional.interpolate(coarse.mT, size=(32, 32), mode="bilinear")[:, 0].mT
    other = maps(4, (3, 32, 32))
    assert not torch.equal(together, turned)
    assert_close(spearman(together, other), spearman(turned, other), rtol=0, atol=1e-12)


def test_single_precision_is_as_good():
    one, other = maps(0, (2, 80, 80)).float(), maps(1, (2, 80, 80)).float()
    want = [float(spearmanr(a.flatten(), b.flatten()).statistic) for a, b in zip(one, other, strict=True)]
    assert_close(spearman(one, other), torch.tensor(want, dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("absolute", "spread"), [(False, 2.0), (True, 1.0)])
@pytest.mark.parametrize("shape", [SHAPE, (2, 11, 11), (2, 32, 40)])
def test_structural_similarity_is_that_of_scikit_image(absolute, spread, shape):
    one, other = maps(3, shape), maps(4, shape)
    other = other + 2 * one
    if absolute:
        one, other = one.abs(), other.abs()
    scaled = [values / values.abs().amax(dim=(1, 2), keepdim=True) for values in (one, other)]

    def theirs(a, b):
        options = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
        return structural_similarity(a, b, data_range=spread, **options)

    want = torch.tensor([theirs(a.numpy(), b.numpy()) for a, b in zip(*scaled, strict=True)], dtype=torch.float64)
    assert_close(ssim(one, other), want, rtol=0, atol=1e-12)


def test_on_a_map_smaller_than_the_window_structural_similarity_is_still_defined():
    one = maps(5, (2, 4, 3))
    assert_close(ssim(one, one), torch.ones(2, dtype=torch.float64))
    assert (ssim(one, maps(6, (2, 4, 3))) < 1).all()
    assert ssim(torch.ones(1, 1, 1), torch.ones(1, 1, 1)).item() == pytest.approx(1)


finite = arrays(np.float64, (2, 5, 6), elements=st.floats(-1e3, 1e3, width=32))


@settings(max_examples=40, deadline=None)
@given(finite, finite)
@pytest.mark.parametrize("name", SIMILARITIES)
def test_similarity_is_symmetric_and_at_most_one(name, one, other):
    one, other = torch.from_numpy(one), torch.from_numpy(other)
    function = SIMILARITIES[name]
    there, back = function(one, other), function(other, one)
    assert torch.equal(there.isnan(), back.isnan())
    assert_close(there, back, equal_nan=True, atol=1e-9, rtol=0)
    assert (there.nan_to_num(0.0).abs() <= 1 + 1e-9).all()


@pytest.mark.parametrize("name", SIMILARITIES)
@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1.0, 1e30, 1e200])
def test_a_map_is_like_itself_at_any_scale_and_unlike_its_negative(name, scale):
    one = maps(7)
    function = SIMILARITIES[name]
    assert_close(function(one * scale, one), torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-9)
    assert (function(one, -one) < 0).all() or name == "ssim"
    assert (function(one, maps(8)) < 0.5).all()


def test_structural_similarity_may_take_a_map_for_its_negative():
    one = maps(7) + 2  # mean and covariance both change sign, and their product does not
    assert (ssim(one, -one) > 0.2).all()
    assert (ssim(one, -one) < 1).all()


def test_ranks_and_correlation_ignore_shifts_and_the_cosine_does_not():
    one, other = maps(9), maps(10)
    assert_close(spearman(one * 3 + 5, other), spearman(one, other))
    assert_close(spearman(one.exp(), other), spearman(one, other))
    assert_close(pearson(one * 3 + 5, other), pearson(one, other))
    assert (cosine(one + 5, other + 5) > 0.9).all()


@pytest.mark.parametrize("value", [0.0, 0.1, -3.3, 1e-300])
def test_a_constant_map_has_no_correlation(value):
    flat = torch.full(SHAPE, value, dtype=torch.float64)
    for function in (spearman, pearson):
        assert function(flat, maps(11)).isnan().all()
        assert function(maps(11), flat).isnan().all()
        assert function(flat, flat).isnan().all()


def test_a_map_of_zeros_has_neither_angle_nor_structure():
    zero = torch.zeros(SHAPE)
    for function in (cosine, ssim):
        assert function(zero, maps(12).float()).isnan().all()


def test_one_bad_map_does_not_spoil_the_others():
    one = maps(13)
    one[1] = 0
    for function in SIMILARITIES.values():
        assert function(one, maps(14)).isnan().tolist() == [False, True, False]


def test_shapes_that_differ_are_refused():
    for function in SIMILARITIES.values():
        with pytest.raises(ShapeError, match="both must be"):
            function(torch.zeros(2, 4, 4), torch.zeros(2, 4, 5))
