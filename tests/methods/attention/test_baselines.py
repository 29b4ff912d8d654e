"""Every baseline for vision transformers on every kind of them: a sound map, or a refusal that says what works."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from tests.models import families_vit
from torch import Tensor, nn

import sightline
from sightline.models.adapter import Adapter
from sightline.registry import METHODS

RECIPES = [
    "raw_attention",
    "rollout",
    "rollout(start=1)",
    "rollout(variant='vit_explain', fusion='max')",
    "gae",
    "grad_rollout",
    "grad_rollout(variant='vit_explain')",
    "att_cam",
    "att_cam(variant='mda')",
    "grad_sam",
    "grad_sam(rows='mean')",
    "att_ixg",
    "att_ixg(shift=1)",
    "att_cat",
    "att_cat(shift=1)",
    "cat",
    "t_attr",
    "t_attr(start=0)",
    "t_attr(variant='mda')",
    "lrp_rollout",
    "partial_lrp",
    "partial_lrp(variant='gradient')",
    "lrp",
    "lrp(layer=2)",
    "tam(steps=3)",
    "t_attn(steps=3)",
    "att_ig(steps=3)",
    "bi_attn(steps=3)",
    "bi_attn(steps=3, variant='token')",
    "inflow",
    "inflow(gate=False, mlp=False)",
    "mutex",
    "tis(samples=6)",
    "vit_cx(tau=0.3)",
    "at_man",
    "at_man(kappa=None, variant='all')",
    "globenc",
    "alti",
    "att_in",
    "ixg",
    "full_grad",
    "grad_cam",
    "grad_cam(variant='stream')",
    "grad_cam_pp",
    "xgrad_cam",
    "xgrad_cam_plus",
    "layer_cam",
    "hires_cam",
    "grad_cam_elementwise",
]
KINDS = {
    "class token": "timm/vit",
    "distilled": "timm/distilled",
    "registers": "timm/registers",
    "pooled": "timm/gap",
    "pooled, no prefix": "timm/classless",
    "attention pooling": "timm/map",
    "torchvision": "torchvision/vit",
    "transformers": "transformers/vit",
    "transformers, distilled": "transformers/distilled",
    "transformers, class and mean": "transformers/registers",
    "EVA": "timm/eva",
    "EVA-02, rotary": "timm/eva02",
    "rotary, mixed": "timm/rope_mixed",
    "open_clip": "open_clip/clip",
}
REFUSED = {"EVA-02, rotary": {"t_attr", "lrp_rollout", "partial_lrp", "lrp"}}  # no rule for its gated MLP


SINGLE = {"rotary, mixed"}  # timm keeps its rotary table in single precision
SILENT = {"att_cam", "partial_lrp"}  # positive parts, which may be empty on a random model


@cache
def build(kind: str, dtype: torch.dtype) -> Adapter:
    return sightline.adapt(families_vit.FAMILIES[KINDS[kind]].build().to(dtype))


def explain(recipe: Any, kind: str, images: Tensor, target: int | tuple[int, ...] = 2) -> sightline.Attribution:
    return sightline.explain(build(kind, images.dtype), images, recipe, target=target)


def pictures(kind: str, count: int, dtype: torch.dtype | None = None) -> Tensor:
    dtype = dtype or (torch.float32 if kind in SINGLE else torch.float64)
    return families_vit.images(families_vit.FAMILIES[KINDS[kind]], count).to(dtype)


def name_of(recipe: str) -> str:
    return recipe.split("(")[0]


OF_PROBABILITIES = {"mutex", "tis", "vit_cx", "at_man"}  # score='probability' unless told otherwise


def refused(recipe: str, kind: str) -> bool:
    return name_of(recipe) in REFUSED.get(kind, set())


@pytest.mark.filterwarnings("ignore:.* gave a constant map")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_gives_a_sound_map_or_names_what_works(recipe: str, kind: str) -> None:
    images = pictures(kind, 2)
    if kind == "open_clip" and name_of(recipe) in OF_PROBABILITIES:  # an embedding has none
        with pytest.raises(sightline.errors.TargetError, match="has no probabilities"):
            explain(recipe, kind, images)
        followed = replace(sightline.parse(recipe), score="logit")
        assert torch.isfinite(explain(followed, kind, images).values).all()
        return
    if refused(recipe, kind):
        with pytest.raises(sightline.errors.UnsupportedModel) as caught:
            explain(recipe, kind, images)
        named = [word for word in re.findall(r"\w+", str(caught.value).split(";")[-1]) if word in METHODS]
        assert named
        for other in named:
            assert torch.isfinite(explain(other, kind, images).values).all()
        return
    got = explain(recipe, kind, images)
    grid = build(kind, images.dtype).grid_of(images)
    whole = name_of(recipe) == "vit_cx" or recipe == "lrp"
    assert got.map.shape == (2, *((32, 32) if whole else (grid.height, grid.width)))
    assert torch.isfinite(got.values).all()
    assert got.map.flatten(1).std(dim=1).min() > 0 or name_of(recipe) in SILENT


@pytest.mark.filterwarnings("ignore:.* gave a constant map")
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("class token", torch.float32), ("pooled", torch.float32), ("transformers, class and mean", torch.float64)],
)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_batch_of_four_is_four_images(recipe: str, kind: str, dtype: torch.dtype) -> None:
    images, targets = pictures(kind, 4, dtype), (1, 0, 3, 3)
    together = explain(recipe, kind, images, targets).map
    for row, target in enumerate(targets):
        alone = explain(recipe, kind, images[row : row + 1], target).map[0]
        assert (together[row] - alone).abs().max() <= 1e-5 * alone.abs().max()


def test_every_baseline_is_here() -> None:
    asked = (
        "grad_rollout att_cam grad_sam att_ixg att_cat cat t_attr tam t_attn bi_attn inflow mutex partial_lrp "
        "lrp_rollout lrp grad_cam grad_cam_pp xgrad_cam xgrad_cam_plus layer_cam hires_cam grad_cam_elementwise "
        "vit_cx tis at_man full_grad"
    )
    assert set(asked.split()) <= {name_of(recipe) for recipe in RECIPES}


@pytest.mark.parametrize("kind", ["class token", "distilled", "registers", "pooled", "transformers, class and mean"])
def test_rows_are_read_as_the_classifier_reads_tokens(kind: str) -> None:
    images = pictures(kind, 2)
    adapter = build(kind, images.dtype)
    with torch.no_grad(), adapter.capture("block.2.probabilities") as seen:
        adapter(images)
    attention = seen["block.2.probabilities"].mean(dim=1)
    prefix = families_vit.FAMILIES[KINDS[kind]].prefix
    patches = attention[:, prefix:].mean(dim=1)
    row = {
        "class token": attention[:, 0],
        "distilled": attention[:, :2].mean(dim=1),
        "registers": attention[:, 0],
        "pooled": patches,
        "transformers, class and mean": (attention[:, 0] + patches) / 2,
    }[kind]
    torch.testing.assert_close(explain("raw_attention", kind, images).map.flatten(1), row[:, prefix:])


def test_a_model_inside_another_is_told_what_works() -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = families_vit.FAMILIES["timm/vit"].build()

        def forward(self, images: Tensor) -> Tensor:
            return self.inner(images) * 2  # type: ignore[no-any-return]

    model, images = Wrapper().eval(), pictures("class token", 2, torch.float32)
    for recipe in RECIPES:
        if "tokens" in METHODS[name_of(recipe)].needs:
            with pytest.raises(
                sightline.errors.UnsupportedModel, match=f"{name_of(recipe)} needs .* Methods that work: "
            ):
                sightline.explain(model, images, recipe, target=0)
        else:
            assert torch.isfinite(sightline.explain(model, images, recipe, target=0).values).all()
