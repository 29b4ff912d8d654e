"""Grad-CAM: a closed form, then grad-cam in the same process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline.extras import repair_torchvision


def peer_map(model: nn.Module, layer: nn.Module, images: Tensor, target: int, tokens: bool = False) -> np.ndarray:
    """Grad-CAM of the package grad-cam: rectified and scaled to [0, 1] twice, at image size."""
    repair_torchvision()
    from pytorch_grad_cam import GradCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    reshape = (lambda x: x[:, 1:].transpose(1, 2).unflatten(-1, (4, 4))) if tokens else None
    with GradCAM(model, [layer], reshape_transform=reshape) as cam:
        found: np.ndarray = cam(images, [ClassifierOutputTarget(target)] * len(images))
    return found


def as_the_peer_shows(attribution: sightline.Attribution) -> Tensor:
    """Rectify and scale a map as grad-cam does, at image size."""
    low = attribution.map.clamp(min=0)
    low = (low - low.amin(dim=(1, 2), keepdim=True)) / (
        1e-7 + (low - low.amin(dim=(1, 2), keepdim=True)).amax(dim=(1, 2), keepdim=True)
    )
    shown = torch.nn.functional.interpolate(low[:, None], attribution.grid.image, mode="bilinear")[:, 0]
    return (shown - shown.amin(dim=(1, 2), keepdim=True)) / (1e-7 + shown.amax(dim=(1, 2), keepdim=True))


def test_matches_grad_cam_on_a_cnn(tiny_cnn: nn.Module, images: Tensor, parity) -> None:
    tiny_cnn.relu.inplace = False  # type: ignore[union-attr]  # the peer reads the activation after it was overwritten
    got = sightline.explain(tiny_cnn.float(), images.float(), "grad_cam(layer='conv3')", target=1)
    want = peer_map(tiny_cnn, tiny_cnn.conv3, images.float(), 1)  # type: ignore[arg-type]
    assert_close(as_the_peer_shows(got), torch.from_numpy(want), atol=1e-5, rtol=0)
    parity("grad_cam", "grad-cam GradCAM", as_the_peer_shows(got), want, 1e-5)


def test_matches_grad_cam_on_a_transformer(tiny_vit: nn.Module, images: Tensor, parity) -> None:
    got = sightline.explain(tiny_vit.float(), images.float(), "grad_cam", target=1)
    want = peer_map(tiny_vit, tiny_vit.blocks[-1].norm1, images.float(), 1, tokens=True)  # type: ignore[index,union-attr]
    assert_close(as_the_peer_shows(got), torch.from_numpy(want), atol=1e-5, rtol=0)
    parity("grad_cam", "grad-cam GradCAM", as_the_peer_shows(got), want, 1e-5)


def test_is_the_formula_written_out(tiny_cnn: nn.Module, images: Tensor) -> None:
    cnn: Any = tiny_cnn
    features = cnn.conv3(cnn.norm2(cnn.conv2(cnn.norm1(cnn.conv1(images)).relu())).relu()).detach()
    gradients = cnn.head.weight[2].detach()[:, None, None] * (features > 0) / features[0, 0].numel()
    want = (gradients.mean(dim=(2, 3), keepdim=True) * features).sum(dim=1)
    assert_close(sightline.explain(tiny_cnn, images, "grad_cam(layer='conv3')", target=2).map, want)


def test_of_pooled_linear_features_weighs_channels_by_the_head(images: Tensor) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)
    )
    model.double().eval()
    want = torch.einsum("k,bkij->bij", model[4].weight[2], model[:2](images)) / 900
    assert_close(sightline.explain(model, images, "grad_cam", target=2).map, want.detach())


def test_a_layer_can_be_named_or_counted(tiny_vit: nn.Module, images: Tensor) -> None:
    named = sightline.explain(tiny_vit, images, "grad_cam(layer='block.1.norm1')", target=0).map
    assert_close(named, sightline.explain(tiny_vit, images, "grad_cam(layer=1)", target=0).map)
    assert_close(named, sightline.explain(tiny_vit, images, "grad_cam(layer=-2)", target=0).map)
    with pytest.raises(sightline.errors.SiteError, match="got layer=3; VisionTransformer has blocks 0 to 2"):
        sightline.explain(tiny_vit, images, "grad_cam(layer=3)", target=0)
    with pytest.raises(sightline.errors.SiteError, match=r"did you mean 'block\.1\.norm1'"):
        sightline.explain(tiny_vit, images, "grad_cam(layer='blok.1.norm1')", target=0)


@pytest.mark.parametrize(
    "recipe",
    ["grad_cam", "grad_cam_pp", "xgrad_cam", "xgrad_cam_plus", "layer_cam", "hires_cam", "grad_cam_elementwise"],
)
def test_a_target_that_nothing_moves_has_a_map_of_zeros(recipe: str, tiny_cnn: nn.Module, images: Tensor) -> None:
    with torch.no_grad():
        tiny_cnn.head.bias[1] = 1e4  # type: ignore[index,union-attr]
    with pytest.warns(sightline.errors.SightlineWarning, match="constant map for 2 of 2 images"):
        got = sightline.explain(tiny_cnn, images, recipe, target=sightline.Probability(1))
    assert not got.values.any()
    assert got.flags == ("constant map",) * 2
