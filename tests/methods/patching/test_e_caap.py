"""E-CAAP against its formula, written out for one patch at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.methods.patching.test_caap import adapted, layers_of, near, same
from torch import Tensor, nn

import sightline
from sightline import Logit
from sightline.errors import RecipeError, UnsupportedModel
from sightline.methods.blank import blank_image
from sightline.methods.patching.caap import Caap
from sightline.methods.patching.e_caap import EfficientCaap
from sightline.models.vit.adapter import VisionTransformer


def seen_by(model: VisionTransformer, tokens: Tensor, block: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values of one sequence, (head, token, channel) each."""
    names = [f"block.{block}.{name}" for name in "qkv"]
    with model.capture(*names) as seen:
        model.step(tokens, block, None)
    q, k, v = (seen[name][0] for name in names)
    return q, k, v


def by_the_formula(model: VisionTransformer, image: Tensor, start: int, uniform: bool) -> Tensor:
    """Equations 7 to 9 for one patch at a time; plain exponentials. Returns the logits, (cell, class)."""
    blank = model.normalise(torch.ones_like(image))
    source, empty = layers_of(model, image), layers_of(model, blank)
    prefix, patches, logits = model.prefix, model.grid_of(image).cells, []
    for cell in range(patches):
        patched = near(model, image, cell, 1)
        free = empty[start][:, :prefix]
        for layer in range(start, model.depth):
            tokens = source[layer].clone()
            tokens[:, :prefix] = free
            q, k, v = seen_by(model, tokens, layer)
            blank_q, blank_k, blank_v = seen_by(model, empty[layer], layer)
            context = torch.zeros_like(v)
            for head in range(len(q)):
                for row in range(prefix):
                    looked = list(range(prefix)) + patched
                    size = q.shape[-1] ** 0.5
                    weights = torch.stack([(q[head, row] @ k[head, j] / size).exp() for j in looked])
                    blanks = (blank_k[head, prefix:] @ blank_q[head, row] / size).exp()
                    rest = blanks.sum() * (patches - len(patched)) / patches
                    share = torch.full_like(blanks, 1 / patches) if uniform else blanks / blanks.sum()
                    total = weights @ v[head, looked] + rest * (share @ blank_v[head, prefix:])
                    context[head, row] = total / (weights.sum() + rest)
            with model.edit({f"block.{layer}.context": context[None]}):
                free = model.step(tokens, layer, None)[:, :prefix]
        tokens = empty[model.depth].clone()
        tokens[:, :prefix] = free
        tokens[:, patched] = source[model.depth][:, patched]
        logits.append(model.finish(tokens))
    return torch.cat(logits)


@pytest.mark.parametrize("mean", ["attention", "uniform"])
@pytest.mark.parametrize("name", ["timm/vit", "timm/distilled", "transformers/dinov2", "timm/eva02_cls", "timm/oblong"])
@torch.no_grad()
def test_equals_the_formula(name: str, mean: Any) -> None:
    model, images = adapted(name)
    got = EfficientCaap(blank_mean=mean).multi_target(model, images, [Logit(1), Logit(4)])
    expected = by_the_formula(model, images[1:], start=1, uniform=mean == "uniform")
    for attribution, target in zip(got, (1, 4), strict=True):
        same(attribution.map[1].flatten(), expected[:, target])


@torch.no_grad()
def test_is_exact_where_nothing_is_blank_or_no_token_is_free() -> None:
    model, images = adapted("timm/vit")
    everything = EfficientCaap(start=0, radius=9)(model, images, Logit(2)).map
    same(everything, model(images)[:, 2, None, None].expand_as(everything))
    model, images = adapted("timm/classless")
    frozen = Caap(frozen=True)(model, images, Logit(2)).values
    assert torch.equal(EfficientCaap()(model, images, Logit(2)).values, frozen)


@torch.no_grad()
def test_a_blank_image_says_next_to_nothing(tiny_vit: nn.Module, images: Tensor) -> None:
    model = sightline.adapt(tiny_vit)
    blank = blank_image(model, images, "white")
    attribution = EfficientCaap()(model, blank, Logit(0))
    assert attribution.map.std() < 0.1 * EfficientCaap()(model, images, Logit(0)).map.std()
    same(attribution.details.blank, model(blank)[:, 0])


def test_follows_frozen_caap_on_a_photograph(real_vit: nn.Module, shared: Path) -> None:
    model = sightline.adapt(real_vit)
    photograph = sorted((shared / "data").glob("**/*.jpg"))
    assert photograph, "the shared folder holds no photograph"
    maps = {
        recipe: sightline.explain(model, photograph[0], recipe).map.flatten()
        for recipe in ("caap(frozen=True)", "e_caap", "e_caap(blank_mean='uniform')", "caap")
    }
    like = {recipe: torch.corrcoef(torch.stack([maps["caap(frozen=True)"], x]))[0, 1] for recipe, x in maps.items()}
    assert like["e_caap"] > 0.98
    assert like["e_caap"] > like["e_caap(blank_mean='uniform')"]
    assert like["caap"] > 0.9


def test_wrong_options_and_models_are_refused(tiny_cnn: nn.Module, images: Tensor) -> None:
    with pytest.raises(RecipeError, match="blank_mean='median'"):
        EfficientCaap(blank_mean="median")  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="start=-1"):
        EfficientCaap(start=-1)
    with pytest.raises(UnsupportedModel, match="e_caap"):
        sightline.explain(tiny_cnn, images, "e_caap", target=0)
