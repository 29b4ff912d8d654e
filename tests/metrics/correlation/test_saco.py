"""SaCo: its definition computed pair by pair, closed forms, and edges."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from sightline import adapt
from sightline.errors import RecipeError
from sightline.metrics.case import Case
from sightline.metrics.correlation.saco import saco
from sightline.metrics.judge import judge
from sightline.recipe import parse_metric
from sightline.types import Logit


def brightness(images):
    """The logit is the sum of the pixels, so what matters is how bright a pixel is."""
    seen = images.mean(dim=1).sum(dim=(1, 2)) / 8
    return torch.stack([seen, torch.zeros_like(seen)], dim=1)


def coefficient(images, maps, groups=10):
    """The definition, with loops."""
    order = maps.flatten().argsort(descending=True, stable=True)
    whole = brightness(images).softmax(dim=1)[0, 0]
    sums, drops = [], []
    for part in order.chunk(groups):
        without = images.clone().flatten(2)
        without[:, :, part] = images.mean(dim=(2, 3))[:, :, None]
        sums.append(maps.flatten()[part].sum())
        drops.append(whole - brightness(without.reshape(images.shape)).softmax(dim=1)[0, 0])
    above = below = 0.0
    for i in range(groups):
        for j in range(i + 1, groups):
            weight = sums[i] - sums[j]
            weight = weight if drops[i] >= drops[j] else -weight
            above, below = above + weight, below + abs(weight)
    return above / below


def test_it_is_its_definition():
    images = torch.rand(3, 3, 10, 10, dtype=torch.float64)
    maps = torch.randn(3, 10, 10, dtype=torch.float64)
    got = judge(Case(adapt(brightness), images, Logit(0), maps), "saco")["saco"]
    want = [coefficient(images[row : row + 1], maps[row]).item() for row in range(3)]
    assert got.tolist() == pytest.approx(want, abs=1e-12)


def test_the_right_order_scores_one_and_the_reverse_minus_one():
    images = torch.rand(2, 3, 10, 10, dtype=torch.float64)
    for sign in (1, -1):
        got = judge(Case(adapt(brightness), images, Logit(0), sign * images.mean(dim=1)), "saco")["saco"]
        assert_close(got, torch.full((2,), float(sign), dtype=torch.float64))


def test_confident_mistakes_weigh_more():
    drops = torch.tensor([[3.0, 1.0, 2.0]])
    little, much = saco(torch.tensor([[9.0, 2.0, 1.0]]), drops), saco(torch.tensor([[9.0, 8.0, 1.0]]), drops)
    assert little.item() == pytest.approx((7 + 8 - 1) / 16)
    assert much.item() == pytest.approx((1 + 8 - 7) / 16)


def test_random_maps_score_about_zero():
    images = torch.rand(48, 3, 10, 10, dtype=torch.float64)
    values = judge(Case(adapt(brightness), images, Logit(0), torch.randn(48, 10, 10)), "saco")["saco"]
    assert abs(values.mean()) < 3 * values.std() / 48**0.5


def test_a_single_group_is_refused():
    with pytest.raises(RecipeError, match="got groups=1"):
        parse_metric("saco(groups=1)")
