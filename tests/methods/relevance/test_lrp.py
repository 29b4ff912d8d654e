"""Layer-wise relevance propagation: rules by hand, conservation, then zennit and captum."""

from __future__ import annotations

import gc
from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import tiny
from tests.methods import reference_cnn
from tests.models.families_cnn import FAMILIES, timm_convnext
from tests.models.families_cnn import images as family_images
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import sightline
from sightline.errors import RecipeError
from sightline.extras import repair_torchvision
from sightline.models.backward.lrp_rules import COMPOSITES
from sightline.models.passes import counting
from sightline.recipe import parse

EPS = 1e-6
RESIDUAL = "tiny_resnet"


def stable(z: Tensor) -> Tensor:
    return z + EPS * torch.where(z < 0, -1.0, 1.0)


# ---- the rules by hand, on a matrix ---------------------------------------------------------------------------------


def share(contributions: Tensor, bias: Tensor, relevance: Tensor) -> Tensor:
    """Hand relevance back in proportion to contributions[batch, output, input]."""
    z = contributions.sum(dim=-1) + bias
    return (contributions * (relevance / stable(z))[..., None]).sum(dim=1)


def expected(rule: str, x: Tensor, weight: Tensor, bias: Tensor, relevance: Tensor, low: float, high: float) -> Tensor:
    """The rule of one linear layer, by hand."""
    each, zero = x[:, None] * weight, torch.zeros_like(bias)
    supporting = share(each.clamp(min=0), bias.clamp(min=0), relevance)
    match rule:
        case "epsilon":
            return share(each, bias, relevance)
        case "plus":
            return supporting
        case "alpha2_beta1":
            return 2 * supporting - share(each.clamp(max=0), bias.clamp(max=0), relevance)
        case "box":
            bounds = low * weight.clamp(min=0) + high * weight.clamp(max=0)
            return share(each - bounds, zero, relevance)
    z = each.sum(dim=-1) + bias
    up = share(each + 0.25 * each.clamp(min=0), bias + 0.25 * bias.clamp(min=0), relevance * (z > 0))
    return up + share(each + 0.25 * each.clamp(max=0), bias + 0.25 * bias.clamp(max=0), relevance * (z < 0))


