"""Attention and tokens weighted by gradients, block by block."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests import tiny
from tests.methods.reference import agrees_on_a_random_vit, on_a_photograph, shares_one_run
from torch import Tensor, nn
from torch.testing import assert_close

import sightline

AUTHORS = [
    ("att_cam", "att_cam_chefer", 1e-5, "attcam_chefer_A"),
    ("att_cam(variant='mda')", "grad_cam_mda", 1e-6, "gc_mda_A"),
]
EVERY = ["att_cam", "att_cam(variant='mda')", "grad_sam", "grad_sam(rows='mean')", "cat", "att_ixg", "att_cat"]
EVERY += ["att_ixg(shift=1)", "att_cat(shift=1)"]


@pytest.mark.parametrize(("recipe", "key", "eps", "_file"), AUTHORS)
def test_matches_the_authors_code_on_a_random_vit(recipe: str, key: str, eps: float, _file: str) -> None:
    agrees_on_a_random_vit(recipe, key, eps)


@pytest.mark.shared
@pytest.mark.parametrize(("recipe", "_key", "_eps", "file"), AUTHORS)
def test_reaches_the_authors_numbers(
    recipe: str, _key: str, _eps: float, file: str, shared: Path, real_vit: nn.Module
) -> None:
    assert_close(*on_a_photograph(recipe, file, shared, real_vit, torch.float32), atol=1e-4, rtol=0)
    assert_close(*on_a_photograph(recipe, file, shared, real_vit, torch.float64), atol=1e-8, rtol=0)


def at(model: nn.Module, images: Tensor, name: str, index: int) -> list[tuple[Tensor, Tensor]]:
    """Return each block's tensor of this name, and the gradient of a class there."""
    adapter = sightline.adapt(model)
    with adapter.capture(f"block.*.{name}", gradient=True) as seen:
        score = adapter(images)[:, index].sum()
    gradients = torch.autograd.grad(score, list(seen.values()))
    return [(value.detach(), gradient) for value, gradient in zip(seen.values(), gradients, strict=True)]


def test_att_cam_weighs_heads_by_their_mean_gradient(tiny_vit: nn.Module, images: Tensor) -> None:
    p, g = at(tiny_vit, images, "probabilities", 2)[-1]
    weights = g[:, :, 0, 1:].mean(dim=-1)
    want = (weights[:, :, None] * p[:, :, 0, 1:]).mean(dim=1).relu()
    assert_close(sightline.explain(tiny_vit, images, "att_cam", target=2).map.flatten(1), want)


def test_distilled_models_read_both_tokens(images: Tensor) -> None:
    from timm.models.deit import VisionTransformerDistilled

    torch.manual_seed(1)
    model = VisionTransformerDistilled(
        img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=5, mlp_ratio=2
    )
    model = tiny.awake(model).eval().double()
    p, g = at(model, images, "probabilities", 2)[-1]
    weighted = (p * g).mean(dim=1).relu()
    want = (weighted[:, 0, 2:] + weighted[:, 1, 2:]) / 2
    assert_close(sightline.explain(model, images, "att_cam(variant='mda')", target=2).map.flatten(1), want)


def test_grad_sam_averages_blocks_and_heads(tiny_vit: nn.Module, images: Tensor) -> None:
    weighted = torch.stack([(p * g.relu()).mean(dim=1) for p, g in at(tiny_vit, images, "probabilities", 2)])
    every = sightline.explain(tiny_vit, images, "grad_sam", target=2).values.flatten(2)
    assert_close(every[0], weighted.mean(dim=0)[:, 0, 1:])
    assert_close(every[1], weighted[1:].mean(dim=0)[:, 0, 1:])
    rows = sightline.explain(tiny_vit, images, "grad_sam(rows='mean')", target=2).map.flatten(1)
    assert_close(rows, weighted.mean(dim=(0, 2))[:, 1:])


def test_cat_is_ixg_over_all_layers(tiny_vit: nn.Module, images: Tensor) -> None:
    got, want = (sightline.explain(tiny_vit, images, recipe, target=2) for recipe in ("cat", "plus(ixg)"))
    assert_close(got.map, want.map)


@pytest.mark.parametrize("shift", [0, 1])
def test_att_cat_is_att_ixg_over_all_layers(shift: int, tiny_vit: nn.Module, images: Tensor) -> None:
    pair = (f"att_cat(shift={shift})", f"plus(att_ixg(shift={shift}))")
    got, want = (sightline.explain(tiny_vit, images, recipe, target=2) for recipe in pair)
    assert_close(got.map, want.map)


def test_att_ixg_pairs_attention_with_the_blocks_input_or_output(tiny_vit: nn.Module, images: Tensor) -> None:
    scores = [(x * g).sum(dim=-1) for x, g in at(tiny_vit, images, "input", 2)]
    received = [p.mean(dim=(1, 2)) for p, _ in at(tiny_vit, images, "probabilities", 2)]
    own = sightline.explain(tiny_vit, images, "att_ixg", target=2).values.flatten(2)
    next_one = sightline.explain(tiny_vit, images, "att_ixg(shift=1)", target=2).values.flatten(2)
    for layer in range(3):
        assert_close(own[layer], (received[layer] * scores[layer])[:, 1:])
    for layer in range(2):
        assert_close(next_one[layer], (received[layer] * scores[layer + 1])[:, 1:])
    assert not next_one[2].any()


@pytest.mark.parametrize("recipe", EVERY)
def test_several_targets_share_the_forward_pass(recipe: str, tiny_vit: nn.Module, images: Tensor) -> None:
    shares_one_run(recipe, tiny_vit, images)


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("att_ixg(shift=2)", "got shift=2; 0 pairs a block's attention with its input, 1 with its output"),
        ("att_cat(shift=-1)", "got shift=-1; 0 pairs"),
        ("grad_sam(rows='max')", "got rows='max'"),
    ],
)
def test_pairings_and_rows_that_do_not_exist_are_refused(recipe: str, words: str) -> None:
    with pytest.raises(sightline.errors.RecipeError, match=words):
        sightline.parse(recipe)
