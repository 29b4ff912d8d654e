"""Smooth Grad-CAM++: torchcam with the same noise, and Grad-CAM++ without any."""

from __future__ import annotations

import pytest
from tests.methods.peer_torchcam import torchcam_map
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline import errors
from sightline.perturb.noise import noisy_batches


def test_matches_torchcam_with_the_same_noise(tiny_cnn: nn.Module, images: Tensor, parity) -> None:
    tiny_cnn.relu.inplace = False  # type: ignore[union-attr]
    image = images[:1]
    ((noisy, _),) = noisy_batches(image, samples=3, noise=0.1, seed=0, batch=16)
    recipe = "smooth_grad_cam_pp(layer='conv3', samples=3, variant='torchcam')"
    got = sightline.explain(tiny_cnn, image, recipe, target=1).map
    noise = (noisy - image).split(1)
    want = torchcam_map("SmoothGradCAMpp", tiny_cnn, "conv3", image, 1, num_samples=3, noise=noise)
    assert_close(got.clamp(min=0), want, rtol=1e-5, atol=1e-9)
    parity("smooth_grad_cam_pp", "torchcam SmoothGradCAMpp", got.clamp(min=0), want, 1e-9)


@pytest.mark.parametrize("network", ["tiny_cnn", "tiny_vit"])
def test_without_noise_it_is_grad_cam_pp(network: str, images: Tensor, request) -> None:
    model = request.getfixturevalue(network)
    got = sightline.explain(model, images, "smooth_grad_cam_pp(samples=2, noise=0.0)", target=1).map
    assert_close(got, sightline.explain(model, images, "grad_cam_pp", target=1).map, rtol=1e-9, atol=1e-15)


def test_no_samples_are_refused() -> None:
    with pytest.raises(errors.RecipeError, match="samples=0"):
        sightline.parse("smooth_grad_cam_pp(samples=0)")
