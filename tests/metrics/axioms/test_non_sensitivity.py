"""Non-sensitivity and effective complexity: Quantus on cells of one pixel, closed forms, and edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.metrics import peer_quantus
from tests.metrics.peer_quantus import SIDE, plain, quantus

from sightline import adapt
from sightline.errors import RecipeError
from sightline.metrics.case import Case
from sightline.metrics.judge import judge
from sightline.recipe import parse_metric
from sightline.types import Logit


def score(case, recipe):
    return judge(case, recipe)[recipe]


def sparse():
    """A case with zeros in its maps and dark pixels in its images, which black does not change."""
    case = peer_quantus.case()
    images, maps = case.images.clone(), case.maps.clone()
    images[..., 6:] = 0
    maps[:, :, 3:9] = 0
    return Case(case.model, images, case.target, maps / maps.abs().amax(dim=(1, 2), keepdim=True))


def test_non_sensitivity_is_that_of_quantus_where_a_cell_is_a_pixel(parity):
    case = sparse()
    metric = quantus.NonSensitivity(features_in_step=1, perturb_baseline="black", **plain())
    given = peer_quantus.batch() | {
        "x_batch": case.images[:, :1].numpy(),
        "a_batch": case.maps[:, None].abs().numpy(),
    }
    want = np.asarray(metric.evaluate_batch(**given)) / SIDE**2
    recipe = f"non_sensitivity(grid=({SIDE}, {SIDE}), samples=1, fill='black')"
    assert score(case, recipe).tolist() == pytest.approx(want.tolist())
    parity("non_sensitivity", "quantus NonSensitivity", score(case, recipe), want, 0.0)


def test_effective_complexity_is_that_of_quantus(parity):
    case = sparse()
    metric = quantus.EffectiveComplexity(**plain())
    want = metric.evaluate_batch(a_batch=case.maps[:, None].abs().numpy(), x_batch=case.images.numpy())
    assert score(case, "effective_complexity").tolist() == want.tolist()
    assert score(case, "effective_complexity(threshold=0.5)").tolist() == [
        int((each.abs() > 0.5).sum()) for each in case.maps
    ]
    parity("effective_complexity", "quantus EffectiveComplexity", score(case, "effective_complexity"), want, 0.0)


def left(images):
    """A model that looks at the left half."""
    seen = images[:, :, :, :4].mean(dim=(1, 2, 3))
    return torch.stack([seen, torch.zeros_like(seen)], dim=1)


@pytest.mark.parametrize(("share", "want"), [("left", 0.0), ("right", 1.0), ("everywhere", 0.5), ("nowhere", 0.5)])
def test_the_difference_of_where_the_map_is_and_where_the_model_looks(share, want):
    maps = torch.zeros(1, 8, 8)
    maps[:, :, {"left": slice(0, 4), "right": slice(4, 8), "everywhere": slice(0, 8), "nowhere": slice(0)}[share]] = 1
    images = torch.rand(1, 3, 8, 8)
    assert score(Case(adapt(left), images, Logit(0), maps), "non_sensitivity(grid=(2, 2))").item() == want


@pytest.mark.parametrize(
    "recipe", ["non_sensitivity(grid=(0, 1))", "non_sensitivity(threshold=2.0)", "effective_complexity(threshold=-1.0)"]
)
def test_wrong_options_are_refused(recipe):
    with pytest.raises(RecipeError, match="got "):
        parse_metric(recipe)
