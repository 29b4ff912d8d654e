"""Relevance of a transformer's pixels: nothing is lost on the way, and every rule written out with autograd."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import tiny
from tests.methods.reference import shares_one_run
from tests.models import families_vit
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import sightline
from sightline.methods.relevance.attention import run_for_relevance
from sightline.methods.relevance.vit_pixels import Embedding, embed
from sightline.methods.relevance.vit_rules import Layer, Rules
from sightline.models.vit.adapter import VisionTransformer

PLAIN = [
    "timm/vit", "timm/gap", "timm/classless", "timm/distilled", "timm/registers", "timm/clip", "timm/layer_scale",
    "timm/oblong", "timm/map", "torchvision/vit", "transformers/vit", "transformers/registers", "transformers/clip",
    "open_clip/clip",
]  # fmt: skip


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


# ---- conservation ---------------------------------------------------------------------------------------------------


@torch.no_grad()
def totals(model: nn.Module, images: Tensor, target: int) -> tuple[list[Tensor], Tensor]:
    """The relevance of what enters each block, and of pixels, positions and prefix tokens together."""
    adapter, rules = sightline.adapt(model), Rules()
    assert isinstance(adapter, VisionTransformer)
    run = run_for_relevance(adapter, images, [sightline.Logit(target)], 0, gradient=False)
    streams = list(rules.stream_relevance(run.traces, run.head_relevance(0, rules), adapter.depth))
    pixels, positions = embed(adapter, images).propagate(rules, streams[-1][:, adapter.prefix :])
    parts = (pixels, positions, streams[-1][:, : adapter.prefix])
    return [r.sum(dim=(1, 2)) for r in streams], sum(part.flatten(1).sum(dim=1) for part in parts)  # type: ignore[return-value]


@pytest.mark.parametrize("name", PLAIN)
def test_a_relevance_of_one_arrives_whole(name: str) -> None:
    family = families_vit.FAMILIES[name]
    model, images = family.build().double(), families_vit.images(family).double()
    blocks, arrived = totals(model, images, 2)
    assert_close(torch.stack(blocks), torch.ones(3, 2, dtype=torch.float64), atol=1e-4, rtol=0)
    assert_close(arrived, torch.ones(2, dtype=torch.float64), atol=1e-4, rtol=0)


@pytest.mark.shared
def test_a_relevance_of_one_arrives_whole_on_a_photograph(shared: Path, real_vit: nn.Module) -> None:
    photo = np.load(shared / "golden/photo/inputs_A.npz")
    blocks, arrived = totals(real_vit.double(), torch.from_numpy(photo["input"]).double(), int(photo["target"]))
    assert_close(torch.stack(blocks), torch.ones(12, 1, dtype=torch.float64), atol=1e-3, rtol=0)
    assert_close(arrived, torch.ones(1, dtype=torch.float64), atol=1e-3, rtol=0)


@pytest.mark.shared
def test_the_middle_block_is_where_single_precision_ends(shared: Path, real_vit: nn.Module) -> None:
    photo = np.load(shared / "golden/photo/inputs_A.npz")
    images, target = torch.from_numpy(photo["input"]), int(photo["target"])

    def alike(recipe: str) -> float:
        single = sightline.explain(real_vit.float(), images, recipe, target=target).map
        double = sightline.explain(real_vit.double(), images.double(), recipe, target=target).map
        return float(np.corrcoef(single.flatten(), double.flatten())[0, 1])

    assert alike("lrp(layer=6)") >= 0.95
    assert alike("lrp") < 0.95  # the card warns of it


def test_the_older_rules_give_everything_to_both_halves() -> None:
    x, weight, relevance = random(2, 4, 24), random(5, 24), random(2, 4, 5)
    assert_close(
        Rules(joint=False).linear(x, Layer(weight), relevance).sum(), 2 * relevance.sum(), rtol=1e-6, atol=1e-6
    )


# ---- every rule written out with autograd ---------------------------------------------------------------------------


def over(relevance: Tensor, z: Tensor) -> Tensor:
    return relevance / (z + 1e-9)


def pull(make: Any, x: Tensor, relevance: Tensor) -> Tensor:
    """Hand relevance back in proportion: x ⊙ ∂z/∂x · R/z."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        z = make(leaf)
    return leaf.detach() * torch.autograd.grad(z, leaf, over(relevance, z.detach()))[0]


def through_linear(x: Tensor, weight: Tensor, relevance: Tensor, joint: bool) -> Tensor:
    up, down = weight.clamp(min=0), weight.clamp(max=0)
    halves = ((x.clamp(min=0), up), (x.clamp(max=0), down))
    if not joint:
        return sum(pull(lambda x, w=w: F.linear(x, w), half, relevance) for half, w in halves)  # type: ignore[return-value]
    sizes = x.shape[-1]
    both = torch.cat([half for half, _ in halves], dim=-1)
    found = pull(lambda x: F.linear(x[..., :sizes], up) + F.linear(x[..., sizes:], down), both, relevance)
    return found[..., :sizes] + found[..., sizes:]