class OneConvolution(nn.Module):
    """A convolution over all of a 4×4 image: a matrix; then a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.conv = nn.Conv2d(3, 7, 4)
        self.head = nn.Linear(7, 5)
        tiny.awake(self)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.head(self.conv(images).flatten(1))
        return found


@pytest.mark.parametrize(
    ("composite", "rule"),
    [
        ("epsilon", "epsilon"),
        ("epsilon_plus", "plus"),
        ("epsilon_gamma_box", "box"),
        ("epsilon_alpha2_beta1", "alpha2_beta1"),
        ("excitation_backprop", "plus"),
    ],
)
def test_a_rule_is_what_it_is_by_hand(composite: str, rule: str) -> None:
    model = OneConvolution().double().eval()
    images = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    hidden = model.conv(images).flatten(1).detach()
    logits = model.head(hidden).detach()
    start = torch.zeros_like(logits)
    start[:, 3] = logits[:, 3]
    linear = "plus" if composite == "excitation_backprop" else "epsilon"
    inner = expected(linear, hidden, model.head.weight.detach(), model.head.bias.detach(), start, 0, 0)
    weight, bias = model.conv.weight.detach().flatten(1), model.conv.bias.detach()  # type: ignore[union-attr]
    want = expected(rule, images.flatten(1), weight, bias, inner, -1.0, 1.0).reshape(images.shape).sum(dim=1)
    assert_close(sightline.explain(model, images, f"lrp(composite='{composite}')", target=3).map, want)


def test_the_gamma_rule_by_hand() -> None:
    inner = OneConvolution().double().eval()
    model = nn.Sequential(nn.Conv2d(3, 3, 1, bias=False), inner).double().eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(3)[:, :, None, None])
    images = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    hidden = inner.conv(images).flatten(1).detach()
    logits = inner.head(hidden).detach()
    start = torch.zeros_like(logits)
    start[:, 3] = logits[:, 3]
    above = expected("epsilon", hidden, inner.head.weight.detach(), inner.head.bias.detach(), start, 0, 0)
    weight, bias = inner.conv.weight.detach().flatten(1), inner.conv.bias.detach()  # type: ignore[union-attr]
    want = expected("gamma", images.flatten(1), weight, bias, above, 0, 0).reshape(images.shape).sum(dim=1)
    got = sightline.explain(model, images, "lrp(composite='epsilon_gamma_box', layer='0')", target=3)
    assert_close(got.map, want)


def test_bounds_of_the_box_can_be_given() -> None:
    model = OneConvolution().double().eval()
    images = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    recipe = "lrp(composite='epsilon_gamma_box'{})"
    plain = sightline.explain(model, images, recipe.format(""), target=3).map
    black, white = (sightline.adapt(model).normalise(torch.full((1, 3, 1, 1), v).double()) for v in (0.0, 1.0))
    said = recipe.format(f", low={tuple(black.flatten().tolist())}, high={tuple(white.flatten().tolist())}")
    assert_close(sightline.explain(model, images, said, target=3).map, plain)
    wider = sightline.explain(model, images, recipe.format(", low=-4.0, high=4.0"), target=3).map
    assert not torch.allclose(wider, plain)
    for options, message in (
        (", low=2.0, high=-2.0", "the box rule needs low < high"),
        (", low=(1.0, 2.0)", "got low=.* one for each of 3 channels"),
    ):
        with pytest.raises(RecipeError, match=message):
            sightline.explain(model, images, recipe.format(options), target=3)
    with pytest.raises(RecipeError, match="only composite='epsilon_gamma_box' has the box rule"):
        parse("lrp(low=-1.0, high=1.0)")


@pytest.mark.parametrize(("low", "high"), [(-3.0, 3.0), ((-2.5, -2.0, -1.5), (1.0, 2.0, 3.0))])
def test_the_box_rule_is_zennits(low: Any, high: Any, parity) -> None:
    repair_torchvision()
    zennit = pytest.importorskip("zennit.composites")
    torch.manual_seed(9)
    model = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.ReLU(), nn.Flatten(),
                          nn.Linear(4 * 36, 5)).double().eval()  # fmt: skip
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64).clamp(-1.4, 0.9)
    got = sightline.explain(model, images, f"lrp(composite='epsilon_gamma_box', low={low}, high={high})", target=2).map
    bounds = [
        torch.as_tensor(bound, dtype=torch.float64).reshape(1, -1, 1, 1).expand_as(images) for bound in (low, high)
    ]
    composite = zennit.EpsilonGammaBox(low=bounds[0], high=bounds[1])
    with composite.context(model) as modified:
        leaf = images.clone().requires_grad_()
        logits = modified(leaf)
        start = torch.zeros_like(logits)
        start[:, 2] = logits[:, 2].detach()
        (want,) = torch.autograd.grad(logits, leaf, start)
    assert_close(got, want.sum(dim=1), rtol=1e-7, atol=1e-9)
    parity("lrp", "zennit EpsilonGammaBox", got, want.sum(dim=1), 1e-9)


# ---- laws -----------------------------------------------------------------------------------------------------------


class Unbiased(nn.Module):
    """A residual network without biases, with everything that has a rule of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.inner = nn.Conv2d(8, 8, 3, padding=1, bias=False, groups=2)
        self.head = nn.Linear(16, 5, bias=False)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(self.relu(self.stem(images)), 2)
        y = self.inner(x)
        y += x
        y = torch.cat([F.avg_pool2d(self.relu(y), 2), F.silu(F.avg_pool2d(x, 2))], dim=1)
        found: Tensor = self.head(y.mean(dim=(2, 3)))
        return found


