"""DAVE: the plain case is known, transformations are what they say, and each step is written out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import sightline
from sightline.methods.gradient import dave


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave every copy where it is."""
    monkeypatch.setattr(dave, "random_map", lambda generator: torch.eye(2, 3))


@pytest.mark.usefixtures("still")
def test_without_noise_and_transformations_it_is_balanced_input_times_gradient(tiny_vit: nn.Module, images: Tensor):
    got = sightline.explain(tiny_vit, images, "dave(samples=3, noise=0.0, output='signed')", target=1)
    want = sightline.explain(tiny_vit, images, "libra(ixg(at='pixels'))", target=1)
    assert_close(got.map, want.map, rtol=1e-9, atol=1e-12)
    assert (got.passes.forward, got.passes.backward) == (3 * len(images), 3 * len(images))


def test_the_gradient_goes_through_transformation_and_noise(tiny_vit: nn.Module, images: Tensor):
    """One copy by hand: autograd through the same map and the same noise, with balanced gradients."""
    image = images[:1]
    random = dave.generators(0, image)[0]
    steps = [(dave.random_map(random), dave.normal(image[0], random)) for _ in range(2)]
    parts = []
    for share, (turned, noise) in zip((0.0, 0.5), steps, strict=True):
        pixels = image.clone().requires_grad_()
        seen = (1 - share) * dave.transformed(pixels, turned[None]) + math.sqrt(1 - (1 - share) ** 2) * noise
        with dave.balanced():
            (gradient,) = torch.autograd.grad(tiny_vit(seen)[0, 1], pixels)
        parts.append(gradient * image)
    want = dave.mean_without_outliers(torch.stack(parts, dim=1)).sum(dim=1)
    got = sightline.explain(tiny_vit, image, "dave(samples=2, noise=0.5, output='signed')", target=1)
    assert_close(got.map, want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("height", "width"), [(21, 21), (21, 33)])
def test_a_transformation_is_flip_turn_scale_and_shift(height: int, width: int):
    """The brightest pixel goes where trigonometry says, counted in pixels on any sides."""
    angle, factor, shift = math.radians(90), 1.0, (0.2, 0.0)  # a tenth of the width to the right
    cosine, sine = math.cos(angle) / factor, math.sin(angle) / factor
    turned = torch.tensor([[cosine, sine, shift[0]], [-sine, cosine, shift[1]]])
    image = torch.zeros(1, 1, height, width)
    image[0, 0, height // 2, width // 2 + 5] = 1.0
    moved = dave.transformed(image, turned[None])[0, 0]
    row, column = divmod(int(moved.argmax()), width)
    assert (row - height // 2, column - width // 2) == (5, round(0.1 * width))
    flipped = dave.transformed(image, torch.tensor([[[-1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]]))
    assert_close(flipped, image.flip(-1))


def test_drawn_transformations_stay_in_their_ranges():
    random = torch.Generator().manual_seed(0)
    maps = torch.stack([dave.random_map(random) for _ in range(200)])
    scale = 1 / maps[:, :, :2].det().abs().sqrt()
    angle = torch.atan2(-maps[:, 1, 0], maps[:, 1, 1]).rad2deg()
    assert 0.9 <= scale.min() < 0.92 < 1.08 < scale.max() <= 1.1
    assert -20 <= angle.min() < -18 < 18 < angle.max() <= 20
    assert maps[:, :, 2].abs().max() <= 0.2
    assert 70 < (maps[:, :, :2].det() < 0).sum() < 130


def test_outliers_are_left_out_of_the_mean():
    values = torch.tensor([[[1.0], [2.0], [3.0], [4.0], [90.0]]], dtype=torch.float64)
    assert dave.mean_without_outliers(values).item() == pytest.approx(2.5)


def test_filters_are_a_half_blur_and_a_bilateral_filter():
    maps = torch.randn(1, 9, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    positive = maps.relu()[0]
    line = torch.exp(-(torch.arange(-5.0, 6.0, dtype=torch.float64) ** 2) / 98)
    kernel = torch.outer(line, line)
    blurred = F.conv2d(positive[None, None], (kernel / kernel.sum())[None, None], padding=5)[0, 0]
    half = F.pad((positive + blurred) / 2, (2, 2, 2, 2))
    want = torch.zeros(9, 8, dtype=torch.float64)
    for row in range(9):
        for column in range(8):
            total = weight = 0.0
            for down in range(5):
                for right in range(5):
                    value, centre = half[row + down, column + right], half[row + 2, column + 2]
                    near = math.exp(-((down - 2) ** 2 + (right - 2) ** 2) / 0.5)
                    near *= math.exp(-((float(value - centre) / 0.05) ** 2) / 2)
                    total, weight = total + near * float(value), weight + near
            want[row, column] = total / (weight + 1e-8)
    assert_close(dave.filtered(maps)[0], want, rtol=1e-9, atol=1e-12)


def test_a_map_is_of_pixels_and_nowhere_negative_unless_asked(tiny_vit: nn.Module, images: Tensor):
    found = sightline.explain(tiny_vit, images, ["dave(samples=4)", "dave(samples=4, output='signed')"], target=1)
    plain, signed = (each.map for each in found)
    assert plain.shape[-2:] == images.shape[-2:]
    assert plain.min() >= 0 < plain.max()
    assert signed.min() < 0