def through_sum(a: Tensor, b: Tensor, relevance: Tensor, joint: bool) -> tuple[Tensor, Tensor]:
    parts = [x * over(relevance, a + b) for x in (a, b)]
    if joint:
        sums = [p.sum() for p in parts]
        size = sums[0].abs() + sums[1].abs()
        parts = [p * over(over(s.abs(), size) * relevance.sum(), s) for p, s in zip(parts, sums, strict=True)]
    return parts[0], parts[1]


def twice(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return x * (over(first, x) + over(second, x))


@torch.no_grad()
def written_out(model: Any, image: Tensor, target: int, joint: bool) -> Tensor:
    """Full relevance of one image on timm's class-token model, block by block."""
    patches = model.patch_embed(image)
    x, streams = model._pos_embed(patches), []
    for block in model.blocks:
        streams.append(x)
        x = block(x)
    tokens = model.norm(x)
    relevance = torch.zeros_like(tokens)
    only = F.one_hot(torch.tensor([target]), model.num_classes).double()
    cls = through_linear(tokens[:, 0], model.head.weight, only, joint)
    relevance[:, 0] = tokens[:, 0] * over(cls, tokens[:, 0])
    for block, x in zip(reversed(model.blocks), reversed(streams), strict=True):
        relevance = through_block(block, x, relevance, joint)
    got, _ = through_sum(patches, model.pos_embed[:, 1:], relevance[:, 1:], joint)
    low, high, weight = image.min(), image.max(), model.patch_embed.proj.weight
    back = got.transpose(1, 2).unflatten(2, (4, 4))
    columns = F.unfold(image, 8, stride=8)  # (1, 192, patch)
    contributions = columns[:, None] * weight.flatten(1)[None, ..., None]
    contributions = contributions - (low * weight.clamp(min=0) + high * weight.clamp(max=0)).flatten(1)[None, ..., None]
    shares = contributions / (contributions.sum(dim=2, keepdim=True) + 1e-9)
    pixels = (shares * back.flatten(2)[:, :, None]).sum(dim=1)
    return F.fold(pixels, 32, 8, stride=8).sum(dim=1)[0]


def through_block(block: Any, x: Tensor, relevance: Tensor, joint: bool) -> Tensor:
    attend, normed = block.attn, block.norm1(x)
    q, k, v = attend.qkv(normed).unflatten(-1, (3, attend.num_heads, -1)).permute(2, 0, 3, 1, 4)
    attention = (q @ k.mT * attend.scale).softmax(dim=-1)
    context = (attention @ v).transpose(1, 2).flatten(2)
    attended = attend.proj(context)
    middle = x + attended
    hidden = block.mlp.act(block.mlp.fc1(block.norm2(middle)))
    fed = block.mlp.fc2(hidden)
    kept, r = through_sum(middle, fed, relevance, joint)
    r = through_linear(hidden, block.mlp.fc2.weight, r, joint)
    r = through_linear(block.norm2(middle), block.mlp.fc1.weight, r, joint)
    kept, r = through_sum(x, attended, twice(middle, kept, r), joint)
    r = through_linear(context, attend.proj.weight, r, joint).unflatten(2, (attend.num_heads, -1)).transpose(1, 2)
    r_a, r_v = pull(lambda a: a @ v, attention, r) / 2, pull(lambda v: attention @ v, v, r) / 2
    r_q, r_k = pull(lambda q: q @ k.mT, q, r_a) / 2, pull(lambda k: q @ k.mT, k, r_a) / 2
    made = torch.stack([r_q, r_k, r_v]).permute(1, 3, 0, 2, 4).flatten(2)
    return twice(x, kept, through_linear(normed, attend.qkv.weight, made, joint))


@pytest.mark.parametrize(("recipe", "joint"), [("lrp", True), ("lrp(preset='chefer')", False)])
def test_is_its_rules_written_out_image_by_image(recipe: str, joint: bool, tiny_vit: nn.Module, images: Tensor) -> None:
    got = sightline.explain(tiny_vit, images, recipe, target=(3, 1))
    assert got.map.shape == (2, 32, 32)
    for row, target in enumerate((3, 1)):
        want = written_out(tiny_vit, images[row : row + 1], target, joint)
        assert_close(got.map[row] / want.abs().max(), want / want.abs().max(), rtol=0, atol=1e-9)


def test_pixels_share_by_how_far_they_are_from_their_bounds() -> None:
    weight, pixels, relevance = random(6, 3, 4, 4), random(2, 3, 8, 4), random(2, 2, 6)
    embedding = Embedding(pixels, weight, random(2, 2, 6), torch.zeros(2, 2, 6, dtype=torch.float64))
    got, positions = embedding.propagate(Rules(joint=False), relevance)
    assert not positions.any()
    columns = F.unfold(pixels, 4, stride=4).transpose(1, 2)  # (batch, patch, pixel)
    w = weight.flatten(1)
    for row in range(2):
        low, high = pixels[row].min(), pixels[row].max()
        each = columns[row][:, None] * w - low * w.clamp(min=0) - high * w.clamp(max=0)
        assert (each >= 0).all()
        want = (each / each.sum(dim=-1, keepdim=True) * relevance[row][..., None]).sum(dim=1)
        assert_close(F.unfold(got[row : row + 1], 4, stride=4)[0].T, want, rtol=1e-6, atol=1e-9)


# ---- on models ------------------------------------------------------------------------------------------------------


def test_tokens_that_enter_a_block_have_relevance_too(tiny_vit: nn.Module, images: Tensor) -> None:
    adapter = sightline.adapt(tiny_vit)
    with torch.no_grad():
        run = run_for_relevance(adapter, images, [sightline.Logit(1)], 0, gradient=False)  # type: ignore[arg-type]
        *_, last, middle, _ = Rules().stream_relevance(run.traces, run.head_relevance(0, Rules()), 3)
    for layer, want in ((2, last), ("block.1.input", middle), (-2, middle)):
        got = sightline.explain(tiny_vit, images, f"lrp(layer={layer!r})", target=1)
        assert_close(got.map.flatten(1), want.sum(dim=-1)[:, 1:])
        assert got.passes.backward == pytest.approx(2 * 2 * (1 / 3 if layer == 2 else 2 / 3))


@pytest.mark.parametrize("recipe", ["lrp", "lrp(preset='chefer')", "lrp(layer=1)"])
def test_several_targets_share_the_forward_pass(recipe: str, tiny_vit: nn.Module, images: Tensor) -> None:
    shares_one_run(recipe, tiny_vit, images)


def test_a_wrapper_that_normalises_inside_is_seen_through(tiny_vit: nn.Module, images: Tensor) -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = tiny_vit

        def forward(self, raw: Tensor) -> Tensor:
            return self.inner(raw * 2 - 1) * 3  # type: ignore[no-any-return]

    outside = sightline.explain(Wrapper().eval(), (images + 1) / 2, "lrp", target=1).map
    assert_close(outside, sightline.explain(tiny_vit, images, "lrp", target=1).map, rtol=1e-6, atol=1e-9)


def test_a_model_that_is_none_of_both_is_told_what_works(images: Tensor) -> None:
    with pytest.raises(sightline.errors.UnsupportedModel, match=r"lrp needs gradients; .* Methods that work: .*random"):
        sightline.explain(lambda x: torch.from_numpy(x.numpy().mean(-1)).flatten(1), images, "lrp", target=1)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("timm/hybrid", "more than one convolution of the pixels plus positions.*t_attr"),
        ("timm/eva02", "not plain ones.*use gae"),
    ],
)
def test_models_without_a_rule_are_refused(name: str, says: str) -> None:
    family = families_vit.FAMILIES[name]
    with pytest.raises(sightline.errors.UnsupportedModel, match=says):
        sightline.explain(family.build(), families_vit.images(family), "lrp", target=0)


