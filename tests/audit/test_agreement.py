"""How far maps agree, also where models see different crops."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from sightline.audit.agreement import agreements


def test_the_correlation_is_scipys():
    random = np.random.default_rng(0)
    one, other = random.integers(0, 5, (2, 12, 9)).astype(float)
    (_, measured), _ = agreements([(one, None), (other, None)])
    assert measured == pytest.approx(spearmanr(one.ravel(), other.ravel()).statistic)


def test_a_constant_map_agrees_with_nothing():
    assert np.isnan(agreements([(np.zeros((4, 4)), None), (np.arange(16.0).reshape(4, 4), None)])[0][1])


def test_maps_of_different_crops_are_compared_where_both_see():
    columns = np.tile(np.arange(100.0), (100, 1))
    whole, right = (columns, (0.0, 0.0, 100.0, 100.0)), (columns[:, 50:], (50.0, 0.0, 100.0, 100.0))
    assert agreements([whole, right])[0][1] == pytest.approx(1, abs=1e-6)
    mirrored = (columns[:, 50:][:, ::-1], right[1])
    assert agreements([whole, mirrored])[0][1] == pytest.approx(-1, abs=1e-6)


def test_crops_that_do_not_meet_have_nothing_to_compare():
    values = np.arange(100.0).reshape(10, 10)
    assert np.isnan(agreements([(values, (0.0, 0.0, 4.0, 4.0)), (values, (5.0, 5.0, 9.0, 9.0))])[0][1])
