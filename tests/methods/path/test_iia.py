"""Iterated integrals: closed forms, sums written out, the authors' numbers, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import tiny
from tests.methods import reference_cnn
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline import errors
from sightline.extras import require
from sightline.methods.multi_target import multi_target, multi_target_cost
from sightline.methods.path.iia import IteratedIntegral
from sightline.methods.path.iia_cnn import MapIntegral
from sightline.models.passes import counting
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS
from sightline.types import Passes

EXACT: dict[str, float] = {"rtol": 1e-10, "atol": 1e-12}


class Two(nn.Module):
    """Two stages and a head in which nothing is linear; without `bias` it is homogeneous."""

    def __init__(self, bias: bool = True, pooled: bool = False) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.lower = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=bias), nn.ReLU())
        self.upper = nn.Sequential(nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=bias), nn.ReLU())
        self.pool = nn.AdaptiveAvgPool2d(1 if pooled else 4)
        wide = 6 if pooled else 96
        last = [] if pooled else [nn.Linear(wide, 8, bias=bias), nn.ReLU()]
        self.head = nn.Sequential(*last, nn.Linear(wide if pooled else 8, 5, bias=bias))

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.after(self.upper(self.lower(images)))
        return found

    def after(self, features: Tensor) -> Tensor:
        found: Tensor = self.head(self.pool(features).flatten(1))
        return found


def two(**options: bool) -> Two:
    return Two(**options).double().eval()


def lowest(u: Tensor) -> Tensor:
    return u.amin(dim=(2, 3), keepdim=True)


def gradient(function: Any, v: Tensor, target: int) -> Tensor:
    v = v.detach().requires_grad_()
    return torch.autograd.grad(function(v)[:, target].sum(), v)[0]


def points(n: int) -> list[float]:
    return [k / n for k in range(1, n + 1)]


# ---- the image alone is integrated gradients -------------------------------------------------------------------------


@pytest.mark.parametrize("network", ["tiny_cnn", "tiny_vit"])
@pytest.mark.parametrize("rule", ["right", "gauss_legendre", "trapezoid"])
@pytest.mark.parametrize("steps", [1, 6])
def test_over_the_image_alone_it_is_integrated_gradients(network, rule, steps, images, request) -> None:
    model = request.getfixturevalue(network)
    got = sightline.explain(model, images, f"iia(layers=(0,), steps={steps}, rule='{rule}')", target=1)
    want = sightline.explain(model, images, f"ig(steps={steps}, rule='{rule}')", target=1)
    assert_close(got.map, want.map, rtol=0, atol=1e-10)
    assert got.passes == want.passes


def test_over_the_image_of_a_homogeneous_network_it_is_input_times_gradient(images: Tensor) -> None:
    model = two(bias=False)
    want = sightline.explain(model, images, "ixg", target=2).map
    for steps in (1, 4):
        got = sightline.explain(model, images, f"iia(layers=(0,), integrand='gradient', steps={steps})", target=2).map
        assert_close(got, want, rtol=0, atol=1e-10)


# ---- CNN: closed forms where the head is a pool and a matrix, sums written out where it is not -----------------------


@pytest.mark.parametrize("steps", [1, 5, 10])
def test_on_a_pooled_linear_head_the_inner_integral_is_known(steps: int, images: Tensor) -> None:
    model = two(pooled=True)
    weight = model.head[0].weight[3].detach()[:, None, None] / 64  # type: ignore[index,union-attr]
    mean = (steps + 1) / (2 * steps)  # of k/n

    def image(a: float) -> Tensor:
        return model.upper(model.lower(a * images)).detach()

    def layer(u: Tensor) -> Tensor:
        r = lowest(u)
        return ((u - r) * (r + mean * (u - r)) * weight).mean(dim=1)

    want = {
        "act": layer(image(1)),
        "iia2": sum(layer(image(a)) for a in points(steps)) / steps,
        "img": sum(((u - lowest(u)) * u * weight).mean(dim=1) for u in map(image, points(steps))) / steps,
    }
    for name, wanted in want.items():
        assert_close(sightline.explain(model, images, f"{name}(steps={steps})", target=3).map, wanted, **EXACT)


@pytest.mark.parametrize("batch", [3, 16])
def test_two_layers_are_the_sum_written_out(batch: int, images: Tensor) -> None:
    model, total = two(), 0
    for a in points(4):
        u = model.upper(model.lower(a * images)).detach()
        inner = 0
        for b in points(4):
            v = lowest(u) + b * (u - lowest(u))
            inner = inner + v * gradient(model.after, v, 2)
        total = total + (u - lowest(u)) * inner
    adapter = sightline.adapt(model, batch=batch)
    got = sightline.explain(adapter, images, "iia2(steps=4)", target=2)
    assert_close(got.map, (total / 16).mean(dim=1), **EXACT)  # type: ignore[attr-defined]
    assert got.map.shape == (2, 8, 8)


def test_three_layers_are_the_sum_written_out(images: Tensor) -> None:
    model, total = two(), 0
    for a, b in product(points(3), repeat=2):
        below = model.lower(a * images).detach()
        u = model.upper(lowest(below) + b * (below - lowest(below))).detach()
        inner = 0
        for c in points(3):
            v = lowest(u) + c * (u - lowest(u))
            inner = inner + v * gradient(model.after, v, 2)
        total = total + (u - lowest(u)) * inner
    got = sightline.explain(model, images, "iia3(steps=3)", target=2).map
    assert_close(got, (total / 27).mean(dim=1), **EXACT)  # type: ignore[attr-defined]


def test_the_layer_before_the_last_is_differentiated_through_the_last(images: Tensor) -> None:
    model, total = two(), 0
    for a, b in product(points(3), repeat=2):
        u = model.lower(a * images).detach()
        v = lowest(u) + b * (u - lowest(u))
        total = total + (u - lowest(u)) * v * gradient(lambda x: model.after(model.upper(x)), v, 1)
    got = sightline.explain(model, images, "iia2(layer=-2, steps=3)", target=1).map
    assert_close(got, (total / 9).mean(dim=1), **EXACT)  # type: ignore[attr-defined]


def test_a_path_may_end_before_the_layer_of_the_map(images: Tensor) -> None:
    model, total = two(), 0
    for a in points(3):
        below = model.lower(images).detach()
        u = model.upper(a * below).detach()
        total = total + u * gradient(model.after, u, 0)
    recipe = "iia(layers=(-2,), layer=-1, integrand='gradient', reference='zero', steps=3)"
    assert_close(sightline.explain(model, images, recipe, target=0).map, (total / 3).mean(dim=1), **EXACT)  # type: ignore[attr-defined]


def test_layers_are_counted_or_named(images: Tensor) -> None:
    model = two()
    names = sightline.adapt(model).layers  # type: ignore[attr-defined]
    assert len(names) == 2
    want = sightline.explain(model, images, "iia3(steps=2)", target=0).map
    for layers in ((0, 1, 2), ("image", names[0], -1), (0, -2, names[1])):
        assert_close(sightline.explain(model, images, f"iia(layers={layers}, steps=2)", target=0).map, want)


@pytest.mark.parametrize("name", ["iia", "iia2", "iia3", "img", "act"])
def test_the_names_are_settings_of_the_general_one(name: str, images: Tensor) -> None:
    layers = {"img": "(0,), layer=-1", "act": "(-1,)", "iia3": "(0, -2, -1)"}.get(name, "(0, -1)")
    got = sightline.explain(two(), images, f"{name}(steps=2)", target=0).map
    assert torch.equal(got, sightline.explain(two(), images, f"iia(layers={layers}, steps=2)", target=0).map)


# ---- references ------------------------------------------------------------------------------------------------------


def test_noise_belongs_to_the_image_and_the_seed(images: Tensor) -> None:
    recipe = "iia2(steps=2, reference='noise', blank='noise', seed={})"
    first = sightline.explain(two(), images, recipe.format(0), target=0).map
    alone = sightline.explain(two(), images[1:], recipe.format(0), target=0).map
    assert_close(alone[0], first[1], **EXACT)
    other = sightline.explain(two(), images, recipe.format(1), target=0).map
    assert not torch.allclose(first, other)


@pytest.mark.parametrize("reference", ["zero", "channel_min", "noise"])
@pytest.mark.parametrize("blank", ["zero", "channel_min", "noise", "black", "blur"])
def test_the_integral_of_the_gradient_at_a_layer_is_complete(reference: str, blank: str, images: Tensor) -> None:
    """Over one layer, whatever its reference, the plain gradient sums to the difference of the two ends."""
    model = two()
    adapter = sightline.adapt(model)
    recipe = f"iia(layers=(-1,), integrand='gradient', reference='{reference}', blank='{blank}', steps=400)"
    method = sightline.parse(recipe)
    with torch.no_grad():
        got = method(adapter, images, sightline.Logit(1)).map * 6  # channels are averaged
        u = model.upper(model.lower(images))
        integral = MapIntegral(adapter, images, [], (), None, reference, blank, 0)  # type: ignore[arg-type]
        r = integral._baseline(u, 1, [0, 1])
        want = (model.after(u) - model.after(r))[:, 1]
    assert_close(got.sum(dim=(1, 2)), want, rtol=2e-3, atol=2e-3)


# ---- transformers ----------------------------------------------------------------------------------------------------


def noted(before: dict[int, Tensor], block: int, factor: float) -> Any:
    """Scale attention, and note what it was."""
    return lambda attention: before.update({block: attention.detach()}) or attention * factor


def written_out(
    model: nn.Module, images: Tensor, target: int, steps: int, blocks: tuple[int, ...], rollout: str
) -> Any:
    """Sum (u - r) times the rollout over every combination of points, one whole pass for each; images one by one."""
    adapter = sightline.adapt(model)
    assert isinstance(adapter, VisionTransformer)
    names, maps = adapter.every("probabilities"), []
    for image in images:
        total: Any = 0
        for a, *inner in product(points(steps), repeat=1 + len(blocks)):
            before: dict[int, Tensor] = {}

            edits = {names[block]: noted(before, block, factor) for block, factor in zip(blocks, inner, strict=True)}
            with adapter.edit(edits), adapter.capture(*names, gradient=True) as seen:
                score = adapter(a * image[None])[0, target]
            gradients = torch.autograd.grad(score, list(seen.values()))
            matrices = [
                (p * g).clamp(min=0).mean(dim=1)[0].detach() for p, g in zip(seen.values(), gradients, strict=True)
            ]
            matrices = [m + torch.eye(len(m), dtype=m.dtype) for m in matrices]
            matrices = [m / m.sum(dim=1, keepdim=True) for m in matrices]
            rolled = sum(matrices) if rollout == "sum" else torch.linalg.multi_dot(matrices[::-1])
            end = before[blocks[-1]] if blocks else seen[names[-1]].detach()
            total = total + adapter.readout(len(rolled)) @ (end[0].mean(dim=0) * rolled)  # type: ignore[arg-type]
        maps.append(total[adapter.prefix :].view(4, 4) / steps ** (1 + len(blocks)))
    return torch.stack(maps)


@pytest.mark.parametrize("options", [{}, {"global_pool": "avg", "class_token": False}, {"reg_tokens": 2}])
@pytest.mark.parametrize(
    ("recipe", "blocks", "rollout"),
    [
        ("iia2(steps=3)", (2,), "product"),
        ("iia2(steps=2, rollout='sum')", (2,), "sum"),
        ("iia2(layer=1, steps=2)", (0,), "product"),
        ("iia3(steps=2)", (1, 2), "product"),
        ("img(steps=3)", (), "product"),
    ],
)
def test_attention_is_the_sum_written_out(options, recipe, blocks, rollout, images) -> None:
    model = tiny.vit(**options).double()
    want = written_out(model, images, 2, int(recipe.split("steps=")[1][0]), blocks, rollout)
    assert_close(sightline.explain(model, images, recipe, target=2).map, want, **EXACT)


def test_one_step_over_the_last_attention_is_its_rollout_times_attention(tiny_vit: nn.Module, images: Tensor) -> None:
    """At the end of every path nothing is interpolated: act, img and iia2 agree."""
    want = sightline.explain(tiny_vit, images, "act(steps=1)", target=1).values
    for recipe in ("img(steps=1)", "iia2(steps=1)", "iia3(steps=1)"):
        assert_close(sightline.explain(tiny_vit, images, recipe, target=1).values, want, **EXACT)


def test_the_gradient_over_an_attention_is_complete(images: Tensor) -> None:
    """The classifier of a pooled model reads every row, so the map sums to the difference of the two ends."""
    model = tiny.vit(global_pool="avg", class_token=False, num_heads=1).double()
    adapter = sightline.adapt(model)
    got = sightline.explain(adapter, images, "iia(layers=(-1,), integrand='gradient', steps=300)", target=1).map
    with torch.no_grad(), adapter.edit({"block.2.probabilities": torch.zeros_like}):
        nothing = model(images)[:, 1]
    want = model(images)[:, 1].detach() - nothing
    assert_close(got.sum(dim=(1, 2)) * 16, want, rtol=1e-2, atol=1e-3)  # the readout gives each of 16 rows one part


def test_start_layers_come_along(tiny_vit: nn.Module, images: Tensor) -> None:
    found = sightline.explain(tiny_vit, images, "iia2(steps=2)", target=1).values
    assert found.shape == (3, 2, 4, 4)
    assert not torch.allclose(found[0], found[2])


# ---- the authors' numbers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["iia2", "iia3", "img", "act"])
def test_matches_the_released_code_on_a_random_cnn(name: str) -> None:
    model, image = reference_cnn.network("tiny_resnet")
    got = sightline.explain(model, image, f"{name}(variant='released')", target=reference_cnn.TARGET).map[0]
    reference_cnn.assert_same(got, reference_cnn.want(f"{name}_released_tiny_resnet", "map"), 1e-12)


@pytest.mark.shared
@pytest.mark.parametrize("name", ["iia2", "img", "act"])
def test_matches_the_released_code_on_a_photograph(name: str, shared: Path) -> None:
    photo = np.load(shared / "golden/cnn_photo/inputs_lite0.npz")
    image = (torch.from_numpy(photo["rgb_uint8"]).float().permute(2, 0, 1)[None] / 255 - 0.5) / 0.5
    model = sightline.load("package/efficientnet_lite0")
    got = sightline.explain(model, image, f"{name}(variant='released')", target=int(photo["target"])).map[0]
    want = torch.from_numpy(np.load(shared / f"golden/cnn_photo/{name}_released_lite0.npz")["map"])
    reference_cnn.assert_same(got, want, 1e-5)


def test_matches_the_released_code_on_a_random_vit() -> None:
    model, images, numbers = tiny.reference_vit(eps=1e-5)
    got = sightline.explain(model, images, "iia2(variant='released')", target=3).map[0]
    want = torch.from_numpy(numbers["map/iia2_released_n5"])
    assert_close(tiny.min_max(got), tiny.min_max(want), atol=1e-5, rtol=0)


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "key", "tolerance"), [(torch.float32, "map", 1e-4), (torch.float64, "map_f64", 1e-8)]
)
def test_matches_the_released_code_of_a_real_vit(dtype, key, tolerance, shared: Path, real_vit: nn.Module) -> None:
    photo = np.load(shared / "golden/photo/inputs_A.npz")
    want = torch.from_numpy(np.load(shared / "golden/photo/iia2_A.npz")[key])
    images = torch.from_numpy(photo["input"]).to(dtype)
    got = sightline.explain(real_vit.to(dtype), images, "iia2(variant='released')", target=int(photo["target"])).map[0]
    assert_close(tiny.min_max(got), tiny.min_max(want), atol=tolerance, rtol=0)


def test_the_released_relu_changes_a_network_with_signed_features(images: Tensor) -> None:
    """Released code puts a ReLU behind the last feature map; what is below zero there no longer counts."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 900, 5)).double().eval()
    got = sightline.explain(model, images, "act(variant='released', steps=2)", target=0).map
    u = model[0](images).detach()
    weight = model[2].weight[0].detach().view(4, 30, 30)
    assert_close(got, 3 * (u.relu() * weight.relu()).sum(dim=1), **EXACT)