def test_an_embedding_that_norms_its_patches_is_refused(images: Tensor) -> None:
    model: Any = tiny.vit().double()
    model.patch_embed.norm = nn.LayerNorm(16).double().eval()
    with pytest.raises(sightline.errors.UnsupportedModel, match="more than one convolution"):
        sightline.explain(model, images, "lrp", target=0)


@pytest.mark.parametrize("options", ["composite='epsilon'", "preset='captum'"])
def test_what_is_for_convolutions_is_refused(options: str, tiny_vit: nn.Module, images: Tensor) -> None:
    with pytest.raises(sightline.errors.UnsupportedModel, match="are for convolutional networks; write lrp"):
        sightline.explain(tiny_vit, images, f"lrp({options})", target=0)


def test_what_is_for_transformers_is_refused_elsewhere(tiny_cnn: nn.Module, images: Tensor) -> None:
    with pytest.raises(sightline.errors.UnsupportedModel, match="is no transformer, and preset='chefer'"):
        sightline.explain(tiny_cnn, images, "lrp(preset='chefer')", target=0)


@pytest.mark.parametrize("layer", [3, "block.1.norm1"])
def test_a_layer_that_is_no_blocks_input_is_refused(layer: Any, tiny_vit: nn.Module, images: Tensor) -> None:
    with pytest.raises(sightline.errors.SiteError, match=r"write 0 to 2, or block\.0\.input to block\.2\.input"):
        sightline.explain(tiny_vit, images, f"lrp(layer={layer!r})", target=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["timm/vit", "torchvision/vit", "transformers/vit"])
def test_rounding_is_not_mistaken_for_another_embedding(name: str, dtype: torch.dtype) -> None:
    family = families_vit.FAMILIES[name]
    values = sightline.explain(family.build().to(dtype), families_vit.images(family).to(dtype), "lrp", target=2).values
    assert values.dtype == torch.float32
    assert torch.isfinite(values).all()
