"""Grad-ECLIP, MaskCLIP, CLIP Surgery and M2IB: the formulas written out on a tiny open_clip model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.models.families_vit import EMBEDDING, FAMILIES, OPEN_CLIP, images
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

import sightline
from sightline import errors
from sightline.models.vit.zero_shot import ZeroShot, zero_shot

FAMILY = OPEN_CLIP["open_clip/clip"]
TEXTS = ("a cat", "a dog", "a red bus")


def classifier(texts: tuple[str, ...] = TEXTS) -> tuple[Any, ZeroShot, Tensor]:
    model: Any = FAMILY.build().double()
    embeddings = torch.randn(len(texts), EMBEDDING, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return model, zero_shot(model, texts, embeddings=embeddings), images(FAMILY).double()


def read(model: Any, tokens: Tensor) -> Tensor:
    """Turn tokens into unit embeddings, one by one."""
    return F.normalize(model.visual.ln_post(tokens) @ model.visual.proj, dim=-1)


def last_block(model: Any, pixels: Tensor) -> tuple[Any, Tensor]:
    """Return the last block and what enters it."""
    visual, entered = model.visual, []
    handle = visual.transformer.resblocks[-1].register_forward_pre_hook(lambda _module, args: entered.append(args[0]))
    visual(pixels)
    handle.remove()
    return visual.transformer.resblocks[-1], entered[0]


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (2, -1)).transpose(1, 2)


@pytest.mark.filterwarnings("ignore:grad_eclip gave a constant map")
def test_grad_eclip_is_the_papers_formula() -> None:
    model, adapter, pixels = classifier()
    block, tokens = last_block(model, pixels)
    tokens = tokens.detach()
    qkv = F.linear(block.ln_1(tokens), block.attn.in_proj_weight, block.attn.in_proj_bias)
    q, k, v = qkv.detach().chunk(3, dim=-1)
    context = F.scaled_dot_product_attention(heads(q), heads(k), heads(v)).transpose(1, 2).flatten(2)
    context = context.detach().requires_grad_()
    stream = tokens + block.attn.out_proj(context)
    stream = stream + block.mlp(block.ln_2(stream))
    score = adapter.scale * (read(model, stream[:, 0]) @ adapter.embeddings[1])
    (gradient,) = torch.autograd.grad(score.sum(), context)
    similarity = F.cosine_similarity(q[:, :1], k[:, 1:], dim=-1)
    low, high = similarity.amin(1, keepdim=True), similarity.amax(1, keepdim=True)
    want = (gradient[:, :1] * v[:, 1:]).sum(-1) * (similarity - low) / (high - low)
    got = sightline.explain(adapter, pixels, "grad_eclip", target=1)
    assert_close(got.map.flatten(1), want.clamp(min=0), rtol=1e-6, atol=1e-9)
    assert got.map.max() > 0
    assert (got.passes.forward, got.passes.backward) == (2, pytest.approx(2 / 3))


def test_mask_clip_reads_the_value_of_each_patch() -> None:
    model, adapter, pixels = classifier()
    block, tokens = last_block(model, pixels)
    value = F.linear(block.ln_1(tokens), block.attn.in_proj_weight, block.attn.in_proj_bias).chunk(3, dim=-1)[2]
    want = adapter.scale * (read(model, block.attn.out_proj(value))[:, 1:] @ adapter.embeddings[2])
    got = sightline.explain(adapter, pixels, "mask_clip", target=2)
    assert_close(got.map.flatten(1), want.detach(), rtol=1e-6, atol=1e-9)
    text = sightline.TextSimilarity("bus", embedding=tuple(adapter.embeddings[2].tolist()))
    alone = sightline.explain(model, pixels, "mask_clip", target=text)
    assert_close(alone.map * adapter.scale, got.map, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("blocks", [1, 6])
def test_clip_surgery_is_its_second_path_less_what_the_texts_share(blocks: int) -> None:
    model, adapter, pixels = classifier()
    ordinary = adapter.inner
    with torch.no_grad():
        tokens = ordinary.start(pixels)
        first = max(3 - blocks, 0)
        stream = ordinary.run(tokens, 0, first) if first else model.visual.ln_pre(tokens)
        second = stream
        for block in list(model.visual.transformer.resblocks)[first:]:
            qkv = F.linear(block.ln_1(stream), block.attn.in_proj_weight, block.attn.in_proj_bias)
            value = heads(qkv.chunk(3, dim=-1)[2])
            attended = F.scaled_dot_product_attention(value, value, value).transpose(1, 2).flatten(2)
            second = second + block.attn.out_proj(attended)
            stream = block(stream)
        probability = (2 * read(model, stream[:, 0]) @ adapter.embeddings.T).softmax(dim=-1)
        weight = (probability / probability.mean(dim=-1, keepdim=True))[:, None, :, None]
        features = read(model, second)[:, 1:, None, :] * adapter.embeddings * weight
        want = (features - features.mean(dim=2, keepdim=True)).sum(dim=-1)
    for index in range(3):
        got = sightline.explain(adapter, pixels, f"clip_surgery(blocks={blocks})", target=index)
        assert_close(got.map.flatten(1), want[..., index], rtol=1e-6, atol=1e-9)


def test_clip_surgery_needs_texts_to_compare() -> None:
    model, one, pixels = classifier(("a cat",))
    with pytest.raises(errors.UnsupportedModel, match="give two texts at least"):
        sightline.explain(one, pixels, "clip_surgery", target=0)
    with pytest.raises(errors.UnsupportedModel, match=r"load it with classes=\[…\], or use mask_clip"):
        sightline.explain(model, pixels, "clip_surgery", target=sightline.Value(0))


def test_m2ib_is_the_bottleneck_of_the_cosine_at_three_quarters_of_the_depth() -> None:
    model, adapter, pixels = classifier()
    text = sightline.TextSimilarity("dog", embedding=tuple(adapter.embeddings[1].tolist()))
    got = sightline.explain(adapter, pixels, "m2ib(steps=3)", target=1)
    want = sightline.explain(model, pixels, "m2ib(steps=3, layer=2)", target=text)
    assert_close(got.map, want.map, rtol=1e-6, atol=1e-9)
    assert got.map.min() >= 0 < got.map.max()


@pytest.mark.parametrize("method", ["grad_eclip", "mask_clip", "m2ib(steps=2)", "legrad"])
def test_siglip_is_explained_too(method: str) -> None:
    family = FAMILIES["transformers/siglip"]
    model: Any = family.build()
    adapter = zero_shot(model, TEXTS, embeddings=torch.randn(3, 32, generator=torch.Generator().manual_seed(0)))
    one, other = (sightline.explain(adapter, images(family), method, target=index).map for index in (0, 1))
    assert torch.isfinite(one).all()
    assert not torch.allclose(one, other)
