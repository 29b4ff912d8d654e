"""Eigen-CAM: the principal component, its sign, and the package grad-cam."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.methods import reference_cnn
from tests.methods.peer_cam import as_the_peer_shows, peer_map
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline.methods.cam.eigen import first_component
from sightline.methods.multi_target import multi_target, multi_target_cost
from sightline.models.passes import counting


def turned(attribution: Any, like: Tensor) -> Any:
    """Return an attribution of one image, or its mirror, whichever is closer."""
    sign = torch.sign((attribution.map[0] * like).sum())
    return sightline.Attribution(attribution.values * sign, attribution.grid)


@pytest.mark.parametrize("network", reference_cnn.NAMES)
def test_matches_the_numbers_of_grad_cam_but_for_its_sign(network: str) -> None:
    """The peer rounds its map to float32, and on tiny_vgg LAPACK gave it the other sign."""
    model, image = reference_cnn.network(network)
    found = sightline.explain(model, image, f"eigen_cam(layer={reference_cnn.LAYERS[network]!r})", target=2)
    want = reference_cnn.want("eigen_cams", f"pgc_eigen_cam_{network}")
    same = turned(found, want)
    reference_cnn.assert_same(same.map[0], want, 1e-7)
    assert torch.equal(same.map, found.map) == (network != "tiny_vgg")
    shown = reference_cnn.want("eigen_cams", f"pgc_eigen_cam_{network}_pixels")
    assert_close(as_the_peer_shows(same)[0], shown, atol=1e-5, rtol=0)


@pytest.mark.shared
def test_matches_the_numbers_of_grad_cam_on_a_photograph(shared: Path) -> None:
    model, image = sightline.load("package/efficientnet_lite0"), reference_cnn.photograph(shared)
    numbers = np.load(shared / "golden" / "cnn_photo" / "pgc_eigen_cam_lite0.npz")
    found = sightline.explain(model, image, "eigen_cam", target=155)
    reference_cnn.assert_same(found.map[0], torch.from_numpy(numbers["map"]), 1e-5)


@pytest.fixture
def signed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the peer's EigenCAM turn its map as its own SegEigenCAM does, instead of leaving the sign to LAPACK."""
    sightline.extras.repair_torchvision()
    eigen = pytest.importorskip("pytorch_grad_cam.eigen_cam")
    projections = pytest.importorskip("pytorch_grad_cam.utils.svd_on_activations")
    monkeypatch.setattr(eigen, "get_2d_projection", projections.get_2d_projection_with_sign_correction)


@pytest.mark.parametrize("network", reference_cnn.NAMES)
@pytest.mark.usefixtures("signed")
def test_matches_grad_cam(network: str, parity) -> None:
    model, image = reference_cnn.network(network)
    layer = reference_cnn.LAYERS[network]
    want = peer_map("EigenCAM", model, model.get_submodule(layer), image, 2)
    found = sightline.explain(model, image, f"eigen_cam(layer={layer!r})", target=2)
    assert_close(as_the_peer_shows(found).float(), want.float(), atol=1e-5, rtol=0)
    parity("eigen_cam", "grad-cam EigenCAM", as_the_peer_shows(found), want, 1e-5)


@pytest.mark.usefixtures("signed")
def test_matches_grad_cam_on_tokens(tiny_vit: nn.Module, images: Tensor, parity) -> None:
    for layer, name in ((None, tiny_vit.blocks[-1].norm1), (1, tiny_vit.blocks[1].norm1)):
        want = peer_map("EigenCAM", tiny_vit, name, images, 1)
        found = sightline.explain(tiny_vit, images, f"eigen_cam({layer=})", target=1)
        assert_close(as_the_peer_shows(found).float(), want.float(), atol=1e-5, rtol=0)
        parity("eigen_cam", "grad-cam EigenCAM", as_the_peer_shows(found), want, 1e-5)


@pytest.mark.usefixtures("signed")
def test_matches_grad_cam_on_several_layers() -> None:
    import pytorch_grad_cam

    model, image = reference_cnn.network("tiny_resnet")
    with pytorch_grad_cam.EigenCAM(model, [model.layer2, model.layer3, model.layer4]) as cam:
        want = torch.from_numpy(cam(image, None))[0]
    got = sightline.explain(model, image, "eigen_cam(layer=('layer2', 'layer3', 'layer4'))", target=2).map[0]
    got = (got - got.min()) / (1e-7 + (got - got.min()).max())
    assert_close(got.float(), want.float(), atol=1e-5, rtol=0)


def test_is_the_projection_on_the_leading_eigenvector_of_the_covariance() -> None:
    cells = torch.randn(2, 6, 20, dtype=torch.float64) + 3
    for row, got in zip(cells, first_component(cells), strict=True):
        values, vectors = torch.linalg.eigh(torch.cov(row))
        want = vectors[:, -1] @ (row - row.mean(dim=1, keepdim=True))
        assert_close(got, want * torch.sign(want @ got))
        assert_close(got.var(), values[-1])