# ---- cost ------------------------------------------------------------------------------------------------------------


def test_two_layers_of_a_resnet_cost_ten_trunks_and_ten_times_ten_heads() -> None:
    model = require("timm").create_model("resnet18").eval()
    adapter = sightline.adapt(model)
    images = torch.randn(1, 3, 224, 224)
    behind = adapter.remaining(adapter.layer(-1))
    passes = sightline.explain(adapter, images, "iia2", target=0).passes
    assert passes.forward == pytest.approx(10 * (1 - behind) + 100 * behind)
    assert passes.backward == pytest.approx(100 * behind)
    assert passes.forward < 10.1
    assert passes.backward < 0.1
    assert sightline.parse("ig(steps=10)").cost(adapter) == Passes(10, 10)


def test_blocks_before_the_interpolated_attention_run_once_per_image_point(tiny_vit: nn.Module) -> None:
    cost = {
        name: sightline.parse(f"{name}(steps=10)").cost(sightline.adapt(tiny_vit)) for name in ("iia2", "iia3", "act")
    }
    assert (cost["iia2"].forward, cost["iia2"].backward) == (pytest.approx(10 * 2 / 3 + 100 / 3), 100)
    assert (cost["iia3"].forward, cost["iia3"].backward) == (pytest.approx((10 + 100 + 1000) / 3), 1000)
    assert (cost["act"].forward, cost["act"].backward) == (pytest.approx(2 / 3 + 10 / 3), 10)


