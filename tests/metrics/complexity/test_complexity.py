from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy
from tests.methods import reference_cnn
from torch.testing import assert_close

from sightline import adapt
from sightline.metrics.case import Case
from sightline.metrics.judge import judge
from sightline.types import Logit

NAMES = ["sparseness", "complexity"]


def scores_of(maps):
    maps = torch.as_tensor(maps)
    model = adapt(lambda images: images.mean(dim=(2, 3)))
    return judge(Case(model, torch.zeros(len(maps), 3, *maps.shape[1:]), Logit(0), maps), NAMES)


def values_of(maps):
    scores = scores_of(maps)
    return [scores[name].item() for name in NAMES]


def test_they_are_those_of_quantus():
    numbers = reference_cnn.numbers("metric_quantus_tiny_cnn")
    maps = torch.from_numpy(numbers["attribution"]).sum(dim=0)[None]
    want = [numbers["sparseness_1ch"].item(), numbers["complexity_1ch"].item()]
    assert values_of(maps) == pytest.approx(want, abs=1e-5)


def test_by_hand():
    assert values_of([[[1.0, -3.0]]]) == pytest.approx([0.25, -0.25 * math.log(0.25) - 0.75 * math.log(0.75)])


@pytest.mark.parametrize("value", [1.0, -4.0, 1e308])
def test_a_constant_map_is_as_even_as_can_be_and_flagged(value):
    maps = torch.full((1, 5, 6), value, dtype=torch.float64)
    assert values_of(maps) == pytest.approx([0, math.log(30)])
    assert scores_of(maps).flags == dict.fromkeys(NAMES, ("constant map",))


def test_a_single_pixel_is_as_short_as_can_be():
    maps = torch.zeros(1, 5, 6)
    maps[0, 2, 2] = -7
    assert values_of(maps) == pytest.approx([1 - 1 / 30, 0])


def test_a_map_of_zeros_is_not_judged():
    scores = scores_of(torch.zeros(1, 4, 4))
    assert all(torch.isnan(scores[name]).all() for name in NAMES)
    assert scores.flags["sparseness"] == ("constant map; zero map",)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), factor=st.sampled_from([0.5, -2.0, 1e9]))
def test_bounds_scale_and_peers(seed, factor):
    maps = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    scores, scaled = scores_of(maps), scores_of(factor * maps)
    size = maps.flatten(1).abs().numpy()
    want = entropy(size / size.sum(axis=1, keepdims=True), axis=1)
    assert_close(scores["complexity"], torch.from_numpy(want))
    pairs = np.abs(size[:, :, None] - size[:, None, :]).sum(axis=(1, 2))  # the Gini index is the mean difference
    assert_close(scores["sparseness"], torch.from_numpy(pairs / (2 * 30 * size.sum(axis=1))))
    for name in NAMES:
        assert_close(scores[name], scaled[name])
    assert ((scores["sparseness"] >= 0) & (scores["sparseness"] < 1)).all()
    assert ((scores["complexity"] >= 0) & (scores["complexity"] <= math.log(30))).all()


def test_the_order_of_the_pixels_does_not_matter_and_no_model_runs():
    maps = torch.randn(1, 6, 5)
    shuffled = maps.flatten()[torch.randperm(30)].reshape(maps.shape)
    assert values_of(maps) == pytest.approx(values_of(shuffled))
    assert scores_of(maps).passes.forward == 0


def test_sharpening_makes_a_map_sparser_and_simpler():
    maps = torch.rand(1, 8, 8)
    (gini, nats), (sharper, fewer) = values_of(maps), values_of(maps**3)
    assert sharper > gini
    assert fewer < nats
