"""Single deletion: scipy's correlation on changes computed one by one, what is known in closed form, and edges."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import spearmanr
from torch.testing import assert_close

from sightline import adapt
from sightline.errors import RecipeError
from sightline.metrics.case import Case
from sightline.metrics.judge import judge
from sightline.recipe import parse_metric
from sightline.types import Logit


def score(case, recipe="single_deletion"):
    return judge(case, recipe)[recipe]


def test_it_is_scipys_correlation_of_changes_computed_by_hand(tiny_cnn, images):
    maps = torch.randn(2, 32, 32, dtype=torch.float64)
    got = score(Case(adapt(tiny_cnn), images, Logit((1, 3)), maps))
    for row, target in enumerate((1, 3)):
        sums, drops = [], []
        with torch.no_grad():
            for top in range(0, 32, 8):
                for left in range(0, 32, 8):
                    cell = (slice(top, top + 8), slice(left, left + 8))
                    without = images[row : row + 1].clone()
                    without[..., cell[0], cell[1]] = 0
                    drops.append((tiny_cnn(images[row : row + 1]) - tiny_cnn(without))[0, target].item())
                    sums.append(maps[row][cell].sum().item())
        assert got[row].item() == pytest.approx(spearmanr(sums, drops).statistic, abs=1e-9)


def linear(images):
    weights = torch.linspace(-1, 1, 144, dtype=torch.float64).reshape(12, 12)
    seen = (images.mean(dim=1) * weights).sum(dim=(1, 2))
    return torch.stack([seen, -seen], dim=1)


def contributions(images):
    return images.mean(dim=1) * torch.linspace(-1, 1, 144, dtype=torch.float64).reshape(12, 12)


@pytest.mark.parametrize("grid", [(4, 4), (3, 2), (12, 12)])
def test_the_contributions_of_a_linear_model_score_one_and_their_negative_minus_one(grid):
    images = torch.rand(2, 3, 12, 12, dtype=torch.float64)
    for sign in (1, -1):
        case = Case(adapt(linear), images, Logit(0), sign * contributions(images))
        assert_close(score(case, f"single_deletion(grid={grid})"), torch.full((2,), float(sign), dtype=torch.float64))


def test_random_maps_score_about_zero():
    images = torch.rand(64, 3, 12, 12, dtype=torch.float64)
    values = score(Case(adapt(linear), images, Logit(0), torch.randn(64, 12, 12)))
    assert abs(values.mean()) < 3 * 0.26 / 8
    assert 0.18 < values.std() < 0.34  # one over the root of fifteen


def test_a_model_that_does_not_look_is_not_judged():
    case = Case(adapt(lambda images: images[:, :, 0, 0] * 0), torch.rand(1, 3, 8, 8), Logit(0), torch.rand(1, 8, 8))
    scores = judge(case, "single_deletion")
    assert scores["single_deletion"].isnan().all()
    assert scores.flags["single_deletion"] == ("the score does not change",)


@pytest.mark.parametrize("options", ["grid=(1, 1)", "grid=(0, 4)", "radius=9", "fill='grey'"])
def test_wrong_options_are_refused(options):
    with pytest.raises(RecipeError):
        parse_metric(f"single_deletion({options})")