@pytest.mark.parametrize("recipe", ["iia2(steps=2)", "iia3(steps=2)", "iia2(variant='released', steps=2)"])
@pytest.mark.parametrize("network", ["tiny_vit", "two"])
def test_several_targets_share_their_forward_passes(recipe: str, network: str, images: Tensor, request) -> None:
    adapter = sightline.adapt(two() if network == "two" else request.getfixturevalue(network))
    method, targets = sightline.parse(recipe), [sightline.Logit(0), sightline.Logit((3, 1)), sightline.Contrast(0, 1)]
    with torch.no_grad(), counting() as meter:
        together = multi_target(method, adapter, images, targets)
    for target, got in zip(targets, together, strict=True):
        with torch.no_grad():
            assert_close(got.values, method(adapter, images, target).values, **EXACT)
    declared, one = multi_target_cost(method, adapter, 3) * 2, method.cost(adapter) * 2
    assert meter.passes.forward == pytest.approx(declared.forward) == pytest.approx(one.forward)
    assert meter.passes.backward == pytest.approx(declared.backward) == pytest.approx(3 * one.backward)


def test_no_graph_is_built_before_the_layer() -> None:
    model = require("timm").create_model("resnet18").eval()
    built: list[bool] = []
    note = lambda _module, _args, output: built.append(output.requires_grad)  # noqa: E731
    handles = [model.layer2[-1].register_forward_hook(note), model.layer4[-1].register_forward_hook(note)]
    try:
        sightline.explain(model, torch.randn(1, 3, 64, 64), "iia3(steps=4)", target=0)
    finally:
        for handle in handles:
            handle.remove()
    assert built == [False] * (1 + 1)  # four images in one batch up to layer3, sixteen activations on to layer4