@pytest.mark.parametrize("composite", [name for name in COMPOSITES if name != "epsilon_gamma_box"])
def test_relevance_is_conserved_without_biases(composite: str, images: Tensor) -> None:
    model = Unbiased().double().eval()
    got = sightline.explain(model, images, f"lrp(composite='{composite}')", target=1).map
    assert_close(got.sum(dim=(1, 2)), model(images)[:, 1].detach(), rtol=1e-3, atol=1e-4)


def test_epsilon_without_biases_gives_the_whole_logit_to_the_map(images: Tensor) -> None:
    model = Unbiased().double().eval()
    got = sightline.explain(model, images, "lrp(composite='epsilon')", target=1)
    assert not got.details.biases.any()
    assert_close(got.map.sum(dim=(1, 2)) + got.details.stabiliser, model(images)[:, 1].detach(), rtol=0, atol=1e-12)
    assert_close(got.map.sum(dim=(1, 2)), model(images)[:, 1].detach(), rtol=0, atol=1e-4)


ACCOUNTED = [(f"lrp(composite='{composite}')", name) for composite in COMPOSITES for name in reference_cnn.NAMES]
ACCOUNTED += [("lrp(preset='captum')", name) for name in ("tiny_cnn", "tiny_vgg")]  # it copies at residual sums


@pytest.mark.parametrize(("recipe", "name"), ACCOUNTED)
def test_the_map_and_what_biases_absorbed_are_the_logit(recipe: str, name: str) -> None:
    model, image = reference_cnn.network(name)
    for layer in ("", ", layer=0"):
        got = sightline.explain(model, image, recipe[:-1] + layer + ")", target=reference_cnn.TARGET)
        balance, logit = got.details, model(image)[:, reference_cnn.TARGET].detach()
        assert_close(balance.start, logit)
        assert_close(balance.map, got.map.sum(dim=(1, 2)))
        assert balance.biases.abs().max() > 1e-3
        whole = balance.map + balance.biases + balance.stabiliser
        assert_close(whole, logit, rtol=1e-9, atol=1e-9 * float(balance.biases.abs().max() + logit.abs().max()))
        assert balance.gap.abs().max() < 1e-8 * (1 + balance.biases.abs().max())


def test_what_captum_copies_is_a_gap() -> None:
    model, image = reference_cnn.network(RESIDUAL)
    got = sightline.explain(model, image, "lrp(preset='captum')", target=reference_cnn.TARGET).details
    assert got.gap.abs().max() > 1


def test_each_target_and_image_has_a_balance_of_its_own(tiny_cnn: nn.Module, images: Tensor) -> None:
    method, adapter = sightline.parse("lrp"), sightline.adapt(tiny_cnn)
    with torch.no_grad():
        found = method.multi_target(adapter, images, [sightline.Logit(1), sightline.Logit(3)])  # type: ignore[attr-defined]
    for one, target in zip(found, (1, 3), strict=True):
        for row in range(len(images)):
            alone = sightline.explain(tiny_cnn, images[row : row + 1], "lrp", target=target).details
            assert_close(one.details.biases[row], alone.biases[0])
            assert one.details.gap[row].abs() < 1e-9


SERVED = [
    *("torchvision vgg", "torchvision vgg with norms", "timm vgg"),
    *("torchvision resnet", "torchvision wide resnet", "timm resnet", "torchvision densenet", "timm densenet"),
    *("torchvision efficientnet", "timm efficientnet", "timm efficientnet lite"),
    *("torchvision mobilenetv2", "timm mobilenetv2", "torchvision mobilenetv3", "timm mobilenetv3"),
    *("torchvision convnext", "timm convnext"),
]


@pytest.mark.parametrize("name", SERVED)
def test_every_family_is_served_and_its_balance_told(name: str) -> None:
    model, x = FAMILIES[name].build().double(), family_images()[:1].double()
    for composite in ("epsilon_plus", "epsilon"):
        got = sightline.explain(model, x, f"lrp(composite='{composite}')", target=1)
        assert torch.isfinite(got.map).all()
        size = sum(part.abs().max() for part in (got.details.start, got.details.biases, got.details.map))
        assert got.details.gap.abs().max() < 1e-6 * size


