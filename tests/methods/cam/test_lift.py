"""LIFT-CAM: the closed form, completeness, and the authors' numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.methods import reference_cnn
from tests.methods.peer_cam import against_reference
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline.methods.cam.lift import _contributions
from sightline.models.passes import counting


def contributions(model: nn.Module, image: Tensor, layer: str, target: int = 2) -> tuple[Tensor, Tensor]:
    """Return what each value of the layer contributes, and the rise of the logit from an empty feature map."""
    adapter: Any = sightline.adapt(model)
    with torch.no_grad():
        activation = adapter.trunk(image, layer)
        ends = [adapter.tail(x, layer)[0, target] for x in (activation, torch.zeros_like(activation))]
        return _contributions(adapter, layer, activation, [sightline.Logit(target)])[0][0], ends[0] - ends[1]


@pytest.mark.parametrize("network", ["tiny_resnet", "tiny_vgg"])
def test_matches_its_authors_program(network: str) -> None:
    against_reference("lift_cam", network, "lift_cam", 1e-6, rectified=True)
    model, image = reference_cnn.network(network)
    found, rise = contributions(model, image, reference_cnn.LAYERS[network])
    assert_close(found.sum(dim=(1, 2)), reference_cnn.want("cams", f"lift_cam_alpha_{network}"), atol=1e-12, rtol=1e-9)
    assert_close(found.sum(), rise)


def test_after_a_pool_of_means_and_a_linear_layer_is_the_closed_form() -> None:
    model, image = reference_cnn.network("tiny_cnn")
    cnn: Any = model
    features = cnn.features(image)
    alpha = cnn.fc.weight[2] * features.mean(dim=(2, 3))
    want = torch.einsum("bk,bkij->bij", alpha, features).detach()
    assert_close(sightline.explain(model, image, "lift_cam", target=2).map, want)


@pytest.mark.filterwarnings("ignore:Setting forward, backward hooks")
@pytest.mark.parametrize("network", ["tiny_cnn", "tiny_resnet", "tiny_vgg"])
def test_contributions_are_those_of_deep_lift(network: str) -> None:
    """Captum's DeepLIFT through the pool and the linear layers that follow; its rule for max pools is not complete."""
    captum = pytest.importorskip("captum.attr")
    model, image = reference_cnn.network(network)
    cnn: Any = model
    layer = {"tiny_cnn": "features.8", "tiny_resnet": "layer4", "tiny_vgg": "features.9"}[network]
    rest = nn.Sequential(cnn.pool, nn.Flatten(), getattr(cnn, "classifier", None) or cnn.fc).eval()
    found, _ = contributions(model, image, layer)
    adapter: Any = sightline.adapt(model)
    with torch.no_grad():
        activation = adapter.trunk(image, layer)
    want = captum.DeepLift(rest).attribute(activation.clone().requires_grad_(), target=2).detach()
    assert_close(found, want[0])
    deep_map = torch.einsum("bk,bkij->bij", want.sum(dim=(2, 3)), activation)
    assert_close(sightline.explain(model, image, f"lift_cam(layer={layer!r})", target=2).map, deep_map)


@pytest.mark.parametrize("network", reference_cnn.NAMES)
def test_contributions_add_up_through_convolutions_norms_and_in_place_relus(network: str) -> None:
    model, image = reference_cnn.network(network)
    layer = "layer3" if network == "tiny_resnet" else "features.5"
    if network == "tiny_vgg":
        model.features[9] = nn.AvgPool2d(2)  # type: ignore[index,operator]
    found, rise = contributions(model, image, layer)
    assert_close(found.sum(), rise)


@pytest.mark.parametrize("curve", [nn.ReLU6(inplace=True), nn.SiLU(), nn.GELU(), nn.Sigmoid(), nn.LeakyReLU(0.2)])
def test_slopes_are_those_between_both_ends(curve: nn.Module, images: Tensor) -> None:
    model = nn.Sequential(
        *(nn.Conv2d(3, 6, 5, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 8)),
        *(curve, nn.Linear(8, 4)),
    )
    model.double().eval()
    image = images[:1]
    features = model[:2](image)
    hidden, empty = model[4](features.mean(dim=(2, 3))), model[4].bias
    slope = (curve(hidden.clone()) - curve(empty.clone())) / (hidden - empty)
    alpha = (model[6].weight[1] * slope) @ model[4].weight * features.mean(dim=(2, 3))
    want = torch.einsum("bk,bkij->bij", alpha, features).detach()
    assert_close(sightline.explain(model, image, "lift_cam(layer='1')", target=1).map, want)


class Wave(nn.Module):
    """A call that bends its input and has no rule."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sin()


def with_head(*head: nn.Module) -> nn.Module:
    body = nn.Conv2d(3, 6, 5, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*body, *head, nn.Linear(6, 4)).double().eval()


def test_a_head_with_a_norm_adds_up(images: Tensor) -> None:
    found, rise = contributions(with_head(nn.LayerNorm(6)), images[:1], "1")
    assert_close(found.sum(), rise)


def test_a_head_that_does_not_add_up_is_refused(images: Tensor) -> None:
    with pytest.raises(sightline.errors.UnsupportedModel, match=r"do not add up to the score.*use ablation_cam"):
        sightline.explain(with_head(Wave()), images, "lift_cam(layer='1')", target=1)


def test_a_transformer_is_refused(tiny_vit: nn.Module, images: Tensor) -> None:
    with pytest.raises(sightline.errors.UnsupportedModel):
        sightline.explain(tiny_vit, images, "lift_cam", target=1)


@pytest.mark.parametrize("network", ["tiny_resnet", "tiny_vgg"])
def test_several_targets_share_the_passes_forward(network: str) -> None:
    model, image = reference_cnn.network(network)
    adapter, method = sightline.adapt(model), sightline.recipe.parse("lift_cam")
    targets = [sightline.Logit(0), sightline.Contrast(2, 1)]
    with torch.no_grad(), counting() as meter:
        together = sightline.methods.multi_target.multi_target(method, adapter, image, targets)
    declared = sightline.methods.multi_target.multi_target_cost(method, adapter, 2)
    assert meter.passes.forward == pytest.approx(declared.forward)
    assert meter.passes.backward == pytest.approx(declared.backward)
    with torch.no_grad():
        for target, got in zip(targets, together, strict=True):
            assert_close(got.values, method(adapter, image, target).values)