# ---- models ----------------------------------------------------------------------------------------------------------


class Notes(Two):
    """A network that remembers how many images came in."""

    def forward(self, images: Tensor) -> Tensor:
        features = self.upper(self.lower(images))
        found: Tensor = self.head(self.pool(features).reshape(len(images), -1))
        return found


@pytest.mark.parametrize("steps", [2, 5])
def test_a_model_that_counts_its_images_gives_the_same_map_and_says_what_it_costs(steps: int, images: Tensor) -> None:
    recipe = f"iia3(steps={steps})"
    model = sightline.adapt(Notes().double().eval())
    got = sightline.explain(model, images, recipe, target=0)
    plain = sightline.explain(two(), images, recipe, target=0)
    assert_close(got.map, plain.map, **EXACT)
    assert got.passes.forward == pytest.approx(2 * sightline.parse(recipe).cost(model).forward)
    assert (got.passes.forward > plain.passes.forward) == (steps > 3)  # below four points nobody tries


@pytest.mark.parametrize("name", ["resnet18", "convnext_atto", "densenet121", "swin_tiny_patch4_window7_224"])
def test_from_cut_to_cut_is_the_model_itself(name: str) -> None:
    options = {"img_size": 64, "window_size": 2} if name.startswith("swin") else {}
    model = require("timm").create_model(name, num_classes=3, **options).eval()
    adapter: Any = sightline.adapt(model)
    images = torch.randn(2, 3, 64, 64)
    first, last = adapter.layers[-2:]
    with torch.no_grad():
        below = adapter.trunk(images, first)
        kept = below.clone()
        with counting() as meter:
            above = adapter.between(below, first, last)
        assert torch.equal(below, kept)
        assert_close(above, adapter.trunk(images, last))
        assert_close(adapter.tail(above, last), model(images))
    assert meter.passes.forward == pytest.approx(2 * (adapter.share(last) - adapter.share(first)))
    with pytest.raises(sightline.errors.SiteError, match="give the earlier cut first"):
        adapter.between(above, last, first)