def test_group_norms_and_global_response_norms_are_refused(images: Tensor) -> None:
    group = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.GroupNorm(2, 6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5)
    )
    with pytest.raises(sightline.errors.UnsupportedModel, match="lrp has no rule for the call 'group_norm'"):
        sightline.explain(group.double().eval(), images, "lrp", target=1)
    response = timm_convnext(use_grn=True).double().eval()
    with pytest.raises(sightline.errors.UnsupportedModel, match="lrp has no rule for"):
        sightline.explain(response, family_images()[:1].double(), "lrp", target=1)


def test_the_card_says_what_is_experimental_and_that_a_patent_is_claimed() -> None:
    card = " ".join(sightline.METHODS["lrp"].doc.split())
    assert "state that LRP is patented" in card
    assert "take advice of their own" in card
    assert "ConvNeXt's, for which no rules are agreed upon: experimental" in card


@pytest.mark.parametrize("short", ["alpha2_beta1", "alpha2_beta1_flat"])
def test_a_composite_may_be_called_by_its_short_name(short: str, tiny_cnn: nn.Module, images: Tensor) -> None:
    one, other = (
        sightline.explain(tiny_cnn, images, f"lrp(composite='{name}')", target=1).map
        for name in (short, f"epsilon_{short}")
    )
    assert torch.equal(one, other)


def test_epsilon_without_biases_is_input_times_gradient_of_a_relu_network(images: Tensor) -> None:
    torch.manual_seed(9)
    layers = nn.Conv2d(3, 6, 3, bias=False), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5)
    model = nn.Sequential(*layers).double().eval()
    nn.init.zeros_(model[4].bias)
    with torch.no_grad():
        model[0].weight.mul_(1e4)  # so that the stabiliser is negligible
    got = sightline.explain(model, images, "lrp(composite='epsilon')", target=1).map
    reference_cnn.assert_same(got, sightline.explain(model, images, "ixg", target=1).map, 1e-4)


def test_a_batch_norm_is_one_with_its_convolution(tiny_cnn: nn.Module, images: Tensor) -> None:
    fused: Any = tiny.Cnn().double().eval()
    for number in (1, 2):
        conv, norm = getattr(fused, f"conv{number}"), getattr(fused, f"norm{number}")
        merged = torch.nn.utils.fuse_conv_bn_eval(conv, norm)
        setattr(fused, f"conv{number}", merged)
        setattr(fused, f"norm{number}", nn.Identity().eval())
    for composite in COMPOSITES:
        recipe = f"lrp(composite='{composite}')"
        want = sightline.explain(fused, images, recipe, target=1).map
        assert_close(sightline.explain(tiny_cnn, images, recipe, target=1).map, want)


def convolutions(work: Callable[[], Any]) -> int:
    """Return how many convolutions run in a call, those of its backward pass included."""
    with torch.autograd.profiler.profile() as seen:
        work()
    return sum(event.count for event in seen.key_averages() if event.key == "aten::conv2d")


