"""Attention methods: closed forms on one block, then the authors' numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import tiny
from torch import Tensor, nn
from torch.testing import assert_close

import sightline

RANDOM_VIT = [
    # recipe, key, eps of that reference's layer norms: its ViT was built without a norm_layer, which leaves 1e-5
    ("raw_attention", "raw_attention", 1e-6),
    ("rollout", "rollout_start0", 1e-5),
    ("rollout(variant='vit_explain', fusion='mean')", "rollout_vit_explain_mean", 1e-6),
    ("gae", "gae", 1e-5),
]
PHOTO = {
    "raw_attention": "raw_attention_A",
    "rollout": "rollout_chefer_start0_A",
    "rollout(start=1)": "rollout_chefer_start1_A",
    "rollout(variant='vit_explain', fusion='mean')": "rollout_vitexplain_mean_A",
    "rollout(variant='vit_explain', fusion='max')": "rollout_vitexplain_max_A",
    "rollout(variant='vit_explain', fusion='min')": "rollout_vitexplain_min_A",
    "gae": "gae_A",
}


@pytest.mark.parametrize(("recipe", "key", "eps"), RANDOM_VIT)
def test_matches_the_authors_code_on_a_random_vit(recipe: str, key: str, eps: float) -> None:
    model, images, numbers = tiny.reference_vit(eps=eps)
    got = sightline.explain(model, images, recipe, target=3).map[0]
    want = torch.from_numpy(numbers[f"map/{key}"]).reshape(7, 7)
    assert_close(tiny.min_max(got), tiny.min_max(want), atol=1e-5 if eps == 1e-5 else 1e-4, rtol=0)


@pytest.mark.shared
@pytest.mark.parametrize("recipe", PHOTO)
def test_matches_the_authors_code_on_a_photograph(recipe: str, shared: Path, real_vit: nn.Module) -> None:
    photo = np.load(shared / "golden/photo/inputs_A.npz")
    numbers = np.load(shared / f"golden/photo/{PHOTO[recipe]}.npz")
    got = sightline.explain(real_vit, torch.from_numpy(photo["input"]), recipe, target=int(photo["target"])).map[0]
    # at the 90 % cut of vit_explain an entry may fall on either side; the reference itself differs by this much
    tolerance = {"max": 5e-3, "mean": 5e-4, "min": 5e-4}[recipe.split("'")[3]] if "vit_explain" in recipe else 1e-4
    assert_close(tiny.min_max(got), tiny.min_max(torch.from_numpy(numbers["map"])), atol=tolerance, rtol=0)


@pytest.mark.shared
@pytest.mark.parametrize("recipe", ["raw_attention", "rollout", "gae"])
def test_reaches_the_authors_numbers_in_float64(recipe: str, shared: Path, real_vit: nn.Module) -> None:
    photo = np.load(shared / "golden/photo/inputs_A.npz")
    numbers = np.load(shared / f"golden/photo/{PHOTO[recipe]}.npz")
    images = torch.from_numpy(photo["input"]).double()
    got = sightline.explain(real_vit.double(), images, recipe, target=int(photo["target"])).map[0]
    assert_close(tiny.min_max(got), tiny.min_max(torch.from_numpy(numbers["map_f64"])), atol=1e-8, rtol=0)


def by_hand(model: nn.Module, images: Tensor) -> list[Tensor]:
    """Compute attention probabilities from the weights, block by block."""
    tokens = model._pos_embed(model.patch_embed(images))  # type: ignore[operator]
    attention = []
    for block in model.blocks:  # type: ignore[union-attr]
        q, k, _ = block.attn.qkv(block.norm1(tokens)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        attention.append((q @ k.transpose(-1, -2) / 8**0.5).softmax(dim=-1))
        tokens = block(tokens)
    return attention


def test_raw_attention_is_the_last_class_row(tiny_vit: nn.Module, images: Tensor) -> None:
    got = sightline.explain(tiny_vit, images, "raw_attention", target=0).map
    assert_close(got.flatten(1), by_hand(tiny_vit, images)[-1].mean(dim=1)[:, 0, 1:])


def test_rollout_is_the_product_written_out(tiny_vit: nn.Module, images: Tensor) -> None:
    product = torch.eye(17, dtype=torch.float64)
    for attention in by_hand(tiny_vit, images):
        product = 0.5 * (attention.mean(dim=1) + torch.eye(17, dtype=torch.float64)) @ product
    got = sightline.explain(tiny_vit, images, "rollout", target=0).map
    assert_close(got.flatten(1), product[:, 0, 1:])


@pytest.mark.parametrize("recipe", ["rollout", "gae"])
def test_layer_l_is_the_method_started_at_l(recipe: str, tiny_vit: nn.Module, images: Tensor) -> None:
    every = sightline.explain(tiny_vit, images, recipe, target=1).values
    assert len(every) == 3
    for start in range(3):
        assert_close(every[start], sightline.explain(tiny_vit, images, f"{recipe}(start={start})", target=1).map)


def test_gae_takes_the_positive_part_before_averaging_heads(tiny_vit: nn.Module, images: Tensor) -> None:
    adapter = sightline.adapt(tiny_vit)
    with adapter.capture("block.*.probabilities", gradient=True) as seen:
        score = adapter(images)[:, 2]
    gradients = torch.autograd.grad(score.sum(), list(seen.values()))
    relevance = torch.eye(17, dtype=torch.float64).expand(2, 17, 17)
    for p, g in zip(seen.values(), gradients, strict=True):
        relevance = relevance + (p * g).relu().mean(dim=1) @ relevance
    assert_close(sightline.explain(tiny_vit, images, "gae", target=2).map.flatten(1), relevance[:, 0, 1:].detach())


def test_pooled_models_read_the_patches_evenly(images: Tensor) -> None:
    model = tiny.vit(global_pool="avg", class_token=False).double()
    got = sightline.explain(model, images, "raw_attention", target=0).map
    with sightline.adapt(model).capture("block.2.probabilities") as seen:
        model(images)
    assert_close(got.flatten(1), seen["block.2.probabilities"].mean(dim=(1, 2)))


def test_a_start_block_that_is_not_there_is_refused(tiny_vit: nn.Module, images: Tensor) -> None:
    with pytest.raises(sightline.errors.RecipeError, match="got start=7; VisionTransformer has blocks 0 to 2"):
        sightline.explain(tiny_vit, images, "gae(start=7)", target=0)


@pytest.mark.filterwarnings("ignore:.* gave a constant map")
@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
def test_vit_explain_says_nothing_where_the_class_token_sees_itself_alone(
    fusion: str, tiny_vit: nn.Module, images: Tensor
) -> None:
    adapter: Any = sightline.adapt(tiny_vit)
    alone = dict.fromkeys(adapter.every("probabilities"), lambda p: torch.eye(17, dtype=p.dtype).expand_as(p))
    with adapter.edit(alone):
        got = sightline.explain(adapter, images, f"rollout(variant='vit_explain', fusion='{fusion}')", target=0)
    assert not got.values.any()
    assert got.flags == ("constant map", "constant map")
