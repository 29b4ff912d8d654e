"""AtMan: the formula written out from the weights, and its laws."""

from __future__ import annotations

import pytest
import torch
from tests import tiny
from tests.models import families_vit
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import sightline
from sightline.methods.sampling.at_man import suppression


def suppressed(model: nn.Module, tokens: Tensor, factors: Tensor, spared: int = 1) -> Tensor:
    """Run the blocks by hand with the columns of every attention multiplied, but for the rows of the first tokens."""
    for block in model.blocks:  # type: ignore[union-attr]
        q, k, v = block.attn.qkv(block.norm1(tokens)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / 8**0.5
        changed = (scores - scores.amin(dim=-1, keepdim=True)) * factors
        scores = torch.cat([scores[:, :, :spared], changed[:, :, spared:]], dim=2)
        mixed = scores.softmax(dim=-1) @ v
        tokens = tokens + block.attn.proj(mixed.transpose(1, 2).flatten(2))
        tokens = tokens + block.mlp(block.norm2(tokens))
    return model.forward_head(model.norm(tokens)).log_softmax(dim=-1).detach()  # type: ignore[no-any-return,operator]


@pytest.mark.parametrize(("kappa", "variant"), [(None, "patches"), (0.3, "patches"), (0.3, "all")])
def test_is_the_formula_written_out(kappa: float | None, variant: str, tiny_vit: nn.Module, images: Tensor) -> None:
    recipe, spared = f"at_man(factor=0.2, kappa={kappa}, variant={variant!r})", int(variant == "patches")
    got = sightline.explain(tiny_vit, images, recipe, target=(1, 4))
    assert got.passes.forward == 2 * 17
    for row, index in ((0, 1), (1, 4)):
        tokens = tiny_vit._pos_embed(tiny_vit.patch_embed(images[row : row + 1]))  # type: ignore[operator]
        clean = suppressed(tiny_vit, tokens, torch.ones(17, dtype=torch.float64))[0, index]
        assert_close(clean, tiny_vit(images).log_softmax(dim=-1)[row, index].detach())
        for patch in range(16):
            factors = torch.ones(17, dtype=torch.float64)
            for other in range(16):
                cosine = F.cosine_similarity(tokens[0, 1 + patch], tokens[0, 1 + other], dim=0).item()
                if other == patch or (kappa is not None and cosine >= kappa):
                    factors[1 + other] = 0.8 * (1 - cosine) + 0.2
            lost = clean - suppressed(tiny_vit, tokens, factors, spared)[0, index]
            assert_close(got.map[row].flatten()[patch], lost, rtol=1e-9, atol=1e-12)


def test_a_factor_of_one_changes_nothing(tiny_vit: nn.Module, images: Tensor) -> None:
    adapter = sightline.adapt(tiny_vit)
    method = sightline.recipe.parse("at_man(factor=1.0, kappa=0.0)")
    with torch.no_grad():
        got = method(adapter, images, sightline.Logit(0)).values
    assert_close(got, torch.zeros_like(got), atol=1e-12, rtol=0)


def test_like_patches_are_suppressed_along_and_prefix_tokens_never() -> None:
    tokens = torch.tensor([[[9.0, 9.0], [1.0, 0.0], [1.0, 1.0], [0.0, 2.0], [3.0, 0.0]]])
    assert_close(suppression(tokens, 1, 0.1, None), F.pad(1 - 0.9 * torch.eye(4), (1, 0), value=1.0)[None])
    half = 0.1 + 0.9 * (1 - 0.5**0.5)
    assert_close(suppression(tokens, 1, 0.1, 0.6)[0, 0], torch.tensor([1.0, 0.1, half, 1.0, 0.1]))
    assert_close(suppression(tokens, 1, 0.1, 0.8)[0, 0], torch.tensor([1.0, 0.1, 1.0, 1.0, 0.1]))


def test_a_pooled_model_needs_no_class_token(images: Tensor) -> None:
    model = tiny.vit(global_pool="avg", class_token=False).double()
    got = sightline.explain(model, images, "at_man", target=0)
    assert got.map.shape == (2, 4, 4)
    assert got.map.std() > 0
    assert_close(got.map, sightline.explain(model, images, "at_man(variant='all')", target=0).map)


def test_the_tokens_that_a_distilled_classifier_reads_look_as_before(images: Tensor) -> None:
    family = families_vit.FAMILIES["timm/distilled"]
    adapter, seen = sightline.adapt(family.build().double()), []
    with torch.no_grad(), adapter.capture("block.0.probabilities") as clean:
        adapter(images[:1])
    with torch.no_grad(), adapter.edit({"block.0.probabilities": lambda p: seen.append(p) or p}):  # type: ignore[func-returns-value]
        sightline.recipe.parse("at_man(kappa=None)")(adapter, images[:1], sightline.Logit(0))
    suppressed_ = torch.cat([p for p in seen if len(p) > 1])
    same = (suppressed_ - clean["block.0.probabilities"]).abs().amax(dim=(0, 1, 3)) < 1e-12
    assert same.tolist() == [True, True] + [False] * 16


def test_a_target_of_its_own_is_followed(tiny_vit: nn.Module, images: Tensor) -> None:
    own = sightline.explain(tiny_vit, images, "at_man", target=lambda logits: logits[:, 2]).map
    assert_close(own, sightline.explain(tiny_vit, images, "at_man(score='logit')", target=2).map)


@pytest.mark.parametrize("options", ["factor=-0.1", "factor=1e999", "kappa=1.5", "score='loss'", "variant='rows'"])
def test_options_that_make_no_sense_are_refused(options: str) -> None:
    with pytest.raises(sightline.errors.RecipeError, match="got "):
        sightline.recipe.parse(f"at_man({options})")
