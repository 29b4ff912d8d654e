"""Bi-Attn, transition attention maps and the integrated attention gradients they share."""

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
from sightline.types import Passes

RANDOM_VIT = [
    ("tam(start=0, steps=5)", "tam_start0_steps5", 1e-5),
    ("t_attn(steps=5)", "t_attn_mda_steps5", 1e-6),
    ("bi_attn(start=2, steps=5)", "bi_attn_head_start2_steps5", 1e-5),
    ("bi_attn(variant='token', start=2, steps=5)", "bi_attn_token_start2_steps5", 1e-5),
]
PHOTO = [
    ("bi_attn", "biattn_head_start4_A"),
    ("bi_attn(variant='token', start=7)", "biattn_token_start7_A"),
    ("tam", "tam_start4_A"),
    ("t_attn", "tattn_mda_A"),
    ("att_ig", "ig_mda_A"),
]
FAST = ["bi_attn(steps=3)", "bi_attn(steps=3, variant='token')", "tam(steps=3)", "t_attn(steps=3)", "att_ig(steps=3)"]


@pytest.mark.parametrize(("recipe", "key", "eps"), RANDOM_VIT)
def test_matches_the_authors_code_on_a_random_vit(recipe: str, key: str, eps: float) -> None:
    agrees_on_a_random_vit(recipe, key, eps)


@pytest.mark.shared
@pytest.mark.parametrize(("recipe", "file"), PHOTO)
def test_reaches_the_authors_numbers_in_float64(recipe: str, file: str, shared: Path, real_vit: nn.Module) -> None:
    assert_close(*on_a_photograph(recipe, file, shared, real_vit, torch.float64), atol=1e-8, rtol=0)


@pytest.mark.shared
@pytest.mark.parametrize(("recipe", "file"), [("tam(start=0)", "tam_start0_A"), ("bi_attn", "biattn_mda_start4_A")])
def test_matches_the_authors_code_on_a_photograph(recipe: str, file: str, shared: Path, real_vit: nn.Module) -> None:
    assert_close(*on_a_photograph(recipe, file, shared, real_vit, torch.float32), atol=1e-5, rtol=0)


def attention_and_gradients(model: nn.Module, images: Tensor, index: int) -> tuple[list[Tensor], list[Tensor]]:
    """Differentiate the whole model, all blocks at once."""
    adapter = sightline.adapt(model)
    with adapter.capture("block.*.probabilities", gradient=True) as seen:
        score = adapter(images)[:, index].sum()
    return [p.detach() for p in seen.values()], list(torch.autograd.grad(score, list(seen.values())))


def integrated(model: nn.Module, images: Tensor, index: int, steps: int) -> Tensor:
    scaled = [attention_and_gradients(model, images * k / (steps - 1), index)[1][-1] for k in range(steps)]
    return torch.stack(scaled).mean(dim=0).relu().mean(dim=1)


@pytest.mark.parametrize("start", [1, 2, 3])
def test_bi_attn_written_out(start: int, tiny_vit: nn.Module, images: Tensor) -> None:
    attention, gradients = attention_and_gradients(tiny_vit, images, 2)
    carried = torch.eye(17, dtype=torch.float64)
    for p, g in list(zip(attention, gradients, strict=True))[start - 1 :]:
        matter = (p.mT @ g).abs().mean(dim=(2, 3))
        mixed = (p * (matter / matter.sum(dim=1, keepdim=True))[:, :, None, None]).sum(dim=1)
        carried = carried + mixed @ carried
    want = (integrated(tiny_vit, images, 2, 4) * carried)[:, 0, 1:]
    got = sightline.explain(tiny_vit, images, f"bi_attn(steps=4, start={start})", target=2).map
    assert_close(got.flatten(1), want)


@pytest.mark.parametrize(("recipe", "twice"), [("tam(steps=4, start=0)", False), ("t_attn(steps=4)", True)])
def test_transitions_written_out(recipe: str, twice: bool, tiny_vit: nn.Module, images: Tensor) -> None:
    attention = [p.mean(dim=1) for p in attention_and_gradients(tiny_vit, images, 2)[0]]
    state = attention[-1][:, :1]
    for matrix in reversed(attention if twice else attention[:-1]):
        state = state + state @ matrix
    want = state[:, 0, 1:] * integrated(tiny_vit, images, 2, 4)[:, 0, 1:]
    assert_close(sightline.explain(tiny_vit, images, recipe, target=2).map.flatten(1), want)


def test_att_ig_is_the_integrated_gradient_alone(tiny_vit: nn.Module, images: Tensor) -> None:
    got = sightline.explain(tiny_vit, images, "att_ig(steps=4)", target=2).map
    assert_close(got.flatten(1), integrated(tiny_vit, images, 2, 4)[:, 0, 1:])


def test_pooled_models_average_the_rows_of_the_patches(images: Tensor) -> None:
    model = tiny.vit(global_pool="avg", class_token=False).double()
    attention, gradients = attention_and_gradients(model, images, 2)
    matter = (attention[-1].mT @ gradients[-1]).abs().mean(dim=(2, 3))
    mixed = (attention[-1] * (matter / matter.sum(dim=1, keepdim=True))[:, :, None, None]).sum(dim=1)
    want = (integrated(model, images, 2, 4) * (torch.eye(16, dtype=torch.float64) + mixed)).mean(dim=1)
    assert_close(sightline.explain(model, images, "bi_attn(steps=4, start=3)", target=2).map.flatten(1), want)


