"""Smooth and efficient MPRT: Quantus' entropy, what controls score, and how they meet the plain test."""

from __future__ import annotations

import pytest
import torch
from tests.metrics.peer_quantus import quantus
from torch.testing import assert_close

from sightline import adapt, explain
from sightline.errors import RecipeError
from sightline.metrics.case import Case
from sightline.metrics.judge import judge
from sightline.metrics.sanity.mprt import histogram_entropy
from sightline.metrics.sanity.randomisation import random_maps
from sightline.recipe import parse, parse_metric
from sightline.types import Logit


def case_of(model, images, recipe="ixg"):
    maps = explain(model, images, recipe, target=1).pixels()
    return Case(adapt(model), images, Logit(1), maps, method=parse(recipe))


def test_the_entropy_is_that_of_quantus():
    maps = torch.randn(3, 20, 20, dtype=torch.float64)
    want = [quantus.complexity_func.discrete_entropy(a=each.numpy(), x=each.numpy()) for each in maps]
    assert histogram_entropy(maps, 100).tolist() == pytest.approx(want, abs=1e-12)


def test_the_efficient_form_is_the_relative_rise_of_that_entropy(tiny_cnn, images, parity):
    case = case_of(tiny_cnn, images)
    (randomised,) = random_maps(case, 1)
    entropy = [
        [quantus.complexity_func.discrete_entropy(a=each.numpy(), x=each.numpy()) for each in maps]
        for maps in (case.maps, randomised)
    ]
    want = [(after - before) / before for before, after in zip(*entropy, strict=True)]
    assert judge(case, "efficient_mprt")["efficient_mprt"].tolist() == pytest.approx(want, abs=1e-9)
    parity("efficient_mprt", "quantus discrete_entropy", judge(case, "efficient_mprt")["efficient_mprt"], want, 1e-6)


def test_a_method_that_ignores_the_model_does_not_rise(tiny_cnn, images):
    case = case_of(tiny_cnn, images, "sobel")
    assert_close(judge(case, "efficient_mprt")["efficient_mprt"], torch.zeros(2, dtype=torch.float64))
    assert_close(judge(case, "smooth_mprt(stages=2)")["smooth_mprt(stages=2)"], torch.ones(2, dtype=torch.float64))


def test_without_noise_the_smooth_form_is_the_plain_test(tiny_cnn, images):
    case = case_of(tiny_cnn, images)
    smooth, plain = "smooth_mprt(stages=3, samples=2, noise=0.0)", "randomisation_spearman(stages=3)"
    scores = judge(case, [smooth, plain])
    assert_close(scores[smooth], scores[plain])
    assert_close(scores.curves[smooth], scores.curves[plain])


def test_noise_belongs_to_the_image_and_the_seed(tiny_cnn, images):
    recipe = "smooth_mprt(stages=1, samples=2)"
    whole, alone = (judge(case_of(tiny_cnn, each), recipe)[recipe] for each in (images, images[1:]))
    assert_close(alone, whole[1:])
    other = "smooth_mprt(stages=1, samples=2, seed=1)"
    assert not torch.equal(judge(case_of(tiny_cnn, images), other)[other], whole)


@pytest.mark.parametrize("recipe", ["efficient_mprt(bins=1)", "smooth_mprt(samples=0)", "smooth_mprt(noise=-1.0)"])
def test_wrong_options_are_refused(recipe):
    with pytest.raises(RecipeError, match="got "):
        parse_metric(recipe)