def test_one_pattern_is_found_whatever_its_sign() -> None:
    pattern = torch.tensor([0.0, 0.0, 1.0, 0.0, -0.5, 0.0], dtype=torch.float64)
    weights = torch.tensor([2.0, -1.0, 2.0], dtype=torch.float64)
    cells = torch.stack([torch.outer(weights, pattern), -torch.outer(weights, pattern)]) + 7
    assert_close(first_component(cells), (3 * (pattern - pattern.mean())).expand(2, -1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_sign_is_that_of_the_furthest_cell_in_any_precision(dtype: torch.dtype) -> None:
    cells = torch.randn(8, 12, 30, dtype=torch.float64)
    exact, rough = first_component(cells), first_component(cells.to(dtype))
    assert (exact.gather(1, exact.abs().argmax(dim=1, keepdim=True)) > 0).all()
    assert rough.dtype == dtype
    assert_close(first_component(-cells), exact)
    if dtype == torch.float32:
        assert_close(rough, exact.float(), atol=1e-4, rtol=1e-4)


def test_the_papers_is_not_centred_and_nowhere_negative_after_a_relu() -> None:
    model, image = reference_cnn.network("tiny_resnet")
    with torch.no_grad():
        cells = sightline.adapt(model).trunk(image, "layer4").flatten(2)[0]  # type: ignore[attr-defined]
    got = sightline.explain(model, image, "eigen_cam(variant='paper')", target=2).map
    _, vectors = torch.linalg.eigh(cells @ cells.T)
    assert_close(got.flatten(), (vectors[:, -1] @ cells).abs())
    assert got.min() >= 0


def test_cells_that_do_not_differ_have_no_map() -> None:
    assert not first_component(torch.full((1, 4, 9), 3.0)).any()


def test_every_target_has_the_same_map_from_one_pass() -> None:
    model, image = reference_cnn.network("tiny_cnn")
    adapter, method = sightline.adapt(model), sightline.parse("eigen_cam")
    with torch.no_grad(), counting() as meter:
        first, second = multi_target(method, adapter, image, [sightline.Logit(0), sightline.Logit(3)])
    assert torch.equal(first.values, second.values)
    assert meter.passes == multi_target_cost(method, adapter, 2) == sightline.types.Passes(1, 0)


def test_layers_can_be_summed(tiny_vit: nn.Module, tiny_cnn: nn.Module, images: Tensor) -> None:
    layers = sightline.explain(tiny_vit, images, "eigen_cam(variant='stream')", target=0).values
    assert len(layers) == 3
    assert_close(sightline.explain(tiny_vit, images, "plus(eigen_cam)", target=0).map, layers.sum(dim=0))
    first = sightline.explain(tiny_vit, images, "eigen_cam(layer='block.0.input')", target=0).map
    assert_close(layers[0], first)
    with pytest.raises(sightline.errors.UnsupportedMethod, match="eigen_cam has one layer on Cnn"):
        sightline.explain(tiny_cnn, images, "eigen_cam(variant='stream')", target=0)


def test_a_dense_layers_concatenation_can_be_one_of_several() -> None:
    from tests.models.families_cnn import FAMILIES
    from tests.models.families_cnn import images as family_images

    adapter = sightline.adapt(FAMILIES["torchvision densenet"].build())
    text = "eigen_cam(layer=('features.denseblock3.denselayer1.concat', 'features.norm5'))"
    got = sightline.explain(adapter, family_images()[:1], text, target=1)
    assert 1 < got.passes.forward < 2
    assert got.passes.forward == pytest.approx(sightline.parse(text).cost(adapter).forward)


def test_wrong_variants_are_refused() -> None:
    with pytest.raises(sightline.errors.RecipeError, match="variant='x'"):
        sightline.parse("eigen_cam(variant='x')")


@pytest.mark.parametrize(("recipe", "peer"), [
    ("eigen_grad_cam", "EigenGradCAM"), ("eigen_grad_cam(variant='seg')", "SegEigenCAM"), ("kpca_cam", "KPCA_CAM"),
])  # fmt: skip
@pytest.mark.parametrize("network", ["tiny_cnn", "tiny_vit"])
def test_its_kin_match_grad_cam_up_to_the_sign(recipe, peer, network, images, request, parity) -> None:
    model = request.getfixturevalue(network)
    if network == "tiny_cnn":
        model.relu.inplace = False
    layer, name = (model.norm2, "norm2") if network == "tiny_cnn" else (model.blocks[-1].norm1, "block.2.norm1")
    recipe = recipe.replace("(", f"(layer='{name}', ") if "(" in recipe else f"{recipe}(layer='{name}')"
    want = peer_map(peer, model, layer, images, 1).float()
    for row in range(len(images)):
        got = sightline.explain(model, images[row : row + 1], recipe, target=1)
        either = [as_the_peer_shows(replace(got, values=sign * got.values)).float()[0] for sign in (1, -1)]
        nearest = min(either, key=lambda one: (one - want[row]).abs().max())
        parity(recipe.partition("(")[0], f"grad-cam {peer}", nearest, want[row], 1e-5)


@pytest.mark.parametrize("network", ["tiny_cnn", "tiny_vit"])
def test_kernel_pca_with_a_linear_kernel_is_eigen_cam(network, images, request) -> None:
    model = request.getfixturevalue(network)
    got = sightline.explain(model, images, "kpca_cam(kernel='linear')", target=1).map
    assert_close(got, sightline.explain(model, images, "eigen_cam", target=1).map, rtol=1e-8, atol=1e-10)
    other = sightline.explain(model, images, "kpca_cam(kernel='rbf', gamma=0.1)", target=1).map
    assert not torch.allclose(other, got)
