"""Gradient rollout: written out, then the authors' numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.methods.reference import agrees_on_a_random_vit, on_a_photograph, shares_one_run
from torch import Tensor, nn
from torch.testing import assert_close

import sightline

VARIANTS = ["grad_rollout", "grad_rollout(variant='vit_explain')"]
PHOTO = dict(zip(VARIANTS, ("grad_rollout_iia_A", "grad_rollout_vitexplain_A"), strict=True))


def test_matches_vit_explain_on_a_random_vit() -> None:
    agrees_on_a_random_vit("grad_rollout(variant='vit_explain')", "grad_rollout_vit_explain", 1e-5)


@pytest.mark.shared
@pytest.mark.parametrize("recipe", VARIANTS)
def test_reaches_the_authors_numbers(recipe: str, shared: Path, real_vit: nn.Module) -> None:
    assert_close(*on_a_photograph(recipe, PHOTO[recipe], shared, real_vit, torch.float32), atol=1e-4, rtol=0)
    assert_close(*on_a_photograph(recipe, PHOTO[recipe], shared, real_vit, torch.float64), atol=1e-8, rtol=0)


def test_written_out(tiny_vit: nn.Module, images: Tensor) -> None:
    adapter = sightline.adapt(tiny_vit)
    with adapter.capture("block.*.probabilities", gradient=True) as seen:
        score = adapter(images)[:, 2].sum()
    product = torch.eye(17, dtype=torch.float64)
    for p, g in zip(seen.values(), torch.autograd.grad(score, list(seen.values())), strict=True):
        mixed = torch.eye(17, dtype=torch.float64) + (p * g).relu().mean(dim=1)
        product = mixed / mixed.sum(dim=-1, keepdim=True) @ product
    got = sightline.explain(tiny_vit, images, "grad_rollout", target=2).map
    assert_close(got.flatten(1), product[:, 0, 1:].detach())


def test_rows_of_the_rollout_keep_what_they_share_out(tiny_vit: nn.Module, images: Tensor) -> None:
    values = sightline.explain(tiny_vit, images, "grad_rollout", target=2).values
    assert (values >= 0).all()
    assert (values.flatten(2).sum(dim=-1) <= 1).all()


@pytest.mark.parametrize("start", range(3))
def test_layer_l_is_the_method_started_at_l(start: int, tiny_vit: nn.Module, images: Tensor) -> None:
    every = sightline.explain(tiny_vit, images, "grad_rollout", target=1).values
    assert_close(every[start], sightline.explain(tiny_vit, images, f"grad_rollout(start={start})", target=1).map)


@pytest.mark.parametrize("recipe", [*VARIANTS, "grad_rollout(start=1)"])
def test_several_targets_share_the_forward_pass(recipe: str, tiny_vit: nn.Module, images: Tensor) -> None:
    shares_one_run(recipe, tiny_vit, images)


def test_vit_explain_has_no_start() -> None:
    with pytest.raises(sightline.errors.RecipeError, match="got start=1 with variant='vit_explain'"):
        sightline.parse("grad_rollout(start=1, variant='vit_explain')")
