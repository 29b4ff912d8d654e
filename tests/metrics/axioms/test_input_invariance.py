"""Input invariance: the shifted model answers as the model does, gradients do not change, products do."""

from __future__ import annotations

import pytest
import torch
from tests.models.fingerprint import fingerprint
from torch.testing import assert_close

from sightline import adapt, explain
from sightline.errors import RecipeError
from sightline.metrics.axioms.input_invariance import shifted_back
from sightline.metrics.case import Case
from sightline.metrics.judge import judge
from sightline.recipe import parse, parse_metric
from sightline.types import Logit


def score(model, images, method, recipe="input_invariance"):
    maps = explain(model, images, method, target=1).pixels()
    return judge(Case(adapt(model), images, Logit(1), maps, method=parse(method)), recipe)[recipe]


@pytest.mark.parametrize("kind", ["tiny_vit", "tiny_cnn"])
def test_the_shifted_model_answers_as_the_model_does_and_is_left_as_it_was(kind, request, images):
    model = request.getfixturevalue(kind)
    before = fingerprint(model)
    assert_close(shifted_back(adapt(model), images, 2.0), adapt(model).predict(images))
    assert fingerprint(model) == before


def test_a_function_is_shifted_too(images):
    model = adapt(lambda batch: batch.mean(dim=(2, 3)))
    assert_close(shifted_back(model, images, 2.0), model.predict(images))


@pytest.mark.parametrize(("kind", "method"), [("tiny_vit", "gradient"), ("tiny_vit", "gae"), ("tiny_cnn", "grad_cam")])
def test_what_does_not_multiply_by_the_image_is_invariant(kind, method, request, images):
    assert_close(score(request.getfixturevalue(kind), images, method), torch.zeros(2).double(), rtol=0, atol=1e-9)


def test_gradient_times_input_changes_by_the_gradient_times_the_shift(tiny_cnn, images):
    got = score(tiny_cnn, images, "ixg", "input_invariance(shift=0.5)")
    maps, gradient = (explain(tiny_cnn, images, recipe, target=1).pixels() for recipe in ("ixg", "gradient"))
    want = 0.5 * gradient.flatten(1).norm(dim=1) / maps.flatten(1).norm(dim=1)
    assert_close(got, want)


def test_no_shift_is_refused():
    with pytest.raises(RecipeError, match="got shift=0"):
        parse_metric("input_invariance(shift=0.0)")