# ---- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("iia(layers=())", r"got layers=\(\); name at least one layer"),
        ("iia2(steps=0)", "iia2 got steps=0; steps is between 1 and 10000; choose a larger number"),
        ("iia2(variant='released', blank='black')", "got blank with variant='released', which has its own"),
    ],
)
def test_settings_that_mean_nothing_are_refused(recipe: str, message: str) -> None:
    with pytest.raises(sightline.errors.RecipeError, match=message):
        sightline.parse(recipe)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("iia(layers=(-1, 0))", "write each once, from the image on"),
        ("iia2(layer=0)", "write each once, from the image on"),
        ("iia(layers=(-1,), layer=-2)", "the map is made after the paths"),
        ("iia2(layer=-7)", "got layer -7; Two has 0, the image, to 2"),
        ("iia2(layer='uper')", "did you mean 'upper"),
        ("act(layer=0, variant='released')", "whose maps are made inside the model"),
        ("iia(integrand='gradient_rollout')", "which is no attention"),
    ],
)
def test_layers_that_cannot_be_are_refused(recipe: str, message: str, images: Tensor) -> None:
    with pytest.raises(sightline.errors.SightlineError, match=message):
        sightline.explain(two(), images, recipe, target=0)


def test_a_model_without_layers_is_told_so(images: Tensor) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 5)).double().eval()
    with pytest.raises(sightline.errors.UnsupportedModel, match="iia2 needs layers with a grid"):
        sightline.explain(model, images, "iia2", target=0)
    with pytest.raises(sightline.errors.UnsupportedModel, match="shows no layers to integrate over"):
        sightline.explain(model, images, "iia(layers=(0, -1), steps=2)", target=0)
    got = sightline.explain(model, images, "iia(layers=(0,), steps=2)", target=0).map
    assert_close(got, (images * model[1].weight[0].detach().view(3, 32, 32)).sum(dim=1))


