"""Guided backpropagation: closed forms, then captum and zennit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from captum.attr import Deconvolution, GuidedBackprop, GuidedGradCam
from tests import tiny
from tests.methods import reference_cnn
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import sightline
from sightline.models.passes import counting


class Rectified(nn.Module):
    """A convolution, a ReLU of some kind, a pool, a linear layer."""

    def __init__(self, rectify: Any) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.head = nn.Linear(6, 5)
        self.rectify = rectify
        tiny.awake(self)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.head(self.rectify(self.conv(images)).mean(dim=(2, 3)))
        return found


RELUS = {
    "module": nn.ReLU(),
    "in place": nn.ReLU(inplace=True),
    "function": F.relu,
    "tensor": Tensor.relu,
    "overwriting": torch.relu_,
    "clamp": lambda x: x.clamp(min=0),
    "clamp_min": lambda x: torch.clamp_min(x, 0),
}
CAPPED = {
    "module": nn.ReLU6(),
    "in place": nn.ReLU6(inplace=True),
    "function": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, 0.0, 6.0),
    "clamp": lambda x: torch.clamp(x, min=0, max=6),
    "overwritten": lambda x: F.relu6(x).add_(7),  # autograd lets a network write into the outputs of these three
    "overwritten clamp": lambda x: torch.clamp(x, 0, 6).add_(7),
    "overwritten in place": lambda x: torch.clamp_(x, 0, 6).add_(7),
}


def by_hand(model: Rectified, images: Tensor, ceiling: float) -> Tensor:
    """The guided gradient of class 2, written out."""
    features = model.conv(images).detach()
    gradient = (model.head.weight[2].detach()[:, None, None] / features[0, 0].numel()).clamp(min=0)
    gradient = gradient * ((features > 0) & (features < ceiling))
    return F.conv_transpose2d(gradient, model.conv.weight.detach(), padding=1).sum(dim=1)


@pytest.mark.parametrize("kind", RELUS)
def test_is_the_formula_written_out(kind: str, images: Tensor) -> None:
    model = Rectified(RELUS[kind]).double().eval()
    got = sightline.explain(model, images, "guided_backprop", target=2).map
    assert_close(got, by_hand(model, images, float("inf")))
    assert not torch.allclose(got, sightline.explain(model, images, "gradient", target=2).map)


@pytest.mark.parametrize("kind", CAPPED)
def test_a_relu_with_a_ceiling_is_one(kind: str, images: Tensor) -> None:
    model = Rectified(CAPPED[kind]).double().eval()
    images = 4 * images
    assert (model.conv(images) > 6).any()
    got = sightline.explain(model, images, "guided_backprop", target=2).map
    assert_close(got, by_hand(model, images, 6.0))
    plain = sightline.explain(model, images, "gradient", target=2).map
    assert_close(sightline.explain(model, images, "guided_backprop(variant='captum')", target=2).map, plain)


@pytest.mark.parametrize("name", reference_cnn.NAMES)
def test_matches_captum(name: str) -> None:
    model, image = reference_cnn.network(name)
    got = sightline.explain(model, image, "guided_backprop", target=reference_cnn.TARGET).map[0]
    reference_cnn.assert_same(got, reference_cnn.want(f"captum_guided_backprop_{name}"), 1e-12)


def test_matches_zennit_which_starts_from_the_logit() -> None:
    model, image = reference_cnn.network("tiny_resnet")
    got = sightline.explain(model, image, "guided_backprop", target=reference_cnn.TARGET).map[0]
    logit = float(reference_cnn.numbers("zennit_guided_backprop_tiny_resnet")["logit"])
    # zennit's merged batch norms still divide by the root of 1 + 1e-5
    reference_cnn.assert_same(got * logit, reference_cnn.want("zennit_guided_backprop_tiny_resnet"), 1e-4)


@pytest.mark.filterwarnings("ignore:Setting backward hooks")
def test_one_module_used_three_times_in_place_is_three_relus(tiny_cnn: nn.Module, images: Tensor) -> None:
    from captum.attr import GuidedBackprop

    apart = nn.Sequential(
        tiny_cnn.conv1, tiny_cnn.norm1, nn.ReLU(), tiny_cnn.conv2, tiny_cnn.norm2, nn.ReLU(),
        tiny_cnn.conv3, nn.ReLU(), tiny_cnn.pool, nn.Flatten(), tiny_cnn.head,
    )  # fmt: skip
    want = GuidedBackprop(apart).attribute(images.clone().requires_grad_(), target=1).sum(dim=1)
    assert_close(sightline.explain(tiny_cnn, images, "guided_backprop", target=1).map, want.detach())


@pytest.mark.parametrize(
    ("name", "file", "mode"),
    [
        ("tiny_resnet", "captum_guided_gradcam_tiny_resnet", "nearest"),
        ("tiny_vgg", "captum_guided_gradcam_tiny_vgg", "nearest"),
        ("tiny_cnn", "captum_guided_gradcam_bilinear_tiny_cnn", "bilinear"),
    ],
)
def test_guided_grad_cam_matches_captum(name: str, file: str, mode: str) -> None:
    model, image = reference_cnn.network(name)
    recipe = f"guided_grad_cam(layer='{reference_cnn.LAYERS[name]}', mode='{mode}')"
    got = sightline.explain(model, image, recipe, target=reference_cnn.TARGET).map[0]
    reference_cnn.assert_same(got, reference_cnn.want(file), 1e-12)


def test_guided_grad_cam_is_the_product_of_its_two_parts(tiny_cnn: nn.Module, images: Tensor) -> None:
    guided = sightline.explain(tiny_cnn, images, "guided_backprop", target=1)
    cam = sightline.explain(tiny_cnn, images, "rectify(grad_cam)", target=1)
    got = sightline.explain(tiny_cnn, images, "guided_grad_cam", target=1)
    assert_close(got.map, guided.map * cam.pixels())
    assert got.passes.forward == 2


@pytest.mark.parametrize("recipe", ["guided_backprop", "guided_grad_cam"])
def test_several_targets_share_the_forward_pass(recipe: str, tiny_cnn: nn.Module, images: Tensor) -> None:
    adapter, method = sightline.adapt(tiny_cnn), sightline.recipe.parse(recipe)
    targets = [sightline.Logit(0), sightline.Logit((1, 3)), sightline.Contrast(2, 4)]
    with torch.no_grad(), counting() as meter:
        found = method.multi_target(adapter, images, targets)  # type: ignore[attr-defined]
    assert meter.passes.forward == 2
    assert meter.passes.backward == pytest.approx(2 * method.multi_target_cost(adapter, 3).backward)  # type: ignore[attr-defined]
    for one, target in zip(found, targets, strict=True):
        assert_close(one.map, sightline.explain(tiny_cnn, images, recipe, target=target).map)


def test_a_network_without_relus_is_refused(images: Tensor) -> None:
    with pytest.raises(sightline.errors.UnsupportedModel, match="changes ReLUs, and Rectified has none"):
        sightline.explain(Rectified(nn.GELU()).double().eval(), images, "guided_backprop", target=1)


def test_a_transformer_is_refused(tiny_vit: nn.Module, images: Tensor) -> None:
    with pytest.raises(sightline.errors.UnsupportedModel, match="guided_backprop needs"):
        sightline.explain(tiny_vit, images, "guided_backprop", target=1)


@pytest.mark.filterwarnings("ignore:Setting")  # captum says what it hooks
@pytest.mark.parametrize("recipe", ["guided_backprop(variant='captum')", "guided_grad_cam(variant='captum')"])
def test_where_there_are_no_relus_captums_is_the_plain_gradient(recipe: str, images: Tensor) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    model.double().eval()
    pixels = images.clone().requires_grad_()
    peer = GuidedBackprop(model) if "backprop" in recipe else GuidedGradCam(model, model[1])
    want = peer.attribute(pixels, target=1, **({} if "backprop" in recipe else {"interpolate_mode": "bilinear"}))
    assert_close(sightline.explain(model, images, recipe, target=1).map, want.sum(dim=1).detach())


@pytest.mark.parametrize("recipe", ["guided_backprop(variant='x')", "guided_grad_cam(mode='x')"])
def test_an_unknown_option_is_refused(recipe: str) -> None:
    with pytest.raises(sightline.errors.RecipeError, match="'x'"):
        sightline.recipe.parse(recipe)


@pytest.mark.parametrize(
    ("recipe", "file", "tolerance"),
    [
        ("guided_backprop(variant='captum')", "captum_gradient_lite0", 1e-5),
        ("guided_grad_cam(variant='captum')", "captum_guided_gradcam_bilinear_lite0", 1e-5),
    ],
)
def test_matches_captum_on_a_photograph(recipe: str, file: str, tolerance: float, shared: Path) -> None:
    model = sightline.load("package/efficientnet_lite0")
    image = reference_cnn.photograph(shared)
    got = sightline.explain(model, image, recipe, target=155).map[0]
    want = np.load(shared / "golden" / "cnn_photo" / f"{file}.npz")["pixels"]
    reference_cnn.assert_same(got, torch.from_numpy(want), tolerance)


@pytest.mark.filterwarnings("ignore:Setting backward hooks")
@pytest.mark.parametrize("name", reference_cnn.NAMES)
def test_deconvnet_matches_captum(name: str, parity) -> None:
    model, image = reference_cnn.network(name)
    got = sightline.explain(model, image, "deconvnet", target=reference_cnn.TARGET).map
    want = Deconvolution(model).attribute(image.clone().requires_grad_(), target=reference_cnn.TARGET).sum(dim=1)
    assert_close(got, want.detach(), rtol=1e-9, atol=1e-12)
    parity("deconvnet", "captum Deconvolution", got, want, 1e-9)


def test_deconvnet_passes_positive_gradients_where_a_relu_was_silent(images: Tensor) -> None:
    model = Rectified(nn.ReLU6()).double().eval()
    silent = nn.Sequential(model.conv, nn.Identity())
    with torch.no_grad():
        pooled = model.head.weight[1].clamp(min=0) / 32**2  # the gradient at the ReLU, its positive part
        want = torch.nn.grad.conv2d_input(
            images.shape, model.conv.weight, pooled[:, None, None].expand_as(silent(images)), padding=1
        )
    assert_close(sightline.explain(model, images, "deconvnet", target=1).map, want.sum(dim=1))


def test_deconvnet_without_a_relu_is_refused(images: Tensor) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    with pytest.raises(sightline.errors.UnsupportedModel, match="a deconvnet changes ReLUs"):
        sightline.explain(model.double().eval(), images, "deconvnet", target=1)
