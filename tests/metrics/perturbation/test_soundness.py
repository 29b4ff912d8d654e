"""Soundness: closed forms on a model that looks at one half, imputation, and edges."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from sightline import adapt
from sightline.errors import RecipeError
from sightline.metrics.case import Case
from sightline.metrics.judge import judge
from sightline.metrics.perturbation.soundness import imputed
from sightline.perturb.impute import impute
from sightline.recipe import parse_metric
from sightline.types import Logit

FILLED = "soundness(steps=4, fill='zero')"


def left(images):
    """A model that adds up the left half."""
    seen = images[:, :, :, :4].mean(dim=(1, 2, 3))
    return torch.stack([4 * seen, torch.zeros_like(seen)], dim=1)


def score(maps, recipe=FILLED):
    return judge(Case(adapt(left), torch.ones(len(maps), 3, 8, 8), Logit(0), maps), recipe)


def test_attribution_where_the_model_looks_is_sound_and_elsewhere_is_not():
    maps = torch.zeros(3, 8, 8)
    maps[0, :, :4] = 1
    maps[1, :, 4:] = 1
    maps[2, :, :4], maps[2, :, 4:] = 1, 3
    assert_close(score(maps)[FILLED], torch.tensor([1.0, 0.0, 0.25], dtype=torch.float64))


def test_what_is_added_without_effect_counts_against_the_map():
    maps = torch.zeros(1, 8, 8)
    maps[:, :, :4], maps[:, :, 4:] = 2, 1
    assert score(maps)[FILLED].item() == pytest.approx(2 / 3)
    strict = "soundness(steps=4, fill='zero', threshold=0.9)"
    assert score(maps, strict)[strict].item() == 0.0


def test_a_map_without_a_positive_value_has_no_soundness():
    found = score(-torch.rand(1, 8, 8) - 0.1)
    assert found[FILLED].isnan().all()
    assert found.flags[FILLED] == ("no positive value",)


def test_pixels_are_imputed_by_default(tiny_cnn, images):
    maps = torch.rand(2, 32, 32)
    case = Case(adapt(tiny_cnn), images, Logit(1), maps)
    (curve,) = judge(case, "soundness(steps=2)").curves.values()
    missing = torch.ones(1024, dtype=torch.bool)
    missing[maps[0].flatten().argsort(descending=True)[:512]] = False
    with torch.no_grad():
        want = tiny_cnn(impute(images[0], missing.reshape(32, 32))[None]).softmax(dim=1)[0, 1]
    assert curve[0, 1].item() == pytest.approx(want.item(), abs=1e-9)
    assert_close(
        imputed(images, missing.reshape(1, 32, 32).expand(2, -1, -1))[1], impute(images[1], missing.reshape(32, 32))
    )


def test_wrong_options_are_refused():
    for recipe in ("soundness(steps=1)", "soundness(threshold=-1.0)", "soundness(fill='noise')"):
        with pytest.raises(RecipeError, match="got "):
            parse_metric(recipe)