def test_token_shares_ignore_the_projections_bias(tiny_vit: nn.Module, images: Tensor) -> None:
    recipe = "bi_attn(steps=2, start=3, variant='token')"
    model: Any = tiny_vit
    adapter = sightline.adapt(model)
    with adapter.capture("block.2.input", "block.2.v", "block.2.probabilities") as seen, torch.no_grad():
        adapter(images)
    values = seen["block.2.v"].transpose(1, 2).flatten(2) @ model.blocks[2].attn.proj.weight.detach().T
    share = values.norm(dim=-1) / seen["block.2.input"].norm(dim=-1)
    carried = torch.eye(17, dtype=torch.float64) + seen["block.2.probabilities"].mean(dim=1) * share[:, None]
    want = (integrated(tiny_vit, images, 1, 2) * carried)[:, 0, 1:]
    assert_close(sightline.explain(tiny_vit, images, recipe, target=1).map.flatten(1), want)


@pytest.mark.parametrize("recipe", FAST)
def test_several_targets_share_the_forward_passes(recipe: str, tiny_vit: nn.Module, images: Tensor) -> None:
    shares_one_run(recipe, tiny_vit, images)


@pytest.mark.parametrize(
    ("recipe", "starts"), [("bi_attn(steps=3, start={})", (1, 2, 3)), ("tam(steps=3, start={})", (0, 1, 2))]
)
def test_layer_l_is_the_method_started_at_l(
    recipe: str, starts: tuple[int, ...], tiny_vit: nn.Module, images: Tensor
) -> None:
    every = sightline.explain(tiny_vit, images, recipe.format(starts[0]), target=1).values
    assert len(every) == 3
    for index, start in enumerate(starts):
        assert_close(every[index], sightline.explain(tiny_vit, images, recipe.format(start), target=1).map)


@pytest.mark.parametrize("recipe", ["bi_attn(steps=3{})", "tam(steps=3{})", "t_attn(steps=3{})"])
def test_operators_get_every_start_layer(recipe: str, tiny_vit: nn.Module, images: Tensor) -> None:
    earliest = recipe.format(f", start={1 if 'bi_attn' in recipe else 0}")
    every = sightline.explain(tiny_vit, images, earliest, target=1).values
    got = sightline.explain(tiny_vit, images, f"plus({recipe.format('')})", target=1).map
    assert_close(got, every.sum(dim=0))


class Doubled(nn.Module):
    """A user's wrapper, whose blocks cannot be run apart from it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        return self.inner(images) * 1.0  # type: ignore[no-any-return]


@pytest.mark.parametrize("recipe", FAST)
def test_blocks_that_cannot_be_run_alone_give_the_same(recipe: str, tiny_vit: nn.Module, images: Tensor) -> None:
    wrapped = sightline.adapt(Doubled(tiny_vit).eval())
    assert "tokens" not in wrapped.offers
    got = sightline.explain(wrapped, images, recipe, target=1).values
    assert_close(got, sightline.explain(tiny_vit, images, recipe, target=1).values)


def test_only_the_last_block_is_differentiated(tiny_vit: nn.Module, images: Tensor) -> None:
    adapter = sightline.adapt(tiny_vit)
    assert sightline.parse("tam(steps=6)").cost(adapter) == Passes(6, 2)
    assert sightline.parse("bi_attn(steps=7, start=2)").cost(adapter).backward == pytest.approx(2 / 3 + 6 / 3)


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("bi_attn(steps=1)", "got steps=1; at least two"),
        ("bi_attn(start=0)", "got start=0; bi_attn counts the blocks of VisionTransformer from 1 to 3"),
        ("bi_attn(start=4)", "got start=4; bi_attn counts the blocks of VisionTransformer from 1 to 3"),
        ("tam(start=3)", "got start=3; VisionTransformer has blocks 0 to 2"),
        ("t_attn(start=-1)", "got start=-1; VisionTransformer has blocks 0 to 2"),
    ],
)
def test_refuses_what_it_cannot_do(recipe: str, words: str, tiny_vit: nn.Module, images: Tensor) -> None:
    with pytest.raises(sightline.errors.RecipeError, match=words):
        sightline.explain(tiny_vit, images, recipe, target=0)


def test_the_variant_of_the_mda_paper_goes_by_both_names(tiny_vit: nn.Module, images: Tensor) -> None:
    for options in ("steps=3", "steps=3, start=1"):
        got = sightline.explain(tiny_vit, images, f"tam({options}, variant='mda')", target=2)
        want = sightline.explain(tiny_vit, images, f"t_attn({options})", target=2)
        assert_close(got.values, want.values, rtol=0, atol=0)
        assert got.passes == want.passes


def test_a_token_without_a_stream_has_no_share_of_it(tiny_vit: nn.Module, images: Tensor) -> None:
    model: Any = tiny_vit
    with torch.no_grad():
        model.patch_embed.proj.bias.zero_()
        model.pos_embed[:, 1].zero_()
    images[:, :, :8, :8] = 0
    values = sightline.explain(model, images, "bi_attn(steps=2, start=1, variant='token')", target=2).values
    assert torch.isfinite(values).all()
    assert values.flatten(2).std(dim=-1).min() > 0
