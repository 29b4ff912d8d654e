"""DecompX: the two forms agree, shares and biases sum to the logit, and what cannot be taken apart is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests import tiny
from tests.models.families_vit import FAMILIES
from tests.models.families_vit import images as family_images
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline.extras import require
from sightline.methods.decomposition import propagation
from sightline.methods.decomposition.decompx import DecompX
from sightline.methods.decomposition.propagation import by_abs_dot
from sightline.methods.multi_target import multi_target, multi_target_cost
from sightline.models.passes import counting
from sightline.recipe import parse

GATED = {"timm/eva02", "timm/eva02_cls", "transformers/dinov2_swiglu", "transformers/dinov3_gated"}
CURVED = {  # not linear behind the blocks
    "timm/map", "torchvision/representation", "open_clip/attention_pool", "transformers/siglip",
    "transformers/siglip_tower", "transformers/siglip2", "transformers/siglip2_tower", "timm/naflex_map",
}  # fmt: skip
SINGLE = {"timm/rope_mixed"}  # runs in float32 alone
PLAIN = [name for name in FAMILIES if name not in GATED | CURVED]
OPTIONS = ["", "gelu='taylor'", "bias='abs_dot'", "bias='abs_dot', gelu='taylor'"]


def forward(options: str = "", start: int = 0) -> str:
    return f"decompx(form='forward', start={start}{', ' * bool(options)}{options})"


def built(name: str) -> tuple[nn.Module, Tensor]:
    family = FAMILIES[name]
    dtype = torch.float32 if name in SINGLE else torch.float64
    return family.build().to(dtype), family_images(family).to(dtype)


@pytest.mark.parametrize("name", PLAIN)
def test_both_forms_agree_from_every_start_layer(name: str) -> None:
    model, images = built(name)
    tolerance = 1e-5 if name in SINGLE else 1e-10
    backward = sightline.explain(model, images, "decompx", target=(1, 4)).values
    assert len(backward) == 3
    for start in range(3):
        got = sightline.explain(model, images, forward(start=start), target=(1, 4)).values
        assert_close(got, backward[start : start + 1], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", ["timm/gap", "timm/distilled", "timm/registers", "torchvision/vit", "open_clip/clip"])
def test_shares_and_bias_sum_to_the_logit(name: str, options: str) -> None:
    model, images = built(name)
    adapter = sightline.adapt(model)
    logits = adapter.predict(images)[:, 3]
    for start in range(3):
        got = sightline.explain(model, images, forward(options, start), target=3)
        assert_close(got.details.tokens[0].sum(dim=-1) + got.details.bias[0], logits, rtol=1e-9, atol=1e-9)
        assert got.details.tokens.shape == (1, 2, adapter.grid_of(images).tokens)
        assert (got.details.bias == 0).all() == ("abs_dot" in options)


def test_the_options_differ(tiny_vit: nn.Module, images: Tensor) -> None:
    maps = [sightline.explain(tiny_vit, images, forward(options), target=1).map for options in OPTIONS]
    for index, values in enumerate(maps):
        for other in maps[index + 1 :]:
            assert (values - other).abs().max() > 1e-3


def test_without_mlps_the_slope_does_not_matter(images: Tensor) -> None:
    model: Any = tiny.vit().double()
    with torch.no_grad():
        for block in model.blocks:
            block.mlp.fc2.weight.zero_()
    discarded, distributed = (
        sightline.explain(model, images, forward(options), target=1).map for options in OPTIONS[:2]
    )
    assert_close(discarded, distributed)


def test_a_linear_network_is_input_times_weight(images: Tensor) -> None:
    """With attention and MLPs silent and one patch pooled at a time, a share is the norm's and head's reading of it."""
    model: Any = tiny.vit(global_pool="avg", class_token=False, fc_norm=False).double()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.proj.weight.zero_()
            block.mlp.fc2.weight.zero_()
        tokens = sightline.adapt(model).start(images)
        behind = tokens + sum(block.attn.proj.bias + block.mlp.fc2.bias for block in model.blocks)
        deviation = (behind.var(dim=-1, unbiased=False, keepdim=True) + model.norm.eps).sqrt()
        normed = (tokens - tokens.mean(dim=-1, keepdim=True)) / deviation * model.norm.weight
        want = normed @ model.head.weight[2] / 16
    for recipe in ("decompx", forward()):
        assert_close(sightline.explain(model, images, recipe, target=2).map.flatten(1), want)


def test_a_bias_is_shared_by_the_size_of_its_dot_products() -> None:
    state = torch.tensor([[[1.0, 0.0]], [[-3.0, 5.0]], [[0.0, 7.0]]])
    bias = torch.tensor([2.0, 0.0])
    want = torch.tensor([[[1.5, 0.0]], [[-1.5, 5.0]], [[0.0, 7.0]]])
    assert_close(by_abs_dot(state, bias), want)
    at_right_angles = torch.tensor([0.0, 0.0])
    assert_close(by_abs_dot(state, at_right_angles), state)
    assert_close(by_abs_dot(torch.zeros(4, 1, 2), bias), (bias / 4).expand(4, 1, 2))


@pytest.mark.parametrize("recipe", ["decompx", forward(), forward("bias='abs_dot'")])
def test_a_contrast_is_the_difference_of_its_logits(recipe: str, tiny_vit: nn.Module, images: Tensor) -> None:
    first, second = (sightline.explain(tiny_vit, images, recipe, target=target).map for target in (1, 3))
    got = sightline.explain(tiny_vit, images, recipe, target=sightline.Contrast(1, 3)).map
    assert_close(got, first - second)


def test_both_forms_agree_on_a_probability(tiny_vit: nn.Module, images: Tensor) -> None:
    first, second = (
        sightline.explain(tiny_vit, images, recipe, target=sightline.Probability(1)).map
        for recipe in ("decompx", forward())
    )
    assert_close(first, second, rtol=1e-10, atol=1e-12)


def test_backward_is_the_logit_less_its_biases(images: Tensor) -> None:
    """Without a single bias the shares of all tokens sum to the logit."""
    model: Any = tiny.vit(qkv_bias=False, global_pool="avg", class_token=False).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") and not name.startswith("patch_embed"):
                parameter.zero_()
    every = sightline.explain(model, images, "decompx", target=2).values
    assert_close(every.flatten(2).sum(dim=-1), model(images)[:, 2].detach().expand(3, 2))


@pytest.mark.parametrize("recipe", ["decompx", forward(), forward("bias='abs_dot'")])
def test_layers_can_be_summed(recipe: str, tiny_vit: nn.Module, images: Tensor) -> None:
    rows = [
        sightline.explain(tiny_vit, images, recipe.replace("start=0", f"start={start}"), target=1).values[-1]
        if "forward" in recipe
        else sightline.explain(tiny_vit, images, f"decompx(start={start})", target=1).map
        for start in range(3)
    ]
    assert_close(sightline.explain(tiny_vit, images, f"plus({recipe})", target=1).map, rows[0] + rows[1] + rows[2])
    assert_close(sightline.explain(tiny_vit, images, f"skip_plus({recipe})", target=1).map, rows[2])
    assert_close(sightline.explain(tiny_vit, images, f"skip_plus({recipe}, start=1)", target=1).map, rows[1] + rows[2])


@pytest.mark.parametrize("recipe", ["decompx", "decompx(start=1)", forward(start=1), forward("bias='abs_dot'", 2)])
@pytest.mark.parametrize("every_layer", [False, True])
def test_several_targets_share_the_forward_pass(
    recipe: str, every_layer: bool, tiny_vit: nn.Module, images: Tensor
) -> None:
    adapter, method = sightline.adapt(tiny_vit), parse(recipe)
    targets = [sightline.Logit(index) for index in (0, 2, 4)]
    with torch.no_grad(), counting() as meter:
        attributions = multi_target(method, adapter, images, targets, every_layer=every_layer)
    declared = multi_target_cost(method, adapter, 3, every_layer=every_layer) * len(images)
    assert meter.passes.forward == pytest.approx(declared.forward)
    assert meter.passes.backward == pytest.approx(declared.backward)
    for target, got in zip(targets, attributions, strict=True):
        assert_close(got.map, sightline.explain(tiny_vit, images, recipe, target=target).map)
    if recipe == "decompx":
        assert (declared.forward, declared.backward) == (2, 6)


def test_sources_in_small_portions_are_the_same_sources(
    tiny_vit: nn.Module, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = sightline.explain(tiny_vit, images, forward(), target=1)
    monkeypatch.setattr(propagation, "CHUNK", 5 * 17 * 32)
    apart = sightline.explain(tiny_vit, images, forward(), target=1)
    assert_close(apart.values, together.values, rtol=1e-12, atol=1e-14)
    assert apart.passes == together.passes


@pytest.mark.parametrize("options", OPTIONS)
def test_a_batch_equals_its_images_one_by_one(options: str, tiny_vit: nn.Module, images: Tensor) -> None:
    together = sightline.explain(tiny_vit, images, forward(options), target=(1, 4)).map
    for row, target in enumerate((1, 4)):
        alone = sightline.explain(tiny_vit, images[row : row + 1], forward(options), target=target).map
        assert_close(together[row], alone[0], rtol=1e-9, atol=1e-12)


def test_half_precision_comes_near(images: Tensor) -> None:
    want = sightline.explain(tiny.vit().double(), images, forward(), target=1).map
    got = sightline.explain(tiny.vit().bfloat16(), images, forward(), target=1).map
    assert torch.corrcoef(torch.stack([got.double().flatten(), want.flatten()]))[0, 1] > 0.97


def other_block(kind: str) -> nn.Module:
    return tiny.vit(block_fn=getattr(require("timm.models.vision_transformer"), kind))


REFUSED = [
    (FAMILIES["timm/eva02"].build, "is no plain pre-norm block: its MLP is gated"),
    (FAMILIES["transformers/dinov2_swiglu"].build, "its MLP is not linear, activation, linear"),
    (FAMILIES["timm/map"].build, "does after its blocks is not linear"),
    (FAMILIES["torchvision/representation"].build, "does after its blocks is not linear"),
    (lambda: other_block("ResPostBlock"), "more than its input plus attention plus MLP"),
    (lambda: other_block("ParallelScalingBlock"), "it has no mlp of its own"),
    (lambda: tiny.vit(act_layer=nn.Softplus), "the activation Softplus .* write gelu='taylor'"),
    (lambda: tiny.vit(scale_mlp_norm=True), "its MLP does more than linear, activation, linear"),
]


@pytest.mark.parametrize(("build", "why"), REFUSED)
def test_what_cannot_be_pushed_is_refused_in_one_sentence(
    build: Callable[[], nn.Module], why: str, images: Tensor
) -> None:
    with pytest.raises(sightline.errors.UnsupportedModel, match=why):
        sightline.explain(build().double(), images, forward(), target=0)


def test_an_activation_off_zero_still_has_a_derivative(images: Tensor) -> None:
    model = tiny.vit(act_layer=nn.Softplus).double()
    got = sightline.explain(model, images, forward("gelu='taylor'"), target=0)
    assert_close(got.details.tokens[0].sum(dim=-1) + got.details.bias[0], model(images)[:, 0].detach())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"gelu": "taylor"}, "got bias='discard' and gelu='taylor' in the backward form"),
        ({"bias": "abs_dot"}, "in the backward form, which knows neither; write form='forward'"),
        ({"form": "sideways"}, "decompx got form='sideways'; choose from backward, forward"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(sightline.errors.RecipeError, match=sentence):
        DecompX(**options)


@pytest.mark.parametrize("recipe", ["decompx(start=3)", forward(start=3)])
def test_a_start_block_that_is_not_there_is_refused(recipe: str, tiny_vit: nn.Module, images: Tensor) -> None:
    with pytest.raises(sightline.errors.RecipeError, match="got start=3; VisionTransformer has blocks 0 to 2"):
        sightline.explain(tiny_vit, images, recipe, target=0)
