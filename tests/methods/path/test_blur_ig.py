"""Blur integrated gradients: the blur, what the path adds up to, and the authors' program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import saliency.core as pair
import torch
from scipy.ndimage import gaussian_filter
from tests import tiny
from tests.methods import reference_cnn
from tests.methods.path.test_guided_ig import gradient_of
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline.methods.path.blur_ig import blur
from sightline.models.passes import counting


def peer_says(model: nn.Module, image: Tensor, target: int, **options: Any) -> Tensor:
    pixels = image[0].permute(1, 2, 0).double().numpy()
    ask = gradient_of(model, target, image.dtype)
    return torch.from_numpy(pair.BlurIG().GetMask(pixels, ask, **options)).sum(dim=-1)


@pytest.mark.parametrize(
    ("recipe", "key"),
    [
        ("blur_ig", "default"),
        ("blur_ig(steps=20, sigma=10.0)", "s20"),
        ("blur_ig(steps=20, sigma=10.0, variant='sqrt')", "s20sqrt"),
    ],
)
def test_matches_its_authors_numbers(recipe: str, key: str) -> None:
    model, image = reference_cnn.network("tiny_cnn")
    got = sightline.explain(model, image, recipe, target=2).map[0]
    reference_cnn.assert_same(got, reference_cnn.want("paths", f"blur_ig_{key}_tiny_cnn"), 1e-9)


@pytest.mark.parametrize("variant", ["linear", "sqrt"])
def test_matches_its_authors_program(variant: str, tiny_cnn: nn.Module, parity) -> None:
    image = torch.randn(1, 3, 20, 28, dtype=torch.float64)
    want = peer_says(tiny_cnn, image, 1, steps=9, max_sigma=6, sqrt=variant == "sqrt")
    got = sightline.explain(tiny_cnn, image, f"blur_ig(steps=9, sigma=6.0, {variant=})", target=1).map[0]
    reference_cnn.assert_same(got, want, 1e-9)
    parity("blur_ig", "PAIR BlurIG", got, want, 1e-9)


def test_matches_its_authors_program_on_a_photograph(shared: Path) -> None:
    adapter, image = sightline.load("package/efficientnet_lite0"), reference_cnn.photograph(shared)
    adapter.batch = 1  # in single precision the model itself answers batches a little differently
    want = peer_says(adapter.model, image, 155, steps=5, max_sigma=20)
    got = sightline.explain(adapter, image, "blur_ig(steps=5, sigma=20.0)", target=155).map[0]
    reference_cnn.assert_same(got, want, 1e-5)


@pytest.mark.slow
def test_matches_its_authors_numbers_on_a_photograph(shared: Path) -> None:
    adapter, image = sightline.load("package/efficientnet_lite0"), reference_cnn.photograph(shared)
    adapter.batch = 1
    want = np.load(shared / "golden" / "cnn_photo" / "blur_ig_s20_lite0.npz")["pixels"]
    got = sightline.explain(adapter, image, "blur_ig(steps=20, sigma=20.0)", target=155).map[0]
    reference_cnn.assert_same(got, torch.from_numpy(want), 1e-4)


@pytest.mark.parametrize("sigma", [0.01, 0.13, 1.0, 7.3, 50.0])
def test_blurs_as_scipy_does(sigma: float) -> None:
    image = torch.randn(3, 17, 24, dtype=torch.float64)
    want = gaussian_filter(image.numpy(), (0, sigma, sigma), mode="constant")
    assert_close(blur(image, sigma), torch.from_numpy(want))


def test_no_blur_is_the_image() -> None:
    image = torch.randn(3, 9, 9, dtype=torch.float64)
    assert torch.equal(blur(image, 0.0), image)


@pytest.mark.parametrize("variant", ["linear", "sqrt"])
def test_sums_to_the_difference_of_the_two_ends(variant: str, images: Tensor) -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 5, 4), nn.SiLU(), nn.Flatten(), nn.Linear(294, 5))
    tiny.awake(model).double().eval()
    blurred = torch.stack([blur(image, 2.0) for image in images])
    with torch.no_grad():
        want = (model(images) - model(blurred))[:, 3]
    sigma = 2.0 if variant == "linear" else 4.0  # whose root is where the path begins
    got = sightline.explain(model, images, f"blur_ig(steps=2000, {sigma=}, {variant=})", target=3).map
    assert_close(got.sum(dim=(1, 2)), want, rtol=0.03, atol=0)


def test_a_linear_network_gives_the_weight_times_the_growing_detail(images: Tensor) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(900, 5)).double().eval()
    pixels = images.clone().requires_grad_()
    (weight,) = torch.autograd.grad(model(pixels)[:, 1].sum(), pixels)
    detail = [
        torch.stack([(blur(x, sigma) - blur(x, sigma + 0.01)) / 0.01 for x in images]) for sigma in (0, 1.5, 3, 4.5)
    ]
    got = sightline.explain(model, images, "blur_ig(steps=4, sigma=6.0)", target=1).map
    assert_close(got, (weight * sum(detail) * 1.5).sum(dim=1))


def test_several_targets_share_the_passes_forward(tiny_cnn: nn.Module, images: Tensor) -> None:
    adapter, method = sightline.adapt(tiny_cnn), sightline.parse("blur_ig(steps=5, sigma=5.0)")
    with torch.no_grad(), counting() as meter:
        sightline.methods.multi_target.multi_target(
            method, adapter, images, [sightline.Logit(0), sightline.Logit((1, 2))]
        )
    assert meter.passes == sightline.types.Passes(8, 16)


@pytest.mark.parametrize("options", ["steps=1", "sigma=0.0", "sigma=1e999", "variant='cubic'"])
def test_wrong_options_are_refused(options: str) -> None:
    with pytest.raises(sightline.errors.RecipeError):
        sightline.parse(f"blur_ig({options})")
