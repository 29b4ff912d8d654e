"""LeGrad: torchcam in the same process, CLIP with a text, attention pooling written out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests import tiny
from tests.models.families_vit import OPEN_CLIP, TORCHVISION
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import sightline
from sightline import errors


@pytest.mark.parametrize("start", [0, 1, 2])
def test_matches_torchcam(start: int, images: Tensor, parity) -> None:
    from torchcam.methods import LeGrad

    model: Any = TORCHVISION["torchvision/vit"].build().double().eval()
    with LeGrad(model, list(model.encoder.layers)[start:]) as peer:
        model(images)
        (mean,) = peer(class_idx=1, normalized=False)
    got = sightline.explain(model, images, f"legrad(start={start})", target=1).map
    assert_close(got, mean.detach() * (3 - start), rtol=1e-9, atol=1e-15)
    parity("legrad", "torchcam LeGrad", got, mean * (3 - start), 1e-9)


def test_takes_the_last_two_blocks_by_default(tiny_vit: nn.Module, images: Tensor) -> None:
    got = sightline.explain(tiny_vit, images, "legrad", target=1)
    assert_close(got.map, sightline.explain(tiny_vit, images, "legrad(start=1)", target=1).map)
    assert got.passes.backward == pytest.approx(2 * 2 / 3)


def test_explains_the_similarity_to_a_text(images: Tensor) -> None:
    model: Any = OPEN_CLIP["open_clip/clip"].build().double().eval()
    size = model.visual.image_size[0]
    pixels = F.interpolate(images, (size, size))
    width = sightline.adapt(model).num_classes
    assert width is not None
    text = sightline.TextSimilarity("a word", embedding=tuple(torch.randn(width).tolist()))
    one = sightline.explain(model, pixels, "legrad", target=text).map
    other = sightline.explain(model, pixels, "legrad", target=sightline.Value(0)).map
    assert one.min() >= 0 < one.max()
    assert not torch.allclose(tiny.min_max(one), tiny.min_max(other))


def test_pooling_attention_is_differentiated_where_a_model_has_one(images: Tensor) -> None:
    model: Any = tiny.vit(global_pool="map", class_token=False).double()
    got = sightline.explain(model, images, "legrad(start=1)", target=1).map
    tokens = model.norm_pre(model._pos_embed(model.patch_embed(images))).detach()
    want = torch.zeros(2, 16, dtype=torch.float64)
    for index, block in enumerate(model.blocks):
        tokens = block(tokens).detach()
        if index >= 1:
            want += pooled_gradient(model, tokens)
    assert_close(got.flatten(1), want, rtol=1e-9, atol=1e-15)


def pooled_gradient(model: Any, tokens: Tensor) -> Tensor:
    """The mean over heads of the positive gradient at the attention that pools the tokens."""
    pool, normed = model.attn_pool, model.norm(tokens)
    count, heads = len(tokens), pool.num_heads
    query = pool.q(pool.latent.expand(count, -1, -1)).reshape(count, 1, heads, -1).transpose(1, 2)
    key, value = pool.kv(normed).reshape(count, 16, 2, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
    query, key = pool.q_norm(query), pool.k_norm(key)
    attention = (query * pool.scale @ key.mT).softmax(dim=-1).detach().requires_grad_()
    x = pool.proj((attention @ value).transpose(1, 2).reshape(count, 1, -1))
    x = (x + pool.mlp(pool.norm(x)))[:, 0]
    score = model.head(model.fc_norm(x))[:, 1].sum()
    gradient: Tensor = torch.autograd.grad(score, attention)[0].clamp(min=0).mean(dim=1)[:, 0]
    return gradient


def test_blocks_that_are_not_there_are_refused(tiny_vit: nn.Module, images: Tensor) -> None:
    with pytest.raises(errors.RecipeError, match="has blocks 0 to 2"):
        sightline.explain(tiny_vit, images, "legrad(start=3)", target=1)
    with pytest.raises(errors.RecipeError, match="count blocks from 0"):
        sightline.parse("legrad(start=-1)")