class Overwritten(nn.Module):
    """Convolutions whose outputs are overwritten: directly, as a view and after a norm; then a sum over positions."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.first, self.second, self.third = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3), nn.Conv2d(6, 6, 3)
        self.norm, self.relu, self.head = nn.BatchNorm2d(6), nn.ReLU(in_place), nn.Linear(6, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = self.second(self.relu(self.first(images)))
        x = self.relu(x.flatten(2)).view(x.shape)
        found: Tensor = self.head(self.relu(self.norm(self.third(x))).sum(dim=(2, 3)))
        return found


@pytest.mark.parametrize("recipe", [*(f"lrp(composite='{name}')" for name in COMPOSITES), "lrp(preset='captum')"])
def test_outputs_that_are_overwritten_change_nothing(recipe: str, images: Tensor) -> None:
    models = [tiny.awake(Overwritten(in_place)).double().eval() for in_place in (True, False)]
    models[1].load_state_dict(models[0].state_dict())
    one, other = (sightline.explain(model, images, recipe, target=1).map for model in models)
    assert_close(one, other)


@pytest.mark.parametrize("recipe", ["lrp(composite='epsilon')", "lrp(preset='captum')", "lrp"])
def test_epsilon_runs_no_layer_again(recipe: str, tiny_cnn: nn.Module, images: Tensor) -> None:
    adapter, once = sightline.adapt(tiny_cnn), convolutions(lambda: tiny_cnn(images))
    found = sightline.explain(adapter, images, recipe, target=1)  # surveys the model, once
    calls = convolutions(lambda: sightline.explain(adapter, images, recipe, target=1))
    if recipe == "lrp":  # the plus rule does, and once more where an input has both signs
        assert calls >= 2 * once
    else:
        assert calls == once
    assert found.passes == sightline.types.Passes(2 if recipe == "lrp" else 1, 1) * len(images)


class Between(nn.Module):
    """A convolution, an in-place ReLU, and only then a batch norm."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.conv, self.relu, self.norm = nn.Conv2d(3, 6, 3), nn.ReLU(inplace=True), norm
        self.head = nn.Linear(6, 5)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.head(self.norm(self.relu(self.conv(images))).mean(dim=(2, 3)))
        return found


def test_a_batch_norm_after_something_else_passes_relevance_on(images: Tensor) -> None:
    norm = nn.BatchNorm2d(6)
    model = Between(norm).double().eval()
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(1, 2, 6))
        norm.bias.copy_(torch.linspace(-1, 1, 6))
    scale, shift = norm.weight / (norm.running_var + norm.eps).sqrt(), norm.bias  # type: ignore[operator]
    after = sightline.explain(model, images, "lrp(layer='norm')", target=1).map
    before = sightline.explain(model, images, "lrp(layer='relu')", target=1).map
    assert scale.ne(1).any()
    assert shift.ne(0).any()
    assert_close(after, before)
    at_pixels = sightline.explain(model, images, "lrp", target=1).map
    model.relu.inplace = False
    assert_close(sightline.explain(model, images, "lrp", target=1).map, at_pixels)


def test_a_batch_norm_after_something_else_has_the_epsilon_rule_in_that_composite(images: Tensor) -> None:
    norm = nn.BatchNorm2d(6)
    model = tiny.awake(Between(norm)).double().eval()
    before = sightline.explain(model, images, "lrp(composite='epsilon', layer='relu')", target=1).map
    logit = model(images)[:, 1].detach()
    x = F.relu(model.conv(images)).detach()
    scale = (norm.weight / (norm.running_var + norm.eps).sqrt()).detach()[:, None, None]  # type: ignore[operator]
    z = norm(x).detach()
    # the head and the mean, then the norm: in proportion to what each adds, biases included
    relevance = (
        z
        * model.head.weight[1].detach()[:, None, None]
        / z.shape[-1] ** 2
        * (logit / stable(logit))[:, None, None, None]
    )
    assert_close(before, (x * scale * relevance / stable(z)).sum(dim=1), rtol=1e-4, atol=1e-4)
    whole = sightline.explain(model, images, "lrp(composite='epsilon')", target=1).details
    assert whole.gap.abs().max() < 1e-9


def test_relevance_starts_from_the_logits_and_is_linear_in_them(tiny_cnn: nn.Module, images: Tensor) -> None:
    one, other, contrast = (
        sightline.explain(tiny_cnn, images, "lrp", target=target).map for target in (1, 3, sightline.Contrast(1, 3))
    )
    assert_close(contrast, one - other)
    tripled = sightline.explain(tiny_cnn, images, "lrp", target=sightline.types.Custom(lambda z: 3 * z[:, 1])).map
    assert_close(tripled, 3 * one)


