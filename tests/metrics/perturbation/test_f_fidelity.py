"""F-Fidelity: closed forms on a model that looks at one half, the fine-tuned model, and edges."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

from sightline import adapt
from sightline.errors import RecipeError
from sightline.metrics.case import Case
from sightline.metrics.judge import judge
from sightline.metrics.perturbation.f_fidelity import FFidelityMinus, FFidelityPlus
from sightline.recipe import parse_metric
from sightline.types import Logit


class LeftHalf(nn.Module):
    """Right when at least 95 % of the left half is there."""

    def __init__(self, needed=0.95):
        super().__init__()
        self.needed = nn.Parameter(torch.tensor(needed))

    def forward(self, images):
        seen = images[:, :, :, :10].mean(dim=(1, 2, 3)) - self.needed
        return torch.stack([seen, -seen], dim=1)


def case_of(side, needed=0.95):
    maps = torch.zeros(1, 20, 20)
    maps[:, :, side] = 1
    return Case(adapt(LeftHalf(needed).eval()), torch.ones(1, 3, 20, 20), Logit(0), maps)


def test_a_map_of_what_the_model_looks_at_loses_inside_and_not_outside():
    plus, minus = FFidelityPlus(sizes=(0.5,)), FFidelityMinus(sizes=(0.5,))
    scores = judge(case_of(slice(0, 10)), [plus, minus])
    assert [values.item() for values in scores.values()] == [1.0, 0.0]
    scores = judge(case_of(slice(10, 20)), [plus, minus])
    assert [values.item() for values in scores.values()] == [0.0, 1.0]


def test_no_more_is_removed_than_the_model_was_tuned_with():
    """A tenth of the image, 40 pixels of the left half's 200, leaves 80 % of it."""
    inside = case_of(slice(0, 10), needed=0.79)
    assert judge(inside, "f_fidelity_plus(sizes=(0.5,))")["f_fidelity_plus(sizes=(0.5,))"].item() == 0.0
    more = "f_fidelity_plus(sizes=(0.5,), most=0.2)"
    assert judge(inside, more)[more].item() == 1.0


def test_the_tuned_model_is_the_one_that_is_asked():
    case = case_of(slice(0, 10))
    for tuned in (LeftHalf(0.1).eval(), adapt(LeftHalf(0.1).eval())):
        scores = judge(case, [FFidelityPlus(sizes=(0.5,), tuned=tuned)])
        assert next(iter(scores.values())).item() == 0.0


def test_draws_belong_to_the_image(tiny_cnn, images):
    maps = torch.rand(2, 32, 32)
    recipe = "f_fidelity_plus(score='probability')"
    whole = judge(Case(adapt(tiny_cnn), images, Logit(1), maps), recipe)[recipe]
    alone = judge(Case(adapt(tiny_cnn), images[1:], Logit(1), maps[1:]), recipe)[recipe]
    assert alone.item() == pytest.approx(whole[1].item(), abs=1e-9)


def test_a_model_cannot_be_written_in_a_recipe():
    with pytest.raises(RecipeError, match="from Python alone"):
        parse_metric("f_fidelity_plus(tuned='resnet50')")
    with pytest.raises(RecipeError, match="got sizes="):
        parse_metric("f_fidelity_plus(sizes=())")
    assert pickle.loads(pickle.dumps(FFidelityPlus())) == FFidelityPlus()
