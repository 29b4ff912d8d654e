"""Class activation maps of several layers, of the layer each family calls for, and as others' repositories run them."""

from __future__ import annotations

import pytest
import torch
from tests.methods import reference_cnn
from tests.models.families_cnn import FAMILIES
from tests.models.families_cnn import images as family_images
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import sightline
from sightline.extras import repair_torchvision
from sightline.methods.cam.fusion import fused

GRADIENT = ("grad_cam", "grad_cam_pp", "xgrad_cam", "xgrad_cam_plus", "layer_cam", "hires_cam", "grad_cam_elementwise")
EVERY = (*GRADIENT, "ablation_cam", "score_cam", "lift_cam", "eigen_cam")
PEERS = {"grad_cam": "GradCAM", "grad_cam_pp": "GradCAMPlusPlus", "xgrad_cam": "XGradCAM", "layer_cam": "LayerCAM"}


@pytest.mark.parametrize("recipe", PEERS)
def test_the_mean_of_several_layers_is_that_of_grad_cam(recipe: str, parity) -> None:
    repair_torchvision()
    peer = pytest.importorskip("pytorch_grad_cam")
    targets = pytest.importorskip("pytorch_grad_cam.utils.model_targets")
    model, image = reference_cnn.network("tiny_resnet")
    with getattr(peer, PEERS[recipe])(model, [model.layer2, model.layer3, model.layer4]) as cam:
        want = torch.from_numpy(cam(image, [targets.ClassifierOutputTarget(2)]))[0]
    text = f"{recipe}(layer=('layer2', 'layer3', 'layer4'), fusion='mean')"
    got = sightline.explain(model, image, text, target=2).map[0]
    got = (got - got.min()) / (1e-7 + (got - got.min()).max())  # the peer scales the mean once more
    assert_close(got.float(), want.float(), atol=1e-5, rtol=0)
    parity(recipe, f"grad-cam {PEERS[recipe]}", got, want, 1e-5)


def test_layer_cam_scales_shallow_maps_by_tanh_and_takes_the_largest() -> None:
    model, image = reference_cnn.network("tiny_resnet")
    got = sightline.explain(model, image, "layer_cam(layer=('layer2', 'layer3', 'layer4'))", target=2).map
    shown = []
    for layer in ("layer2", "layer3", "layer4"):
        one = sightline.explain(model, image, f"layer_cam(layer={layer!r})", target=2).map.clamp(min=0)
        one = one / one.max()
        one = one if layer == "layer4" else torch.tanh(2 * one)
        shown.append(F.interpolate(one[:, None], (64, 64), mode="bilinear")[:, 0])
    assert_close(got, torch.stack(shown).amax(dim=0))


def test_what_is_weak_in_a_shallow_layer_is_brought_out() -> None:
    shallow, deep = torch.tensor([[[1.0, 0.25], [0.0, 0.5]]]), torch.tensor([[[0.0, 0.0], [2.0, 1.0]]])
    got = fused([shallow, deep], torch.zeros(1, 3, 2, 2), "tanh").map
    want = torch.tensor([[[2.0, 0.5], [0.0, 1.0]]]).tanh()
    want[0, 1] = torch.tensor([1.0, torch.tensor(1.0).tanh()])
    assert_close(got, want)


@pytest.mark.parametrize("fusion", ["mean", "tanh"])
def test_maps_without_anything_positive_stay_zero(fusion: str) -> None:
    maps = [-torch.rand(1, 2, 2), -torch.rand(1, 4, 4)]
    assert torch.equal(fused(maps, torch.zeros(1, 3, 8, 8), fusion).map, torch.zeros(1, 8, 8))  # type: ignore[arg-type]


@pytest.mark.parametrize("recipe", EVERY)
def test_every_map_takes_several_layers_and_costs_what_it_says(recipe: str) -> None:
    model, image = reference_cnn.network("tiny_resnet")
    text = f"{recipe}(layer=('layer3', -1))"
    adapter = sightline.adapt(model)
    got = sightline.explain(adapter, image, text, target=2)
    singles = [sightline.explain(model, image, f"{recipe}(layer={name!r})", target=2) for name in ("layer3", "layer4")]
    method = sightline.parse(text)
    assert_close(got.map, fused([one.map for one in singles], image, method.fusion).map)  # type: ignore[attr-defined]
    cost = method.cost(adapter)
    assert got.passes.forward == pytest.approx(cost.forward, abs=1e-6)
    assert got.passes.backward == pytest.approx(cost.backward, abs=1e-6)
    if recipe in GRADIENT:
        assert got.passes.forward == 1
        assert got.passes.backward == pytest.approx(singles[0].passes.backward)


