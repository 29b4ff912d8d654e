"""InFlow: written out on one block, then its authors' numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests import tiny
from tests.methods.reference import agrees_on_a_random_vit, on_a_photograph, shares_one_run
from torch import Tensor, nn
from torch.testing import assert_close

import sightline


def test_matches_the_authors_code_on_a_random_vit() -> None:
    agrees_on_a_random_vit("inflow", "inflow", 1e-6)


@pytest.mark.shared
def test_reaches_the_authors_numbers(shared: Path, real_vit: nn.Module) -> None:
    assert_close(*on_a_photograph("inflow", "inflow_A", shared, real_vit, torch.float32), atol=1e-4, rtol=0)
    assert_close(*on_a_photograph("inflow", "inflow_A", shared, real_vit, torch.float64), atol=1e-8, rtol=0)


def last_block_by_hand(model: Any, images: Tensor, index: int, gated: bool = True, mlp: bool = True) -> Tensor:
    """Return the last block's transition matrix; at the last block the probe sees what the classifier sees."""
    tokens = model._pos_embed(model.patch_embed(images))
    for block in model.blocks[:-1]:
        tokens = block(tokens)
    block = model.blocks[-1]
    q, k, v = block.attn.qkv(block.norm1(tokens)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
    attention = (q @ k.transpose(-1, -2) / 8**0.5).softmax(dim=-1)
    attended = block.attn.proj((attention @ v).transpose(1, 2).flatten(2))
    middle = tokens + attended
    fed = block.mlp(block.norm2(middle))
    normed = model.norm(middle + fed)
    score, probe = (model.head(x)[:, index].sum() for x in (normed[:, 0], normed.mean(dim=1)))
    (gradient,) = torch.autograd.grad(score, attention, retain_graph=True)
    (gate,) = torch.autograd.grad(probe, attention)
    matter = (attention.mT @ gradient).abs().mean(dim=(2, 3))
    flow = (attention * (matter / matter.sum(dim=1, keepdim=True))[:, :, None, None]).amax(dim=1)
    flow = (flow * gate.mean(dim=1)).relu() if gated else flow
    lengths = [x.norm(dim=-1) for x in (tokens, attended, middle, fed)]
    p, u = lengths[0] / (lengths[0] + lengths[1]), lengths[2] / (lengths[2] + lengths[3])
    rho = (1 - u) / u / ((1 - u) / u).sum(dim=-1, keepdim=True)
    matrix = flow * (1 - p)[:, None] + torch.diag_embed(p)
    matrix = matrix @ torch.diag_embed(rho * (1 - u) + u) if mlp else matrix
    rows: Tensor = matrix / matrix.sum(dim=-1, keepdim=True)
    return rows.detach()


def test_the_last_block_written_out(tiny_vit: nn.Module, images: Tensor) -> None:
    want = last_block_by_hand(tiny_vit, images, 2)[:, 0, 1:]
    assert_close(sightline.explain(tiny_vit, images, "inflow(start=2)", target=2).map.flatten(1), want)
    assert_close(sightline.explain(tiny_vit, images, "inflow", target=2).values[2].flatten(1), want)


@pytest.mark.parametrize(("gate", "mlp"), [(False, True), (True, False), (False, False)])
def test_parts_can_be_left_out(gate: bool, mlp: bool, tiny_vit: nn.Module, images: Tensor) -> None:
    want = last_block_by_hand(tiny_vit, images, 2, gate, mlp)[:, 0, 1:]
    got = sightline.explain(tiny_vit, images, f"inflow(gate={gate}, mlp={mlp})", target=2)
    assert_close(got.values[2].flatten(1), want)
    assert got.passes.backward == pytest.approx(2 * (1 + gate))
    assert not torch.allclose(got.map, sightline.explain(tiny_vit, images, "inflow", target=2).map)


def test_rows_sum_to_one_over_all_tokens(images: Tensor) -> None:
    model = tiny.vit(global_pool="avg", class_token=False).double()  # no prefix: nothing of the row is cut off
    values = sightline.explain(model, images, "inflow", target=2).values
    assert_close(values.flatten(2).sum(dim=-1), torch.ones(3, 2, dtype=torch.float64))


def test_what_attention_and_mlp_add_is_taken_after_their_scales(images: Tensor) -> None:
    scaled: Any = tiny.vit(init_values=0.5).double()
    plain: Any = tiny.vit().double()
    plain.load_state_dict({k: v for k, v in scaled.state_dict().items() if ".ls" not in k})
    with torch.no_grad():
        for block, other in zip(plain.blocks, scaled.blocks, strict=True):
            for linear, scale in ((block.attn.proj, other.ls1.gamma), (block.mlp.fc2, other.ls2.gamma)):
                linear.weight.mul_(scale[:, None])
                linear.bias.mul_(scale)
    got, want = (sightline.explain(model, images, "inflow", target=2).values for model in (scaled, plain))
    assert_close(got, want)


@pytest.mark.parametrize("recipe", ["inflow", "inflow(start=1)", "inflow(gate=False)"])
def test_several_targets_share_the_forward_pass(recipe: str, tiny_vit: nn.Module, images: Tensor) -> None:
    shares_one_run(recipe, tiny_vit, images)


@pytest.mark.parametrize("recipe", ["inflow", "inflow(gate=False)"])
def test_an_mlp_that_adds_nothing_changes_nothing(recipe: str, tiny_vit: nn.Module, images: Tensor) -> None:
    model: Any = tiny_vit
    with torch.no_grad():
        for block in model.blocks:
            for parameter in block.mlp.fc2.parameters():
                parameter.zero_()
    without = recipe.replace(")", ", mlp=False)") if "(" in recipe else f"{recipe}(mlp=False)"
    got, want = (sightline.explain(model, images, text, target=2).values for text in (recipe, without))
    assert torch.isfinite(got).all()
    assert_close(got, want)


@pytest.mark.filterwarnings("ignore:.* gave a constant map")
@pytest.mark.parametrize("recipe", ["inflow", "inflow(gate=False)", "inflow(mlp=False)"])
def test_empty_tokens_have_a_finite_flow(recipe: str, tiny_vit: nn.Module, images: Tensor) -> None:
    model: Any = tiny_vit
    with torch.no_grad():  # nothing enters the blocks, and they add nothing
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 or name in ("pos_embed", "cls_token"):
                parameter.zero_()
    values = sightline.explain(model, torch.zeros_like(images), recipe, target=2).values
    assert torch.isfinite(values).all()