def test_a_gate_gets_no_relevance_and_passes_it_on(images: Tensor) -> None:
    class Gated(nn.Module):
        def __init__(self, open_: bool) -> None:
            super().__init__()
            torch.manual_seed(9)
            self.conv, self.gate, self.head = nn.Conv2d(3, 6, 3), nn.Linear(6, 6), nn.Linear(6, 5)
            self.open = open_

        def forward(self, images: Tensor) -> Tensor:
            x = self.conv(images).relu()
            gate = self.gate(x.mean(dim=(2, 3))).sigmoid()[..., None, None]
            x = x * (gate.detach() if self.open else gate)
            found: Tensor = self.head(x.mean(dim=(2, 3)))
            return found

    learned, constant = (sightline.explain(Gated(o).double().eval(), images, "lrp", target=1).map for o in (0, 1))
    assert_close(learned, constant)


def test_normalisation_inside_the_model_passes_relevance_on(tiny_cnn: nn.Module, images: Tensor) -> None:
    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = tiny_cnn

        def forward(self, images: Tensor) -> Tensor:
            found: Tensor = self.net(images.clone().sub_(0.5).div_(0.25))
            return found

    got = sightline.explain(Normalised().double().eval(), images, "lrp", target=1).map
    assert_close(got, sightline.explain(tiny_cnn, (images - 0.5) / 0.25, "lrp", target=1).map)


def test_several_targets_share_the_forward_pass(tiny_cnn: nn.Module, images: Tensor) -> None:
    adapter, method = sightline.adapt(tiny_cnn), sightline.recipe.parse("lrp(composite='epsilon_alpha2_beta1')")
    targets = [sightline.Logit(0), sightline.Logit((1, 3))]
    with torch.no_grad(), counting() as meter:
        found = method.multi_target(adapter, images, targets)  # type: ignore[attr-defined]
    assert meter.passes == method.multi_target_cost(adapter, 2) * 2  # type: ignore[attr-defined]
    assert meter.passes == sightline.types.Passes(2 * (1 + 2 * 2), 2 * 2 * 2)
    for one, target in zip(found, targets, strict=True):
        want = sightline.explain(tiny_cnn, images, "lrp(composite='epsilon_alpha2_beta1')", target=target)
        assert_close(one.map, want.map)


def test_nothing_stays_behind(tiny_cnn: nn.Module, images: Tensor) -> None:
    def alive() -> int:
        gc.collect()
        return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())

    for recipe in ("lrp", "lrp(preset='captum')", "guided_backprop"):
        sightline.explain(tiny_cnn, images, recipe, target=1)
        before = alive()
        sightline.explain(tiny_cnn, images, recipe, target=1)
        assert alive() <= before


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [lambda x: x.softmax(dim=1), lambda x: x @ x.mT, lambda x: x - x.mean(), torch.exp])
def test_a_call_without_a_rule_is_refused(call: Any, images: Tensor) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 6, 3), nn.Linear(6, 5)

        def forward(self, images: Tensor) -> Tensor:
            found: Tensor = self.head(call(self.conv(images)).mean(dim=(2, 3)))
            return found

    with pytest.raises(sightline.errors.UnsupportedModel, match="lrp has no rule for"):
        sightline.explain(Odd().double().eval(), images, "lrp", target=1)


def test_options_are_checked() -> None:
    for recipe in ("lrp(composite='x')", "lrp(preset='x')", "lrp(composite='epsilon', preset='captum')"):
        with pytest.raises(sightline.errors.RecipeError, match=r"composite=|preset="):
            sightline.recipe.parse(recipe)


# ---- the reference numbers ------------------------------------------------------------------------------------------


class Scaled(nn.Module):
    """What a batch norm is to zennit once merged: it still divides by the root of 1 + eps."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + 1e-5) ** -0.5


def merged_as_zennit_does(model: nn.Module) -> nn.Module:
    """Merge every batch norm into the convolution before it, leaving zennit's factor behind."""
    for parent in list(model.modules()):
        children = list(parent.named_children())
        for (_, conv), (name, norm) in pairwise(children):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                merged = torch.nn.utils.fuse_conv_bn_eval(conv, norm)
                conv.weight, conv.bias = merged.weight, merged.bias
                setattr(parent, name, Scaled().eval())
    return model


