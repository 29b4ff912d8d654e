"""Layer-CAM, HiResCAM and element-wise Grad-CAM: laws, reference numbers, and grad-cam in the same process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.methods import reference_cnn
from tests.methods.peer_cam import against_reference, as_the_peer_shows, peer_map
from torch import Tensor, nn
from torch.testing import assert_close

import sightline

PEERS = {"layer_cam": "LayerCAM", "hires_cam": "HiResCAM", "grad_cam_elementwise": "GradCAMElementWise"}
FILES = {"layer_cam": "layer_cam", "hires_cam": "hires_cam", "grad_cam_elementwise": "gradcam_elementwise"}


@pytest.mark.parametrize("network", reference_cnn.NAMES)
@pytest.mark.parametrize("recipe", PEERS)
def test_matches_the_reference_numbers_of_grad_cam(recipe: str, network: str) -> None:
    against_reference(recipe, network, f"pgc_{FILES[recipe]}", 1e-9)


@pytest.mark.parametrize("network", reference_cnn.NAMES)
def test_layer_cam_matches_its_authors_program(network: str) -> None:
    against_reference("layer_cam", network, "layer_cam", 1e-6)


@pytest.mark.parametrize("recipe", PEERS)
def test_matches_grad_cam_on_a_cnn(recipe: str, tiny_cnn: nn.Module, images: Tensor, parity) -> None:
    tiny_cnn.relu.inplace = False  # type: ignore[union-attr]  # the peer reads the activation after it was overwritten
    got = sightline.explain(tiny_cnn.float(), images.float(), f"{recipe}(layer='conv3')", target=1)
    want = peer_map(PEERS[recipe], tiny_cnn, tiny_cnn.conv3, images.float(), 1)
    assert_close(as_the_peer_shows(got), want, atol=1e-5, rtol=0)
    parity(recipe, f"grad-cam {PEERS[recipe]}", as_the_peer_shows(got), want, 1e-5)


@pytest.mark.parametrize("recipe", PEERS)
def test_matches_grad_cam_on_a_transformer(recipe: str, tiny_vit: nn.Module, images: Tensor, parity) -> None:
    got = sightline.explain(tiny_vit.float(), images.float(), recipe, target=1)
    want = peer_map(PEERS[recipe], tiny_vit, tiny_vit.blocks[-1].norm1, images.float(), 1)  # type: ignore[index,union-attr]
    assert_close(as_the_peer_shows(got), want, atol=1e-5, rtol=0)
    parity(recipe, f"grad-cam {PEERS[recipe]}", as_the_peer_shows(got), want, 1e-5)


@pytest.mark.parametrize("recipe", PEERS)
def test_matches_grad_cam_on_a_photograph(recipe: str, shared: Path) -> None:
    model, image = sightline.load("package/efficientnet_lite0"), reference_cnn.photograph(shared)
    got = sightline.explain(model, image, recipe, target=155).map[0]
    want = np.load(shared / "golden" / "cnn_photo" / f"pgc_{FILES[recipe]}_lite0.npz")["map"]
    reference_cnn.assert_same(got, torch.from_numpy(want), 1e-5)


def test_hires_cam_sums_to_the_logit_less_its_bias(images: Tensor) -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 3, 4), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 64, 4)).double().eval()
    got = sightline.explain(model, images, "hires_cam(layer='1')", target=2).map.sum(dim=(1, 2))
    assert_close(got, (model(images)[:, 2] - model[3].bias[2]).detach())


def test_hires_cam_equals_grad_cam_after_a_pool_of_means() -> None:
    model, image = reference_cnn.network("tiny_resnet")
    got, want = (sightline.explain(model, image, name, target=2).map for name in ("hires_cam", "grad_cam"))
    assert_close(got, want)


def test_hires_cam_of_the_stream_is_gradient_times_token(tiny_vit: nn.Module, images: Tensor) -> None:
    got = sightline.explain(tiny_vit, images, "hires_cam(variant='stream')", target=2).values
    assert_close(got, sightline.explain(tiny_vit, images, "ixg", target=2).values)


def test_parts_add_up_on_signed_activations(tiny_vit: nn.Module, images: Tensor) -> None:
    def of(name: str, sign: str = "") -> Tensor:
        target = (lambda logits: -logits[:, 1]) if sign else 1
        return sightline.explain(tiny_vit, images, name, target=target).map

    assert_close(of("layer_cam") - of("layer_cam", "-"), of("hires_cam"))
    assert_close(of("grad_cam_elementwise") - of("grad_cam_elementwise", "-"), of("hires_cam"))
    assert (of("grad_cam_elementwise") >= 0).all()
    assert (of("layer_cam") < 0).any()


@pytest.mark.parametrize("recipe", PEERS)
def test_an_unknown_variant_is_refused(recipe: str) -> None:
    with pytest.raises(sightline.errors.RecipeError, match="'x'"):
        sightline.recipe.parse(f"{recipe}(variant='x')")