def test_every_name_is_registered_under_its_paper() -> None:
    assert {METHODS[name].cite for name in ("iia", "iia2", "iia3", "img", "act")} == {"iia2023"}


# ---- an integrand of one's own ---------------------------------------------------------------------------------------


def squared(values: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    return values[-1] * gradients[-1].square()


@pytest.mark.parametrize("layers", [(0,), (-1,), (0, -1)])
def test_an_integrand_may_be_a_function(layers: tuple[int, ...], tiny_cnn: nn.Module, images: Tensor) -> None:
    def times(values: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
        return values[-1] * gradients[-1]

    named = IteratedIntegral(layers=layers, integrand="activation_gradient", steps=3)
    own = IteratedIntegral(layers=layers, integrand=times, steps=3)
    want = sightline.explain(tiny_cnn, images, named, target=1)
    assert_close(sightline.explain(tiny_cnn, images, own, target=1).map, want.map)
    other = sightline.explain(tiny_cnn, images, IteratedIntegral(layers=layers, integrand=squared, steps=3), target=1)
    assert not torch.allclose(other.map, want.map)
    assert other.recipe.endswith("integrand=squared, steps=3)")


def test_a_function_at_attention_is_given_the_layers_own(tiny_vit: nn.Module, images: Tensor) -> None:
    named, own = (
        sightline.explain(tiny_vit, images, IteratedIntegral(integrand=integrand, steps=2), target=1)
        for integrand in ("activation_gradient", lambda values, gradients: values[-1] * gradients[-1])
    )
    assert_close(own.map, named.map)


def test_a_function_of_another_shape_is_refused(tiny_cnn: nn.Module, images: Tensor) -> None:
    wrong = IteratedIntegral(integrand=lambda values, gradients: gradients[-1].sum(), steps=2)
    with pytest.raises(errors.RecipeError, match=r"the integrand returned .* return a tensor of that shape"):
        sightline.explain(tiny_cnn, images, wrong, target=1)
