"""Checks that every call makes: quick forms of them answer as the slow ones do."""

from __future__ import annotations

import pytest
import torch
from tests import tiny
from torch import nn

import sightline
from sightline.models.passes import all_finite, modules_of


class Shared(nn.Module):
    """Modules used twice, and places with none."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
        self.second = nn.Sequential(self.first[1], nn.ModuleList([nn.Linear(2, 2), self.first]))
        self.absent = None
        self.register_module("empty", None)


@pytest.mark.parametrize("model", [Shared(), tiny.Cnn(), tiny.vit(), nn.Linear(1, 1)], ids=lambda m: type(m).__name__)
def test_modules_come_once_each_and_in_order(model):
    assert modules_of(model) == list(model.modules())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize(
    ("values", "finite"),
    [([1.0, -2.0], True), ([6e4, 6e4], True), ([1.0, float("nan")], False), ([float("inf"), -float("inf")], False)],
)
def test_a_sum_that_overflows_is_no_infinite_value(values, finite, dtype):
    assert all_finite(torch.tensor(values, dtype=dtype)) is finite


def test_values_whose_sum_overflows_in_single_precision_are_finite():
    assert all_finite(torch.full((4,), 3e38))
    assert not all_finite(torch.tensor([3e38, 3e38, float("nan")]))


def test_one_bad_pixel_is_still_refused(tiny_cnn, images):
    bad = images.clone()
    bad[1, 2, 3, 4] = float("nan")
    with pytest.raises(sightline.errors.InputError, match="NaN or infinite"):
        sightline.explain(tiny_cnn, bad, "gradient", target=1)


def test_weights_made_in_inference_mode_are_still_refused(images):
    with torch.inference_mode():
        model = tiny.Cnn().double().eval()
    with pytest.raises(sightline.errors.UnsupportedModel, match="inference_mode"):
        sightline.explain(model, images, "gradient", target=1)