def test_a_dense_layers_concatenation_can_be_one_of_several() -> None:
    adapter, x = sightline.adapt(FAMILIES["torchvision densenet"].build()), family_images()[:1]
    text = "layer_cam(layer=('features.denseblock3.denselayer1.concat', 'features.norm5'))"
    got = sightline.explain(adapter, x, text, target=1)
    assert got.passes.forward == pytest.approx(2)
    assert got.passes.backward == pytest.approx(sightline.parse(text).cost(adapter).backward)


def test_several_blocks_of_a_transformer(tiny_vit: nn.Module, images: Tensor) -> None:
    got = sightline.explain(tiny_vit, images, "grad_cam(layer=(0, 1, 2))", target=1)
    singles = [sightline.explain(tiny_vit, images, f"grad_cam(layer={i})", target=1).map for i in range(3)]
    assert_close(got.map, fused(singles, images, "mean").map)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_right_layer_is_chosen_for_every_family(name: str) -> None:
    family, x = FAMILIES[name], family_images()[:1]
    model = sightline.adapt(family.build())  # surveyed once
    assert [model.layer(each) for each in (None, -1, -2)] == [family.cam, family.cam, family.before]
    for recipe in ("grad_cam", "layer_cam"):
        chosen = sightline.explain(model, x, recipe, target=1)
        assert (chosen.grid.height, chosen.grid.width) == (family.grid, family.grid)
        assert_close(chosen.map, sightline.explain(model, x, f"{recipe}(layer={family.cam!r})", target=1).map)
    both = sightline.explain(model, x, f"layer_cam(layer=({family.before!r}, {family.cam!r}))", target=0)
    assert both.map.shape == (1, *x.shape[-2:])
    assert both.map.min() >= 0


@pytest.mark.parametrize("recipe", EVERY)
@pytest.mark.parametrize("options", ["layer=()", "layer=(None,)", "fusion='x'"])
def test_layers_and_fusions_are_checked(recipe: str, options: str) -> None:
    with pytest.raises(sightline.errors.RecipeError):
        sightline.recipe.parse(f"{recipe}({options})")


@pytest.mark.parametrize(
    ("recipe", "file"),
    [("grad_cam", "gradcam"), ("grad_cam_pp", "gradcampp"), ("xgrad_cam", "x_gradcam")],
)
def test_matches_the_repository_of_iia(recipe: str, file: str) -> None:
    model, image = reference_cnn.network("tiny_resnet")
    got = sightline.explain(model, image, f"{recipe}(variant='iia')", target=2).map[0]
    if recipe == "grad_cam":
        got = got.clamp(min=0)
    if recipe == "grad_cam_pp":
        got = got * model(image)[0, 2].detach().exp()  # one factor for the whole map
    reference_cnn.assert_same(got, reference_cnn.want("cams", f"iia_baseline_{file}_tiny_resnet"), 1e-9)


@pytest.mark.parametrize("network", ["tiny_cnn", "tiny_resnet"])
def test_matches_captums_layer_grad_cam(network: str) -> None:
    model, image = reference_cnn.network(network)
    got = sightline.explain(model, image, "grad_cam", target=reference_cnn.TARGET).map[0]
    reference_cnn.assert_same(got, reference_cnn.want("cams", f"captum_layer_gradcam_{network}"), 1e-9)


@pytest.mark.parametrize("network", reference_cnn.NAMES)
def test_grad_cam_matches_the_reference_numbers_of_grad_cam(network: str) -> None:
    model, image = reference_cnn.network(network)
    recipe = f"grad_cam(layer={reference_cnn.LAYERS[network]!r})"
    got = sightline.explain(model, image, recipe, target=reference_cnn.TARGET).map[0]
    reference_cnn.assert_same(got, reference_cnn.want("cams", f"pgc_grad_cam_{network}"), 1e-9)


def test_grad_cam_matches_the_script_of_xgrad_cams_authors() -> None:
    model, image = reference_cnn.network("tiny_cnn")
    got = sightline.explain(model, image, "grad_cam", target=reference_cnn.TARGET).map[0].clamp(min=0)
    reference_cnn.assert_same(got, reference_cnn.want("cams", "xgrad_cam_gradcam_tiny_cnn"), 1e-5)