def as_zennit_starts(model: nn.Module, image: Tensor, composite: str, file: str) -> Tensor:
    """Our relevance on the merged network, starting from the logit before it was merged."""
    model = merged_as_zennit_does(model)
    adapter = sightline.adapt(model, mean=(0.5,) * 3, std=(1 / 9,) * 3)  # pixels between -4.5 and 4.5
    got = sightline.explain(adapter, image, f"lrp(composite='{composite}')", target=reference_cnn.TARGET).map[0]
    logit = float(reference_cnn.numbers(file)["logit"])
    return got * logit / float(model(image)[0, reference_cnn.TARGET].detach())


CASES = [
    (composite, name)
    for composite in COMPOSITES
    for name in reference_cnn.NAMES
    if (reference_cnn.FOLDER / f"zennit_{composite}_{name}.npz").is_file()
]


def test_every_composite_of_zennit_has_its_numbers() -> None:
    assert len(CASES) == 16
    assert {composite for composite, _ in CASES} == set(COMPOSITES) - {"epsilon"}


@pytest.mark.parametrize(("composite", "name"), CASES)
def test_matches_zennit(composite: str, name: str) -> None:
    file = f"zennit_{composite}_{name}"
    model, image = reference_cnn.network(name)
    # zennit's excitation backprop lets its factor of 1e-5 pass through the backward pass as well
    tolerance = 3e-5 if composite == "excitation_backprop" else 1e-9
    got = as_zennit_starts(model, image, composite, file)
    reference_cnn.assert_same(got, reference_cnn.want(file), tolerance)


@pytest.mark.parametrize("name", reference_cnn.NAMES)
def test_is_zennits_but_for_a_factor_of_its_merged_norms(name: str) -> None:
    model, image = reference_cnn.network(name)
    got = sightline.explain(model, image, "lrp", target=reference_cnn.TARGET).map[0]
    reference_cnn.assert_same(got, reference_cnn.want(f"zennit_epsilon_plus_{name}"), 3e-4)


@pytest.mark.parametrize("name", reference_cnn.NAMES)
def test_matches_captum(name: str) -> None:
    model, image = reference_cnn.network(name)
    got = sightline.explain(model, image, "lrp(preset='captum')", target=reference_cnn.TARGET).map[0]
    reference_cnn.assert_same(got, reference_cnn.want(f"captum_lrp_{name}"), 1e-8)


@pytest.mark.parametrize(
    ("name", "composite"),
    [
        ("epsilon_plus", "EpsilonPlus"),
        ("epsilon_plus_flat", "EpsilonPlusFlat"),
        ("epsilon_alpha2_beta1", "EpsilonAlpha2Beta1"),
    ],
)
def test_matches_zennit_in_the_same_process(name: str, composite: str, images: Tensor, parity) -> None:
    repair_torchvision()
    zennit = pytest.importorskip("zennit.composites")
    canonizers = pytest.importorskip("zennit.torchvision")
    model, _ = reference_cnn.network(RESIDUAL)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-14  # which leaves zennit's factor at one
    got = sightline.explain(model, images, f"lrp(composite='{name}')", target=1).map
    logits = model(images).detach()
    pixels = images.clone().requires_grad_()
    with getattr(zennit, composite)(canonizers=[canonizers.ResNetCanonizer()]).context(model) as changed:
        (want,) = torch.autograd.grad(changed(pixels)[:, 1], pixels, logits[:, 1])
    reference_cnn.assert_same(got, want.sum(dim=1), 1e-9)
    parity("lrp", f"zennit {composite}", got, want.sum(dim=1), 1e-9)


