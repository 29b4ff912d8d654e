"""The gradient of attention weights: attention times values written out, and its sums over blocks."""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline.errors import RecipeError

DEPTH = 3


def written_out(model: nn.Module, images: Tensor, index: int) -> list[Tensor]:
    """Return ∂s/∂P of each block, (batch, head, to, from): P is multiplied with V, so it is the gradient of P V by V.

    What leaves the heads is read before the projection, from a timm block run by hand.
    """
    blocks = list(model.blocks)  # type: ignore[arg-type]
    tokens = model._pos_embed(model.patch_embed(images))  # type: ignore[operator]
    mixed, values = [], []
    for block in blocks:
        attention = block.attn
        batch, count, width = tokens.shape
        qkv = (
            attention.qkv(block.norm1(tokens)).reshape(batch, count, 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4)
        )
        query, key, value = qkv.unbind(0)
        probabilities = (query * attention.scale @ key.transpose(-2, -1)).softmax(dim=-1)
        out = probabilities @ value
        mixed.append(out)
        values.append(value)
        tokens = tokens + attention.proj(out.transpose(1, 2).reshape(batch, count, width))
        tokens = tokens + block.mlp(block.norm2(tokens))
    score = model.forward_head(model.norm(tokens))[:, index].sum()  # type: ignore[operator]
    gradients = torch.autograd.grad(score, mixed)
    return [g @ v.detach().transpose(-2, -1) for g, v in zip(gradients, values, strict=True)]


@pytest.fixture
def double_vit(tiny_vit: nn.Module) -> nn.Module:
    return tiny_vit.double()


def test_it_is_the_gradient_of_attention_times_values(double_vit: nn.Module, images: Tensor) -> None:
    images = images.double()
    expected = written_out(double_vit, images, 2)
    parts = {"signed": lambda g: g, "absolute": torch.abs, "positive": torch.relu}
    for variant, part in parts.items():
        for layer in range(DEPTH):
            got = sightline.explain(double_vit, images, f"att_grad(layer={layer}, variant='{variant}')", target=2)
            assert got.layers == (layer,)
            assert_close(got.map.flatten(1), part(expected[layer]).mean(dim=1)[:, 0, 1:], atol=1e-10, rtol=0)


def test_the_last_block_is_the_default_and_operators_sum_all(tiny_vit: nn.Module, images: Tensor) -> None:
    each = [sightline.explain(tiny_vit, images, f"att_grad(layer={layer})", target=2).map for layer in range(DEPTH)]
    last, plus, skip_plus = sightline.explain(
        tiny_vit, images, ["att_grad", "plus(att_grad)", "skip_plus(att_grad)"], target=2
    )
    assert torch.equal(last.map, each[-1])
    assert_close(plus.map, sum(each))
    assert_close(skip_plus.map, each[2])
    assert last.map.min() < 0 < last.map.max()


def test_one_block_costs_its_share_of_a_backward_pass(tiny_vit: nn.Module) -> None:
    adapter = sightline.adapt(tiny_vit)
    assert sightline.parse("att_grad").cost(adapter).backward == pytest.approx(1 / DEPTH)
    assert sightline.parse("plus(att_grad)").cost(adapter).backward == 1


@pytest.mark.parametrize("layer", [3, -4])
def test_a_block_that_the_model_has_not_is_refused(layer: int, tiny_vit: nn.Module, images: Tensor) -> None:
    with pytest.raises(RecipeError, match="has blocks 0 to 2"):
        sightline.explain(tiny_vit, images, f"att_grad(layer={layer})", target=2)
