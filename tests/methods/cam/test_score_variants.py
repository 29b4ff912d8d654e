"""SS-CAM, IS-CAM and gScoreCAM: torchcam with the same noise, and Score-CAM where they are Score-CAM."""

from __future__ import annotations

import pytest
import torch
from tests.methods.peer_torchcam import torchcam_map
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import sightline
from sightline import errors
from sightline.seeds import generators, normal


def not_in_place(model: nn.Module) -> nn.Module:
    model.relu.inplace = False  # type: ignore[union-attr]  # the peer reads the activation after it was overwritten
    return model


def test_ss_cam_matches_torchcam_with_the_same_noise(tiny_cnn: nn.Module, images: Tensor, parity) -> None:
    image, model = images[:1], not_in_place(tiny_cnn)
    got = sightline.explain(model, image, "ss_cam(layer='conv3', samples=3, noise=0.5)", target=1).map
    (generator,) = generators(0, image)
    noise = [0.5 * torch.stack([normal(image[0, :1], generator) for _ in range(12)]).movedim(1, 0) for _ in range(3)]
    want = torchcam_map("SSCAM", model, "conv3", image, 1, num_samples=3, std=0.5, noise=noise)
    assert_close(got.clamp(min=0), want, rtol=1e-5, atol=1e-7)
    parity("ss_cam", "torchcam SSCAM", got.clamp(min=0), want, 1e-9)


def test_is_cam_matches_torchcam(tiny_cnn: nn.Module, images: Tensor, parity) -> None:
    model = not_in_place(tiny_cnn)
    got = sightline.explain(model, images, "is_cam(layer='conv3', samples=4, variant='torchcam')", target=1).map
    want = torchcam_map("ISCAM", model, "conv3", images, 1, num_samples=4)
    assert_close(got.clamp(min=0), want, rtol=1e-5, atol=1e-7)
    parity("is_cam", "torchcam ISCAM", got.clamp(min=0), want, 1e-9)


@pytest.mark.parametrize("recipe", ["ss_cam(samples=2, noise=0.0)", "is_cam(samples=1)"])
@pytest.mark.parametrize("network", ["tiny_cnn", "tiny_vit"])
def test_without_noise_or_growth_they_are_score_cam(recipe: str, network: str, images: Tensor, request) -> None:
    model = request.getfixturevalue(network)
    want = sightline.explain(model, images, "score_cam(variant='torchcam')", target=1).map
    assert_close(sightline.explain(model, images, recipe, target=1).map, want)


def test_gscore_cam_of_all_channels_is_score_cam(tiny_cnn: nn.Module, images: Tensor) -> None:
    want = sightline.explain(tiny_cnn, images, "score_cam", target=1).map
    assert_close(sightline.explain(tiny_cnn, images, "gscore_cam", target=1).map, want, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_gscore_cam_is_its_formula(variant: str, tiny_cnn: nn.Module, images: Tensor) -> None:
    model, image = not_in_place(tiny_cnn), images[:1]
    with torch.no_grad():
        x = model.relu(model.norm2(model.conv2(model.relu(model.norm1(model.conv1(image))))))  # type: ignore[operator]
    feature = model.conv3(x).detach().requires_grad_()  # type: ignore[operator]
    score = model.head(model.pool(model.relu(feature)).flatten(1))[0, 1]  # type: ignore[operator]
    (gradient,) = torch.autograd.grad(score, feature)
    chosen = gradient.mean(dim=(2, 3))[0].argsort(descending=True)[:4]
    scores = torch.zeros(12, dtype=torch.float64)
    for channel in chosen:
        mask = F.interpolate(feature[:, channel : channel + 1].detach(), (32, 32), mode="bilinear", align_corners=True)
        mask = (mask - mask.min()) / (mask.max() - mask.min() + 1e-6)
        scores[channel] = model(image * mask)[0, 1].detach()
    weights = (
        scores.softmax(dim=0)
        if variant == "released"
        else torch.zeros(12).double().scatter(0, chosen, scores[chosen].softmax(dim=0))
    )
    want = (weights[:, None, None] * feature[0].detach()).sum(dim=0)
    recipe = f"gscore_cam(layer='conv3', channels=4, variant='{variant}')"
    assert_close(sightline.explain(model, image, recipe, target=1).map[0], want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("recipe", ["ss_cam(samples=0)", "is_cam(samples=0)", "gscore_cam(channels=0)"])
def test_nothing_to_score_is_refused(recipe: str) -> None:
    with pytest.raises(errors.RecipeError, match="=0"):
        sightline.parse(recipe)
