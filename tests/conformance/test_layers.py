"""Every method with several layers: each is named after its block, and operators pick layers by that name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline.methods.multi_target import multi_target
from sightline.recipe import parse
from sightline.registry import METHODS

OPTIONS = {  # small forms of what would take long; all else by its bare name
    **{name: f"{name}(samples=8)" for name in ("rise", "lime", "kernel_shap", "hsic", "tis", "smooth_grad")},
    **{name: f"{name}(steps=3)" for name in ("ig", "guided_ig", "blur_ig", "att_ig", "tam", "t_attn", "bi_attn")},
    **{name: f"{name}(steps=2)" for name in ("iia", "iia2", "iia3", "img", "act", "iba", "idgi", "conductance")},
    **{name: f"{name}(samples=2)" for name in ("gradient_shap", "deep_lift_shap", "smooth_grad_cam_pp")},
    "internal_influence": "internal_influence(steps=2)",
}
STREAM = ["grad_cam", "grad_cam_pp", "xgrad_cam", "xgrad_cam_plus", "layer_cam", "hires_cam", "grad_cam_elementwise",
          "eigen_cam", "eigen_grad_cam", "kpca_cam", "fem"]  # fmt: skip
ONE_MAP = {
    "contrastive_excitation",
    "deconvnet",
    "extremal_perturbation",
    "guided_backprop",
    "guided_grad_cam",
    "ablation_cam",
    "score_cam",
    "lift_cam",
    "guided_ig",
    "lrp",
    "xrai",
}
NAMES = [name for name in METHODS if {"attention", "gradient"} & METHODS[name].needs and name not in ONE_MAP]
RECIPES = [OPTIONS.get(name, name) for name in NAMES] + [
    *(f"{name}(variant='stream')" for name in STREAM),
    *("gae(start=1)", "rollout(start=2)", "t_attr(start=0)", "t_attr(start=2)", "bi_attn(start=3, steps=3)"),
    *("tam(start=2, steps=3)", "decompx(start=1)", "decompx(form='forward', start=1)", "raw_attention(layer=0)"),
    *("att_in(layer=1)", "rectify(ixg)", "against(gae, 2)", "smooth(ixg, samples=2)"),
]
# What operators sum is not the method itself: the blocks' own matrices in place of their product, or the tokens that
# enter each block in place of the last norm.
OTHER_LAYERS = ("gae", "against(gae", "globenc", "alti", *STREAM)
DEPTH = 3


def every_layer(model: nn.Module, images: Tensor, recipe: str) -> sightline.Attribution:
    """Return every layer of a method, as operators see them."""
    adapter = sightline.adapt(model)
    with adapter.evaluating(), torch.no_grad():
        return multi_target(parse(recipe), adapter, images, [sightline.Logit((1, 3))], every_layer=True)[0]


@pytest.mark.parametrize("recipe", RECIPES)
def test_layers_are_blocks_and_operators_pick_them_by_number(recipe: str, tiny_vit: nn.Module, images: Tensor) -> None:
    every = every_layer(tiny_vit, images, recipe)
    if len(every.values) == 1:
        assert len(every.layers) <= 1
        return
    assert set(every.layers) <= set(range(DEPTH))
    assert list(every.layers) == sorted(set(every.layers))
    for block in (every.layers[0], every.layers[-1]):
        picked = f"layers({recipe}, first={block}, last={int(block) + 1})"
        assert_close(sightline.explain(tiny_vit, images, picked, target=(1, 3)).map, every.at(block))
    summed = sightline.explain(tiny_vit, images, f"skip_plus({recipe}, start=1)", target=(1, 3))
    assert_close(summed.map, sum(every.at(block) for block in every.layers if int(block) >= 1))
    assert summed.layers == ()
    if not recipe.startswith(OTHER_LAYERS) or "stream" in recipe:
        alone = sightline.explain(tiny_vit, images, recipe, target=(1, 3))
        assert_close(every.map, alone.map)
        for layer in alone.layers:
            assert_close(every.pixels(layer=layer), alone.pixels(layer=layer))


@pytest.mark.parametrize("name", STREAM)
def test_a_class_activation_map_of_the_stream_is_that_of_the_last_block(
    name: str, tiny_vit: nn.Module, images: Tensor
) -> None:
    found = sightline.explain(tiny_vit, images, f"{name}(variant='stream')", target=(1, 3))
    assert found.layers == (0, 1, 2)
    assert torch.equal(found.map, found.at(2))
    last = sightline.explain(tiny_vit, images, f"layers({name}, first=2)", target=(1, 3))
    assert_close(found.map, last.map)
    positive = sightline.explain(tiny_vit, images, f"rectify({name}(variant='stream'))", target=(1, 3))
    assert_close(positive.map, found.map.clamp(min=0))
    if not METHODS[name].agnostic:
        contrasts = [
            f"var({inner}, classes=(1, 3))" for inner in (f"{name}(variant='stream')", f"layers({name}, first=2)")
        ]
        first, second = sightline.explain(tiny_vit, images, contrasts, target=(1, 3))
        assert_close(first.map, second.map)


def test_methods_started_late_say_so(tiny_vit: nn.Module, images: Tensor) -> None:
    wanted = {
        "t_attr": (1, 2), "bi_attn(steps=3)": (0, 1, 2), "tam(steps=3)": (1, 2), "gae(start=2)": (2,), "ixg": (0, 1, 2),
        "raw_attention": (2,), "ixg(at='pixels')": (), "grad_cam": ("block.2.norm1",),
    }  # fmt: skip
    for recipe, layers in wanted.items():
        assert sightline.explain(tiny_vit, images, recipe, target=1).layers == layers, recipe
