"""Grad-CAM++, XGrad-CAM and XGrad-CAM+: laws, the authors' numbers, and grad-cam in the same process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.methods import reference_cnn
from tests.methods.peer_cam import against_reference, as_the_peer_shows, peer_map
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline.methods.multi_target import multi_target

PEERS = {"grad_cam_pp": "GradCAMPlusPlus", "xgrad_cam": "XGradCAM"}


def pooled(images: Tensor) -> tuple[nn.Sequential, Tensor]:
    """A feature map after a ReLU, global average pooling and a linear layer; and the feature map."""
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))
    model.double().eval()
    return model, model[:2](images).detach()


@pytest.mark.parametrize("network", reference_cnn.NAMES)
@pytest.mark.parametrize("recipe", PEERS)
def test_matches_the_reference_numbers_of_grad_cam(recipe: str, network: str) -> None:
    against_reference(recipe, network, f"pgc_{recipe}", 1e-9)


def test_xgrad_cam_matches_its_authors_program() -> None:
    against_reference("xgrad_cam(variant='authors')", "tiny_cnn", "xgrad_cam", 1e-5, rectified=True)


@pytest.mark.parametrize("recipe", PEERS)
def test_matches_grad_cam_on_a_cnn(recipe: str, tiny_cnn: nn.Module, images: Tensor, parity) -> None:
    tiny_cnn.relu.inplace = False  # type: ignore[union-attr]  # the peer reads the activation after it was overwritten
    got = sightline.explain(tiny_cnn.float(), images.float(), f"{recipe}(layer='conv3')", target=1)
    want = peer_map(PEERS[recipe], tiny_cnn, tiny_cnn.conv3, images.float(), 1)
    assert_close(as_the_peer_shows(got), want, atol=1e-5, rtol=0)
    parity(recipe, f"grad-cam {PEERS[recipe]}", as_the_peer_shows(got), want, 1e-5)


@pytest.mark.parametrize("recipe", PEERS)
def test_matches_grad_cam_on_a_transformer(recipe: str, tiny_vit: nn.Module, images: Tensor, parity) -> None:
    got = sightline.explain(tiny_vit, images, recipe, target=1)
    want = peer_map(PEERS[recipe], tiny_vit, tiny_vit.blocks[-1].norm1, images, 1)  # type: ignore[index,union-attr]
    assert_close(as_the_peer_shows(got).float(), want.float(), atol=1e-5, rtol=0)
    parity(recipe, f"grad-cam {PEERS[recipe]}", as_the_peer_shows(got), want, 1e-5)


@pytest.mark.parametrize("recipe", PEERS)
def test_matches_grad_cam_on_a_photograph(recipe: str, shared: Path) -> None:
    model, image = sightline.load("package/efficientnet_lite0"), reference_cnn.photograph(shared)
    got = sightline.explain(model, image, recipe, target=155).map[0]
    want = np.load(shared / "golden" / "cnn_photo" / f"pgc_{recipe}_lite0.npz")["map"]
    reference_cnn.assert_same(got, torch.from_numpy(want), 1e-5)


@pytest.mark.parametrize("recipe", ["xgrad_cam", "xgrad_cam_plus"])
def test_equals_grad_cam_where_the_gradient_is_the_same_in_every_cell(recipe: str, images: Tensor) -> None:
    model, _ = pooled(images)
    got, want = (sightline.explain(model, images, name, target=2).map for name in (recipe, "grad_cam"))
    assert_close(got, want, rtol=1e-5, atol=1e-9)


def test_grad_cam_pp_is_the_formula_written_out(images: Tensor) -> None:
    model, features = pooled(images)
    gradient = model[4].weight[2].detach() / 900
    total = features.sum(dim=(2, 3))
    weights = 900 * gradient**2 / (2 * gradient**2 + total * gradient**3 + 1e-6) * gradient.clamp(min=0)
    want = torch.einsum("bk,bkij->bij", weights, features)
    assert_close(sightline.explain(model, images, "grad_cam_pp", target=2).map, want)


def test_xgrad_cam_sums_to_gradient_times_activation(images: Tensor) -> None:
    model = reference_cnn.network("tiny_vgg")[0]
    sums = [sightline.explain(model, images, name, target=2).map.sum(dim=(1, 2)) for name in ("xgrad_cam", "hires_cam")]
    assert_close(*sums, rtol=1e-5, atol=1e-6)


def test_xgrad_cam_plus_is_xgrad_cam_where_nothing_is_negative() -> None:
    model, image = reference_cnn.network("tiny_resnet")
    got, want = (sightline.explain(model, image, name, target=2).map for name in ("xgrad_cam_plus", "xgrad_cam"))
    assert_close(got, want, rtol=0, atol=1e-12)


def test_xgrad_cam_plus_is_the_formula_written_out_on_tokens(tiny_vit: nn.Module, images: Tensor) -> None:
    adapter = sightline.adapt(tiny_vit)
    with adapter.capture("block.*.input", gradient=True) as seen:
        score = adapter(images)[:, 3]
    found = adapter.gradients(score, seen)
    got = sightline.explain(tiny_vit, images, "xgrad_cam_plus(variant='stream')", target=3)
    for index, (name, gradient) in enumerate(found.items()):
        x = seen[name].detach()
        weights = (gradient * x.abs()).sum(dim=1) / (x.abs().sum(dim=1) + 1e-7)
        want = torch.einsum("bk,bnk->bn", weights, x)[:, 1:].unflatten(1, (4, 4))
        assert_close(got.values[index], want)


@pytest.mark.parametrize("recipe", [*PEERS, "xgrad_cam_plus"])
def test_layers_can_be_summed(recipe: str, tiny_vit: nn.Module, tiny_cnn: nn.Module, images: Tensor) -> None:
    layers = sightline.explain(tiny_vit, images, f"{recipe}(variant='stream')", target=0).values
    assert len(layers) == 3
    assert_close(sightline.explain(tiny_vit, images, f"plus({recipe})", target=0).map, layers.sum(dim=0))
    with pytest.raises(sightline.errors.UnsupportedMethod, match=f"{recipe} has one layer on Cnn"):
        sightline.explain(tiny_cnn, images, f"{recipe}(variant='stream')", target=0)


def test_several_targets_share_the_forward_pass(tiny_cnn: nn.Module, images: Tensor) -> None:
    adapter, method = sightline.adapt(tiny_cnn), sightline.recipe.parse("xgrad_cam_plus")
    targets = [sightline.Logit(0), sightline.Logit(3)]
    with torch.no_grad():
        together: list[Any] = multi_target(method, adapter, images, targets)
        for target, got in zip(targets, together, strict=True):
            assert_close(got.values, method(adapter, images, target).values)


@pytest.mark.parametrize("recipe", ["grad_cam_pp", "xgrad_cam", "xgrad_cam_plus"])
def test_an_unknown_variant_is_refused(recipe: str) -> None:
    with pytest.raises(sightline.errors.RecipeError, match="'x'"):
        sightline.recipe.parse(f"{recipe}(variant='x')")