class Residual(nn.Module):
    """What stands for a block of EfficientNet-Lite0 in zennit, whose sums must be modules."""

    def __init__(self, block: Any, add: nn.Module) -> None:
        super().__init__()
        self.block, self.add = block, add
        self.block.has_skip = False

    def forward(self, x: Tensor) -> Tensor:
        return self.add(torch.stack([x, self.block(x)], dim=-1))  # type: ignore[no-any-return]


def as_zennit_needs_it(model: nn.Module, add: Callable[[], nn.Module]) -> nn.Module:
    """Merge EfficientNet-Lite0's batch norms exactly, leaving their activations, and make its sums modules."""
    for parent in list(model.modules()):
        for (_, conv), (name, norm) in pairwise(list(parent.named_children())):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                scale = norm.weight * (norm.running_var + norm.eps).rsqrt()  # type: ignore[operator]
                conv.weight = nn.Parameter(conv.weight * scale[:, None, None, None])
                conv.bias = nn.Parameter(norm.bias - norm.running_mean * scale)  # type: ignore[operator]
                setattr(parent, name, norm.act)
    for stage in model.get_submodule("blocks").children():
        for name, block in list(stage.named_children()):
            if block.has_skip:
                setattr(stage, name, Residual(block, add()))
    return model


@pytest.mark.shared
def test_matches_zennit_on_a_photograph(shared: Path) -> None:
    repair_torchvision()
    zennit, layers = pytest.importorskip("zennit.composites"), pytest.importorskip("zennit.layer")
    image = reference_cnn.photograph(shared).double()
    whole = sightline.load("package/efficientnet_lite0").model.double()
    merged = as_zennit_needs_it(deepcopy(whole), layers.Sum).eval()
    for name, composite in {
        "epsilon_plus_flat": "EpsilonPlusFlat",
        "epsilon_alpha2_beta1": "EpsilonAlpha2Beta1",
    }.items():
        got = sightline.explain(whole, image, f"lrp(composite='{name}')", target=155).map
        pixels = image.clone().requires_grad_()
        with getattr(zennit, composite)().context(merged) as changed:
            logit = changed(pixels)[:, 155]
            (want,) = torch.autograd.grad(logit, pixels, logit.detach())
        reference_cnn.assert_same(got, want.sum(dim=1), 1e-8)


@pytest.mark.parametrize("composite", sorted(COMPOSITES))
def test_zeros_put_around_an_image_are_the_convolutions_own(composite: str, images: Tensor) -> None:
    inside = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=2), nn.ReLU(), nn.Conv2d(4, 5, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    apart = nn.Sequential(nn.ZeroPad2d(2), deepcopy(inside[0]), *inside[1:])
    apart[1].padding = (0, 0)
    got, want = (
        sightline.explain(model.double().eval(), images, f"lrp(composite='{composite}')", target=1).map
        for model in (apart, inside)
    )
    assert_close(got, want)


def test_runs_on_a_photograph_and_finds_the_dog(shared: Path) -> None:
    model, image = sightline.load("package/efficientnet_lite0"), reference_cnn.photograph(shared)
    for composite in ("epsilon_plus", "epsilon_gamma_box"):
        got = sightline.explain(model, image, f"lrp(composite='{composite}')", target=155).map[0].clamp(min=0)
        head = got[:130, 30:170].sum() / got.sum()
        assert head > 0.6, f"{composite} puts {head:.2f} of its positive relevance on the head"


def test_the_box_rule_needs_pixels_at_the_first_layer(images: Tensor) -> None:
    class Grey(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(1, 4, 3), nn.Linear(4, 5)

        def forward(self, images: Tensor) -> Tensor:
            found: Tensor = self.head(F.relu(self.conv(images.mean(dim=1, keepdim=True))).mean(dim=(2, 3)))
            return found

    model = Grey().double().eval()
    with pytest.raises(sightline.errors.UnsupportedModel, match="1 channels are not the image's 3; take composite="):
        sightline.explain(model, images, "lrp(composite='epsilon_gamma_box')", target=1)
    assert sightline.explain(model, images, "lrp(composite='epsilon_plus_flat')", target=1).map.abs().max() > 0
