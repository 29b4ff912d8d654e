"""ViT-CX: clusters, causal scores and maps, written out and against the authors' numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import AgglomerativeClustering
from tests import tiny
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import sightline
from sightline.methods.sampling.vit_cx import causal_maps, causal_scores, cluster_masks, cluster_sums, clusters


def scaled(maps: Tensor) -> Tensor:
    low, high = maps.amin(dim=(1, 2), keepdim=True), maps.amax(dim=(1, 2), keepdim=True)
    return (maps - low) / (high - low)


def partition(labels: Any) -> set[frozenset[int]]:
    labels = np.asarray(labels)
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in np.unique(labels)}


@pytest.fixture
def photo(shared: Path) -> tuple[Tensor, int, Any, Any]:
    folder = shared / "golden/photo"
    inputs = np.load(folder / "inputs_A.npz")
    quiet, noisy = np.load(folder / "vitcx_nonoise_A.npz"), np.load(folder / "vitcx_A.npz")
    return torch.from_numpy(inputs["input"]), int(inputs["target"]), quiet, noisy


@pytest.mark.shared
@pytest.mark.slow
def test_matches_the_authors_code_on_a_photograph_without_noise(photo: Any, real_vit: nn.Module) -> None:
    images, target, numbers, _ = photo
    channels = scaled(F.interpolate(torch.from_numpy(numbers["feature_14x14"])[None], size=224, mode="bilinear")[0])
    assert partition(clusters(channels, 0.1)) == partition(numbers["cluster_labels"])
    got = sightline.explain(real_vit, images, "vit_cx(noise=0.0)", target=target)
    assert got.passes.forward == 1 + int(numbers["cluster_count"])
    assert_close(tiny.min_max(got.map[0]), tiny.min_max(torch.from_numpy(numbers["map"])), atol=1e-4, rtol=0)


@pytest.mark.shared
@pytest.mark.slow
def test_matches_the_authors_code_on_a_photograph_given_its_noise(photo: Any, real_vit: nn.Module) -> None:
    images, target, _, numbers = photo
    drawn = torch.randn(23, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    np.testing.assert_array_equal(drawn.flatten()[:16], numbers["noise_first16"])
    channels = scaled(F.interpolate(torch.from_numpy(numbers["feature_14x14"])[None], size=224, mode="bilinear")[0])
    masks = cluster_sums(channels, torch.from_numpy(numbers["cluster_labels"].astype(np.int64)))
    assert_close(masks.mean(dim=(1, 2)), torch.from_numpy(numbers["cluster_mask_mean"]), atol=1e-5, rtol=0)
    adapter = sightline.adapt(real_vit)
    with torch.no_grad():
        clean = adapter(images)[0]
        got = causal_maps(adapter, images[0], masks, lambda k: 0.1 * drawn[k], clean, [sightline.Probability(target)])
    assert_close(tiny.min_max(got[0]), tiny.min_max(torch.from_numpy(numbers["map"])), atol=1e-4, rtol=0)


@pytest.mark.parametrize("tau", [0.02, 0.1, 0.4])
def test_clusters_are_those_of_scikit_learn(tau: float) -> None:
    channels = scaled(
        torch.rand(12, 1, 6, 6, dtype=torch.float64)
        .repeat(1, 3, 1, 1)
        .flatten(0, 1)
        .add(0.3 * torch.rand(36, 6, 6, dtype=torch.float64))
    )
    peer = AgglomerativeClustering(None, metric="cosine", linkage="complete", distance_threshold=tau)
    assert partition(clusters(channels, tau)) == partition(peer.fit_predict(channels.flatten(1).numpy()))


def test_the_map_is_the_formula_written_out(tiny_vit: nn.Module, images: Tensor) -> None:
    adapter, image = sightline.adapt(tiny_vit), images[0]
    masks, noise = torch.rand(5, 32, 32).double(), torch.randn(5, 3, 32, 32).double()
    masks[:, 0, 0] = 0.0

    def p(picture: Tensor) -> Tensor:
        return tiny_vit(picture[None]).softmax(dim=-1)[0, 3].detach()

    def effect(mask: Tensor, n: Tensor) -> Tensor:
        return p(image * mask + n * (1 - mask)) - p(image + n * (1 - mask)) + p(image)

    effects = torch.stack([effect(mask, n) for mask, n in zip(masks, noise, strict=True)])
    adapter.batch = 2
    with torch.no_grad():
        given = (adapter, image, masks, lambda k: noise[k], adapter(images)[0], [sightline.Probability(3)])
        assert_close(causal_scores(*given)[0], effects)
        got = causal_maps(*given)[0]
    want = (effects[:, None, None] * masks).sum(dim=0) / masks.sum(dim=0) / 5
    want[0, 0] = 0.0  # no mask shows this pixel
    assert_close(got, want)
    masks[0, 0, 0] = 1e-17  # nor does this one
    with torch.no_grad():
        assert_close(causal_maps(*given)[0], want)


def test_masks_come_from_the_last_blocks_first_norm(tiny_vit: nn.Module, images: Tensor) -> None:
    adapter = sightline.adapt(tiny_vit)
    with torch.no_grad(), adapter.capture("block.2.norm1") as seen:
        clean = adapter(images)
    with torch.no_grad():
        masks = cluster_masks(seen["block.2.norm1"][0, 1:].T.reshape(16, 4, 4), (32, 32), 0.1)
        want = causal_maps(adapter, images[0], masks, None, clean[0], [sightline.Probability(1)])
    got = sightline.explain(tiny_vit, images[:1], "vit_cx(noise=0.0)", target=1)
    assert_close(got.map, want)
    assert got.passes.forward == 1 + len(masks)
    assert (got.grid.height, got.grid.width) == (32, 32)
    assert sightline.explain(tiny_vit, images[:1], "vit_cx", target=1).passes.forward == 1 + 2 * len(masks)


def test_a_constant_channel_makes_no_mask() -> None:
    features = torch.rand(3, 4, 4)
    features[1] = 0.7
    masks = cluster_masks(features, (8, 8), 0.0)
    assert masks.shape == (2, 8, 8)
    assert torch.isfinite(masks).all()
    assert cluster_masks(torch.ones(3, 4, 4), (8, 8), 0.1).shape == (0, 8, 8)
    assert cluster_masks(features[:2], (8, 8), 0.1).shape == (1, 8, 8)


def test_noise_depends_on_seed_and_image_alone(tiny_vit: nn.Module, images: Tensor) -> None:
    together = sightline.explain(tiny_vit, images, "vit_cx", target=0).map
    assert_close(sightline.explain(tiny_vit, images.flip(0), "vit_cx", target=0, batch_size=3).map.flip(0), together)
    assert not torch.allclose(sightline.explain(tiny_vit, images, "vit_cx(seed=1)", target=0).map, together)


@pytest.mark.parametrize("options", ["tau=3.0", "noise=-1.0", "noise=1e999", "score='loss'"])
def test_options_that_make_no_sense_are_refused(options: str) -> None:
    with pytest.raises(sightline.errors.RecipeError, match="got "):
        sightline.recipe.parse(f"vit_cx({options})")
