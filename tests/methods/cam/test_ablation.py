"""Ablation-CAM and Score-CAM: written out by whole passes, reference numbers, and grad-cam in the same process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import tiny
from tests.methods import reference_cnn
from tests.methods.peer_cam import against_reference, as_the_peer_shows, peer_map
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import sightline
from sightline.methods.cam.ablation import ScoreCam
from sightline.models.passes import counting
from sightline.perturb.tokens import run_on_tokens


@pytest.mark.parametrize("network", reference_cnn.NAMES)
@pytest.mark.parametrize("recipe", ["ablation_cam", "ablation_cam(variant='pgc')", "score_cam"])
def test_matches_the_reference_numbers_of_grad_cam(recipe: str, network: str) -> None:
    against_reference(recipe, network, f"pgc_{recipe.partition('(')[0]}", 1e-5)


@pytest.mark.parametrize("network", reference_cnn.NAMES)
def test_score_cam_matches_its_authors_program(network: str) -> None:
    model, image = reference_cnn.network(network)
    recipe = f"score_cam(layer={reference_cnn.LAYERS[network]!r}, variant='authors')"
    got = tiny.min_max(sightline.explain(model, image, recipe, target=2).pixels()[0].clamp(min=0))
    want = reference_cnn.want("cams", f"score_cam_authors_{network}")  # every fourth pixel
    assert_close(got[::4, ::4], want, atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("recipe", "peer"),
    [("ablation_cam(layer='conv3', variant='pgc')", "AblationCAM"), ("score_cam(layer='conv3')", "ScoreCAM")],
)
def test_matches_grad_cam_on_signed_activations(
    recipe: str, peer: str, tiny_cnn: nn.Module, images: Tensor, parity
) -> None:
    tiny_cnn.relu.inplace = False  # type: ignore[union-attr]  # the peer reads the activation after it was overwritten
    got = sightline.explain(tiny_cnn, images, recipe, target=1)
    want = peer_map(peer, tiny_cnn, tiny_cnn.conv3, images, 1)
    assert_close(as_the_peer_shows(got).float(), want.float(), atol=1e-5, rtol=0)
    parity(recipe.partition("(")[0], f"grad-cam {peer}", as_the_peer_shows(got), want, 1e-5)


def test_score_cam_matches_grad_cam_on_a_transformer(tiny_vit: nn.Module, images: Tensor, parity) -> None:
    got = sightline.explain(tiny_vit.float(), images.float(), "score_cam", target=1)
    want = peer_map("ScoreCAM", tiny_vit, tiny_vit.blocks[-1].norm1, images.float(), 1)  # type: ignore[index,union-attr]
    assert_close(as_the_peer_shows(got), want, atol=1e-5, rtol=0)
    parity("score_cam", "grad-cam ScoreCAM", as_the_peer_shows(got), want, 1e-5)


def test_ablation_matches_grad_cam_on_a_photograph(shared: Path) -> None:
    model, image = sightline.load("package/efficientnet_lite0"), reference_cnn.photograph(shared)
    got = sightline.explain(model, image, "ablation_cam", target=155).map[0]
    want = np.load(shared / "golden" / "cnn_photo" / "pgc_ablation_cam_lite0.npz")["map"]
    reference_cnn.assert_same(got, torch.from_numpy(want), 1e-5)


def test_score_cam_masks_a_photograph_as_grad_cam_does(shared: Path) -> None:
    adapter: Any = sightline.adapt(sightline.load("package/efficientnet_lite0"))
    image, some = reference_cnn.photograph(shared), torch.arange(0, 1280, 80)  # all 1280 would be as many passes
    with torch.no_grad(), adapter.evaluating():
        masks = ScoreCam().masks(adapter.trunk(image, adapter.layer())[0, some], (224, 224))
        scores = adapter(image * masks)[:, 155].double()
    weights = np.load(shared / "golden" / "cnn_photo" / "pgc_score_cam_lite0.npz")["weights"][0]
    want = torch.from_numpy(weights).double()[some].log()  # a softmax's logarithms are its scores, up to a constant
    assert_close(scores - scores.mean(), want - want.mean(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("site", ["block.0.input", "block.1.norm1", "block.1.mlp", "block.1.output", "norm"])
def test_ablation_on_tokens_equals_whole_passes(site: str, tiny_vit: nn.Module, images: Tensor) -> None:
    adapter = sightline.adapt(tiny_vit)
    with torch.no_grad():
        with adapter.capture(site) as seen:
            clean = adapter(images)[:, 3]
        weights = []
        for channel in range(16):

            def silence(tokens: Tensor, channel: int = channel) -> Tensor:
                return tokens.index_fill(-1, torch.tensor([channel]), 0.0)

            with adapter.edit({site: silence}):
                weights.append((clean - adapter(images)[:, 3]) / clean)
    want = torch.einsum("kb,bnk->bn", torch.stack(weights), seen[site])[:, 1:].unflatten(1, (4, 4))
    got = sightline.explain(tiny_vit, images, f"ablation_cam(layer={site!r})", target=3).map
    assert_close(got, want)


def test_ablation_after_a_pool_of_means_weighs_by_contribution() -> None:
    model, image = reference_cnn.network("tiny_resnet")
    cnn: Any = model
    with counting():
        features = sightline.adapt(model).trunk(image, "layer4").detach()  # type: ignore[attr-defined]
    weights = cnn.fc.weight[2] * features.mean(dim=(2, 3)) / model(image)[:, 2]
    want = torch.einsum("bk,bkij->bij", weights, features).detach()
    assert_close(sightline.explain(model, image, "ablation_cam", target=2).map, want)


def test_ablation_explains_a_score_and_its_negative_alike() -> None:
    model, image = reference_cnn.network("tiny_resnet")
    one = sightline.explain(model, image, "ablation_cam", target=lambda logits: logits[:, 2]).map
    other = sightline.explain(model, image, "ablation_cam", target=lambda logits: -logits[:, 2]).map
    assert_close(one, other)  # both numerator and denominator turn


def test_ablation_survives_a_score_of_zero(tiny_cnn: nn.Module, images: Tensor) -> None:
    with torch.no_grad():
        logit = tiny_cnn(images[:1])[0, 2]
    got = sightline.explain(tiny_cnn, images[:1], "ablation_cam", target=lambda logits: logits[:, 2] - logit)
    assert torch.isfinite(got.values).all()
    assert got.values.abs().max() > 1e5


def test_torchcam_scales_before_it_enlarges_and_ranks_by_the_rise() -> None:
    model, image = reference_cnn.network("tiny_vgg")
    features = model.features[:9](image)[0].detach()  # type: ignore[index]
    low, high = features.amin(dim=(1, 2), keepdim=True), features.amax(dim=(1, 2), keepdim=True)
    masks = F.interpolate(((features - low) / (high - low))[:, None], (64, 64), mode="bilinear")
    weights = (model(image * masks)[:, 2] - model(image)[:, 2]).softmax(dim=0)
    want = torch.einsum("k,kij->ij", weights, features).detach()
    got = sightline.explain(model, image, "score_cam(layer='features.8', variant='torchcam')", target=2).map[0]
    assert_close(got, want, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("recipe", ["ablation_cam", "score_cam", "score_cam(variant='authors')"])
def test_more_targets_cost_no_more(recipe: str, tiny_cnn: nn.Module, images: Tensor) -> None:
    adapter, method = sightline.adapt(tiny_cnn), sightline.recipe.parse(recipe)
    targets = [sightline.Logit(0), sightline.Probability((3, 1)), sightline.Contrast(2, 1)]
    with torch.no_grad(), counting() as meter:
        together = sightline.methods.multi_target.multi_target(method, adapter, images, targets)
    assert meter.passes.forward == pytest.approx(2 * method.cost(adapter).forward)
    with torch.no_grad():
        for target, got in zip(targets, together, strict=True):
            assert_close(got.values, method(adapter, images, target).values)


@pytest.mark.parametrize(
    ("site", "share"), [("block.0.input", 1), ("block.1.mlp", 2 / 3), ("block.1.output", 1 / 3), ("norm", 0)]
)
def test_only_the_blocks_after_the_site_run_again(site: str, share: float, tiny_vit: nn.Module, images: Tensor) -> None:
    adapter, method = sightline.adapt(tiny_vit), sightline.recipe.parse(f"ablation_cam(layer={site!r})")
    with torch.no_grad(), counting() as meter:
        method(adapter, images, sightline.Logit(0))
    assert meter.passes.forward == pytest.approx(2 * (1 + 16 * share))
    assert method.cost(adapter).forward == pytest.approx(1 + 16 * share)


@pytest.mark.parametrize("recipe", ["ablation_cam", "score_cam"])
def test_sites_without_channels_and_unknown_variants_are_refused(
    recipe: str, tiny_vit: nn.Module, images: Tensor
) -> None:
    with pytest.raises(sightline.errors.SiteError, match=r"'block\.1\.scores' of VisionTransformer holds no tokens"):
        sightline.explain(tiny_vit, images, f"{recipe}(layer='block.1.scores')", target=0)
    with pytest.raises(sightline.errors.RecipeError, match="'x'"):
        sightline.recipe.parse(f"{recipe}(variant='x')")


# ---- any network, any layer, any precision --------------------------------------------------------------------------


def of_one_size() -> nn.Sequential:
    """A network that takes images of 32×32 pixels and no others."""
    torch.manual_seed(5)
    features = (nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(), nn.Conv2d(6, 7, 3, 2, 1), nn.ReLU())
    model = nn.Sequential(*features, nn.Flatten(), nn.Linear(448, 9), nn.ReLU(), nn.Linear(9, 5))
    tiny.awake(model).double().eval()
    return model


def test_a_network_that_takes_one_size_only_is_served(images: Tensor) -> None:
    model = of_one_size()
    features = model[:4](images).detach()
    clean = model(images)[:, 1].detach()
    lost = [clean - model[4:](features.index_fill(1, torch.tensor([k]), 0.0))[:, 1].detach() for k in range(7)]
    want = torch.einsum("kb,bkij->bij", torch.stack(lost) / clean, features)
    assert_close(sightline.explain(model, images, "ablation_cam", target=1).map, want)
    masks = torch.stack([ScoreCam().masks(one, (32, 32)) for one in features])
    scores = torch.stack([model(image * mask)[:, 1].detach() for image, mask in zip(images, masks, strict=True)])
    want = torch.einsum("bk,bkij->bij", scores.softmax(dim=1), features)
    assert_close(sightline.explain(model, images, "score_cam", target=1).map, want)


@pytest.mark.parametrize("recipe", ["ablation_cam", "score_cam"])
def test_the_cost_is_known_before_an_image_is_seen(recipe: str, images: Tensor) -> None:
    model, method = of_one_size(), sightline.parse(recipe)
    told = method.cost(sightline.adapt(model)).forward
    assert sightline.explain(model, images[:1], recipe, target=1).passes.forward == pytest.approx(told)


@pytest.mark.parametrize(("recipe", "peer"), [("ablation_cam", "AblationCAM"), ("score_cam", "ScoreCAM")])
def test_a_layer_that_can_be_passed_by_matches_grad_cam(recipe: str, peer: str, parity) -> None:
    model, image = reference_cnn.network("tiny_resnet")
    site = "layer4.0.conv1"  # inside a residual block: no cut
    assert site not in sightline.adapt(model).cuts  # type: ignore[attr-defined]
    text = f"{recipe}(layer={site!r}" + (", variant='pgc')" if recipe == "ablation_cam" else ")")
    got = sightline.explain(model, image, text, target=2)
    want = peer_map(peer, model, model.get_submodule(site), image, 2)
    assert_close(as_the_peer_shows(got).float(), want.float(), atol=1e-5, rtol=0)
    assert got.passes.forward == pytest.approx(sightline.parse(text).cost(sightline.adapt(model)).forward) == 17
    parity(recipe, f"grad-cam {peer}", as_the_peer_shows(got), want, 1e-5)


@pytest.mark.parametrize("recipe", ["ablation_cam", "score_cam"])
def test_a_layer_without_a_map_is_refused(recipe: str) -> None:
    model, image = reference_cnn.network("tiny_resnet")
    with pytest.raises(sightline.errors.SiteError, match=r"'fc' of Residual has the shape \(1, 6\).*no feature map"):
        sightline.explain(model, image, f"{recipe}(layer='fc')", target=2)


def test_ablation_takes_half_precision(tiny_cnn: nn.Module, images: Tensor) -> None:
    exact = sightline.explain(tiny_cnn, images, "ablation_cam", target=1).map
    rough = sightline.explain(tiny_cnn.bfloat16(), images.bfloat16(), "ablation_cam", target=1).map
    assert rough.dtype == torch.float32
    reference_cnn.assert_same(rough.double(), exact, 0.2)


@pytest.mark.parametrize("variant", ["pgc", "authors", "torchcam"])
def test_score_cam_drops_the_half_of_the_patches_where_a_channel_is_smallest(
    variant: str, tiny_vit: nn.Module, images: Tensor
) -> None:
    adapter, recipe = sightline.adapt(tiny_vit), f"score_cam(variant='{variant}', blank='dropped')"
    site = adapter.layer()
    with torch.no_grad(), adapter.capture(site) as seen:
        clean = adapter(images).softmax(dim=1)[:, 1]
    maps = adapter.to_map(site, seen[site], images).flatten(2)
    weights = torch.zeros(maps.shape[:2], dtype=maps.dtype)
    with torch.no_grad():
        for row, channels in enumerate(maps):
            tokens = adapter.start(images[row : row + 1])
            for channel, values in enumerate(channels):
                kept = (values > values.median()).nonzero().T  # of 16 values, torch's median is the eighth
                assert kept.shape == (1, 8)
                weights[row, channel] = run_on_tokens(adapter, tokens, kept).softmax(dim=1)[0, 1]
    if variant == "torchcam":
        weights = weights - clean[:, None]
    if variant != "authors":
        weights = weights.softmax(dim=1)
    want = torch.einsum("bk,bkc->bc", weights, maps)
    method = sightline.parse(recipe)
    with torch.no_grad(), counting() as meter:
        got = method(adapter, images, sightline.Probability(1))
    assert_close(got.map.flatten(1), want)
    assert meter.passes.forward == pytest.approx(method.cost(adapter).forward * len(images))
    assert method.cost(adapter).forward < 0.6 * sightline.parse("score_cam").cost(adapter).forward
    assert_close(got.map[:1], method(adapter, images[:1], sightline.Probability(1)).map)


def test_score_cam_drops_no_patches_of_a_convolutional_network(tiny_cnn: nn.Module, images: Tensor) -> None:
    with pytest.raises(sightline.errors.UnsupportedModel, match="no tokens to drop; give a fill, such as blank='mean'"):
        sightline.explain(tiny_cnn, images, "score_cam(blank='dropped')", target=0)
