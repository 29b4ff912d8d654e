"""DeepLIFT: contributions that add up, closed forms, captum."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from captum.attr import DeepLift
from captum.attr._core import deep_lift as peer
from tests import tiny
from tests.methods import reference_cnn
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import sightline
from sightline.extras import require
from sightline.methods.gradient.deep_lift import contributions
from sightline.models.backward import deeplift as multipliers
from sightline.models.passes import counting


def shares(model: nn.Module, images: Tensor, reference: Tensor, target: Any = None, at: str = "pixels") -> Any:
    """Return the contributions to a target, at every place."""
    with torch.no_grad():
        return contributions(sightline.adapt(model), images, reference, [target or sightline.Logit(2)], at)[0]


def rise(model: nn.Module, images: Tensor, reference: Tensor, target: Any = None) -> Tensor:
    """Return how much the target rises from the reference to the image."""
    target = target or sightline.Logit(2)
    with torch.no_grad():
        found: Tensor = target(model(images)) - target(model(reference))
    return found


def assert_adds_up(model: nn.Module, images: Tensor, reference: Tensor, target: Any = None) -> None:
    got = shares(model, images, reference, target)["image"].flatten(1).sum(dim=1)
    assert_close(got, rise(model, images, reference, target), rtol=1e-9, atol=1e-12)


class Wrapped(nn.Module):
    """A convolution, something in the middle, and a head."""

    def __init__(self, middle: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.conv, self.norm, self.middle = nn.Conv2d(3, 8, 5, 3), nn.BatchNorm2d(8), middle
        self.last, self.head = nn.Conv2d(8, 6, 3), nn.Linear(6, 5)
        tiny.awake(self)
        self.double().eval()

    def forward(self, images: Tensor) -> Tensor:
        x = self.middle(self.norm(self.conv(images)))
        x = F.relu(self.last(F.interpolate(x, (8, 8))))
        found: Tensor = self.head(x.flatten(2).mean(dim=-1))
        return found


def excite(x: Tensor) -> Tensor:
    return x * x.mean(dim=(2, 3), keepdim=True).sigmoid()


def write_over(x: Tensor) -> Tensor:
    F.relu(x, inplace=True)  # whose result is met under its old name
    x *= torch.sigmoid(x)
    x /= x.square().mean(dim=1, keepdim=True).sqrt() + 1
    return x.clamp_(0.1, 0.7)


def attend(x: Tensor) -> Tensor:
    tokens = x.flatten(2).transpose(1, 2)
    mask = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
    one = F.scaled_dot_product_attention(tokens, tokens, tokens, attn_mask=mask)
    other = (tokens @ tokens.mT).masked_fill(~mask, float("-inf")).softmax(-1) @ tokens
    return (one + other).transpose(1, 2).unflatten(2, x.shape[2:])


MIDDLES: dict[str, Callable[[Tensor], Tensor]] = {
    "one module twice": nn.Sequential(*[nn.ReLU(inplace=True), nn.Conv2d(8, 8, 1).double()] * 2),
    "function": F.relu,
    "relu6": nn.ReLU6(inplace=True),
    "silu": nn.SiLU(),
    "gelu": nn.GELU(),
    "prelu": nn.PReLU(8).double(),
    "sigmoid": torch.sigmoid,
    "tanh": nn.Tanh(),
    "hardswish": nn.Hardswish(),
    "glu": nn.GLU(dim=1),
    "softmax": nn.Softmax(dim=1),
    "log softmax": lambda x: x.log_softmax(dim=1),
    "max pool": nn.MaxPool2d(2),
    "overlapping max pool after relu": nn.Sequential(nn.ReLU(), nn.MaxPool2d(3, 1, 1)),
    "global max": lambda x: F.adaptive_max_pool2d(x, 1),
    "largest channel": lambda x: x * x.max(dim=1, keepdim=True).values,
    "squeeze and excite": excite,
    "in place": write_over,
    "attention": attend,
    "einsum": lambda x: torch.einsum("bchw,bcxw->bchx", x, x.tanh()),
    "layer norm": lambda x: F.layer_norm(x, x.shape[1:], eps=1e-6),
    "group norm": nn.GroupNorm(4, 8).double(),
    "instance norm": nn.InstanceNorm2d(8).double(),
    "unit length": lambda x: F.normalize(x) + x / x.norm(dim=1, keepdim=True),
    "quotient": lambda x: 2 / (1 + x**2) + x / (2 + x.mean(dim=1, keepdim=True).abs()),
}


@pytest.mark.parametrize("middle", MIDDLES)
def test_contributions_add_up_to_the_difference(middle: str, images: Tensor) -> None:
    model = Wrapped(MIDDLES[middle])
    if middle == "glu":
        model.last = nn.Conv2d(4, 6, 3).double()
    assert_adds_up(model, images, torch.zeros_like(images))
    assert_adds_up(model, images, torch.randn_like(images))


@pytest.mark.parametrize("network", reference_cnn.NAMES)
def test_adds_up_on_the_reference_networks(network: str) -> None:
    model, image = reference_cnn.network(network)
    for reference in (torch.zeros_like(image), torch.randn_like(image)):
        assert_adds_up(model, image, reference)


@pytest.mark.parametrize(
    "target", [sightline.Logit((1, 4)), sightline.Probability(3), sightline.LogProbability(0), sightline.Contrast(1, 2)]
)
@pytest.mark.parametrize("network", ["tiny_vit", "tiny_cnn"])
def test_adds_up_for_every_target(target: Any, network: str, images: Tensor, request: Any) -> None:
    assert_adds_up(request.getfixturevalue(network), images, torch.ones_like(images), target)


def test_adds_up_for_the_likeness_to_a_text(tiny_vit: nn.Module, images: Tensor) -> None:
    text = sightline.TextSimilarity(embedding=(0.2, -0.4, 0.1, 0.8, -0.3))
    assert_adds_up(tiny_vit, images, torch.zeros_like(images), text)


@pytest.mark.parametrize("options", [{}, {"reg_tokens": 2, "init_values": 0.5, "qk_norm": True}])
def test_adds_up_from_every_block_of_a_transformer(options: Any, images: Tensor) -> None:
    model = tiny.vit(**options).double()
    found = shares(model, images, torch.zeros_like(images), at="tokens")
    assert len(found) == 3
    for values in found.values():
        assert_close(values.flatten(1).sum(dim=1), rise(model, images, torch.zeros_like(images)))
    got = sightline.explain(model, images, "deep_lift", target=2)
    assert got.values.shape == (3, 2, 4, 4)
    assert_close(got.map.sum(dim=(1, 2)), rise(model, images, torch.zeros_like(images)))


def test_adds_up_through_torch_s_own_attention(images: Tensor) -> None:
    class Sequential(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(5)
            self.patches, self.head = nn.Conv2d(3, 16, 8, 8), nn.Linear(16, 5)
            self.layer = nn.TransformerEncoderLayer(16, 2, 32, activation="gelu")  # tokens first, then images
            tiny.awake(self).double().eval()

        def forward(self, images: Tensor) -> Tensor:
            found: Tensor = self.head(self.layer(self.patches(images).flatten(2).permute(2, 0, 1)).mean(dim=0))
            return found

    assert_adds_up(Sequential(), images, torch.zeros_like(images))


def convnext(library: str) -> nn.Module:
    """A small ConvNeXt as its library initialises it: on the zero image every activation is zero, every norm 1/√eps."""
    torch.manual_seed(6)
    depths, widths = (1, 1, 2, 1), (8, 16, 24, 32)
    if library.startswith("timm"):
        options = {"use_grn": True, "ls_init_value": None} if "v2" in library else {}
        return require("timm.models.convnext").ConvNeXt(depths=depths, dims=widths, num_classes=5, **options)
    if library == "torchvision":
        stages = zip(widths, (*widths[1:], None), depths, strict=True)
        convnext = require("torchvision.models.convnext")
        return convnext.ConvNeXt([convnext.CNBlockConfig(*stage) for stage in stages], num_classes=5)
    kind = "ConvNextV2" if "v2" in library else "ConvNext"
    transformers = require("transformers")
    config = getattr(transformers, f"{kind}Config")(hidden_sizes=list(widths), depths=list(depths), num_labels=5)
    model: nn.Module = getattr(transformers, f"{kind}ForImageClassification")(config)
    return model


CONVNEXTS = ["timm", "timm v2", "torchvision", "transformers", "transformers v2"]


@pytest.mark.parametrize("library", CONVNEXTS)
@pytest.mark.parametrize("start", [lambda model: model, tiny.awake], ids=["initialised", "awake"])
def test_adds_up_on_convnext_in_both_precisions(library: str, start: Any, images: Tensor) -> None:
    adapter = sightline.adapt(start(convnext(library)).double().eval())
    want = rise(adapter, images, torch.zeros_like(images))
    exact = shares(adapter, images, torch.zeros_like(images))["image"]
    assert_close(exact.flatten(1).sum(dim=1), want, rtol=1e-9, atol=1e-12)
    assert exact.abs().sum() < 1e3 * want.abs().max()  # no huge contributions that cancel
    adapter.model.float()
    single = shares(adapter, images.float(), torch.zeros_like(images.float()))["image"].double()
    assert_close(single.flatten(1).sum(dim=1), want, rtol=1e-4, atol=1e-5)
    assert_close(single, exact, rtol=0, atol=1e-4 * exact.abs().max().item())


def test_a_norm_gives_the_opposite_when_image_and_baseline_are_exchanged(images: Tensor) -> None:
    def norms(x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[1:]) + x / (1 + x.square().mean(dim=1, keepdim=True)).sqrt()

    model, other = Wrapped(norms), 0.01 * torch.randn_like(images)
    forth, back = shares(model, images, other)["image"], shares(model, other, images)["image"]
    assert_close(forth, -back)


def test_a_norm_of_a_constant_baseline_is_divided_by_the_deviation_of_the_image() -> None:
    class Normed(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return F.layer_norm(images.flatten(1), (6,), eps=1e-12)

    image = torch.tensor([3.0, -1.0, 2.0, 0.0, -5.0, 1.0]).double().reshape(1, 3, 1, 2)
    # the deviation's own difference is multiplied by the centred baseline, which is zero
    got = shares(Normed(), image, torch.full_like(image, 0.5))["image"].flatten()
    weight = (torch.eye(6).double()[2] - 1 / 6) / image.std(correction=0)
    assert_close(got, weight * (image.flatten() - 0.5))


def test_a_linear_network_gives_the_weight_times_the_difference(images: Tensor) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(900, 5))
    model.double().eval()
    pixels, reference = images.clone().requires_grad_(), torch.randn_like(images)
    (weight,) = torch.autograd.grad(model(pixels)[:, 2].sum(), pixels)
    assert_close(shares(model, images, reference)["image"], weight * (images - reference))


@pytest.mark.parametrize("curve", [nn.ReLU(), nn.SiLU(), nn.Sigmoid(), nn.LeakyReLU(0.2), nn.ELU()])
def test_slopes_are_those_between_both_ends(curve: nn.Module, images: Tensor) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 8), curve, nn.Linear(8, 4)).double().eval()
    reference = torch.randn_like(images)
    high, low = (model[1](x.flatten(1)) for x in (images, reference))
    slope = (curve(high) - curve(low)) / (high - low)
    want = (model[3].weight[2] * slope) @ model[1].weight * (images - reference).flatten(1)
    assert_close(shares(model, images, reference)["image"].flatten(1), want.detach())


def test_a_pool_credits_the_values_that_made_both_maxima() -> None:
    class Pooled(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            largest: Tensor = F.max_pool2d(images, (1, 3), stride=1).flatten(1)
            return largest

    image = torch.tensor([[3.0, 1.0, 0.0, 2.0], [5.0, 5.0, 5.0, 5.0], [0.0, 0.0, 0.0, 0.0]])[None, :, None].double()
    reference = torch.tensor([[0.0, 2.0, 0.0, 0.0], [5.0, 5.0, 5.0, 5.0], [1.0, 0.0, 4.0, 0.0]])[None, :, None].double()
    got = shares(Pooled(), image, reference, sightline.types.Custom(lambda logits: logits.sum(dim=1)))["image"]
    # first row: windows 3 against 2 and 2 against 2; second: no difference; third: twice 0 against 4
    assert got[0, :, 0].tolist() == [[1, 0, 0, 0], [0, 0, 0, 0], [0, 0, -8, 0]]


def test_where_nothing_differs_the_multiplier_is_the_derivative(tiny_cnn: nn.Module, images: Tensor) -> None:
    pixels = images.clone().requires_grad_()
    with torch.no_grad():
        adapter, recorded = sightline.adapt(tiny_cnn), multipliers.RecordCalls()
        with torch.enable_grad(), recorded:
            adapter(pixels)
        with torch.enable_grad(), multipliers.DeepLiftBackward(recorded.calls):
            logits = adapter(pixels)
    got = torch.autograd.grad(logits[:, 2].sum(), pixels)[0]
    assert_close(got, torch.autograd.grad(tiny_cnn(pixels)[:, 2].sum(), pixels)[0])


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("kind", "bounds"), [(nn.ReLU, (0.0, torch.inf)), (nn.ReLU6, (0.0, 6.0)), (nn.Hardtanh, (-1.0, 1.0))]
)
def test_a_clamp_has_its_slope_or_where_nothing_differs_its_derivative(
    kind: Any, bounds: tuple[float, float], in_place: bool
) -> None:
    values = torch.tensor([-2.0, -1.0, 0.0, 0.5, 1.0, 6.0, 8.0], dtype=torch.float64)
    image, reference = torch.cartesian_prod(values, values).unbind(dim=1)
    reference = reference + torch.where(reference == 0.5, 1e-13, 0.0)  # no difference is too small but zero
    leaves = [x.clone().requires_grad_() for x in (reference, image)]
    activation, recorded = kind(inplace=in_place), multipliers.RecordCalls()
    with recorded:
        activation(1 * leaves[0])
    with multipliers.DeepLiftBackward(recorded.calls):
        got = activation(1 * leaves[1])
    (multiplier,) = torch.autograd.grad(got.sum(), leaves[1])
    inside = (image > bounds[0]) & (image < bounds[1])
    secant = (image.clamp(*bounds) - reference.clamp(*bounds)) / (image - reference)
    assert_close(got, image.clamp(*bounds))
    assert_close(multiplier, torch.where(image == reference, inside.double(), secant), rtol=1e-12, atol=1e-12)


# ---- captum ----------------------------------------------------------------------------------------------------------


def captum_says(model: nn.Module, images: Tensor, reference: Tensor, target: int) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: Tensor = DeepLift(model).attribute(images.clone(), reference, target=target).detach()
    return found


@pytest.mark.parametrize(
    ("network", "file"),
    [("tiny_cnn", "zero_tiny_cnn"), ("tiny_cnn", "rand_tiny_cnn"), ("tiny_resnet", "unshared_tiny_resnet")],
)
def test_matches_captum_s_numbers(network: str, file: str) -> None:
    model, image = reference_cnn.network(network)
    reference = reference_cnn.want("paths", "baseline") if "rand" in file else torch.zeros_like(image)
    got = shares(model, image, reference)["image"].sum(dim=1)[0]
    reference_cnn.assert_same(got, reference_cnn.want("paths", f"captum_deeplift_{file}"), 1e-9)


@pytest.mark.parametrize("file", ["zero_tiny_vgg", "rand_tiny_vgg"])
def test_does_not_match_captum_s_max_pools_which_lose_mass(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, image = reference_cnn.network("tiny_vgg")
    reference = reference_cnn.want("paths", "baseline") if "rand" in file else torch.zeros_like(image)
    want, lost = (reference_cnn.want("paths", f"{key}captum_deeplift_{file}") for key in ("", "delta_"))
    assert abs(lost) > 0.04
    got = shares(model, image, reference)["image"].sum(dim=1)[0]
    assert (got - want).abs().max() > 0.1 * want.abs().max()
    assert_close(got.sum(), want.sum() - lost[0])
    # with plain gradients through the pool, all the rest is as captum has it; and is refused, as it does not add up
    monkeypatch.delitem(multipliers.RULES, "max_pool2d")
    with pytest.raises(sightline.errors.UnsupportedModel, match="do not add up to the score"):
        shares(model, image, reference)
    monkeypatch.setattr("sightline.methods.gradient.deep_lift.check_sum", lambda *_, **__: None)
    got = shares(model, image, reference)["image"].sum(dim=1)[0]
    reference_cnn.assert_same(got, want, 1e-9)


def test_matches_captum_in_the_same_process(images: Tensor, parity) -> None:
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Sigmoid(), nn.Conv2d(8, 6, 3)),
        *(nn.ELU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(150, 20), nn.Tanh(), nn.Linear(20, 5)),
    )
    tiny.awake(model).double().eval()
    reference = torch.randn_like(images)
    model[7] = nn.AvgPool2d(2)  # captum's max pools lose mass
    want = captum_says(model, images, reference, 2)
    reference_cnn.assert_same(shares(model, images, reference)["image"], want, 1e-9)
    parity("deep_lift", "captum DeepLift", shares(model, images, reference)["image"], want, 1e-9)


def test_matches_captum_on_a_photograph(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peer.SUPPORTED_NON_LINEAR, nn.ReLU6, peer.nonlinear)  # it leaves ReLU6 to plain gradients
    adapter, image = sightline.load("package/efficientnet_lite0"), reference_cnn.photograph(shared)
    want = captum_says(adapter.model, image, torch.zeros_like(image), 155).sum(dim=1)
    got = sightline.explain(adapter, image, "deep_lift", target=155).map
    reference_cnn.assert_same(got, want, 1e-5)


# ---- edges -----------------------------------------------------------------------------------------------------------


def test_several_targets_share_both_passes_forward(tiny_cnn: nn.Module, images: Tensor) -> None:
    adapter, method = sightline.adapt(tiny_cnn), sightline.parse("deep_lift(blank='white')")
    targets = [sightline.Logit(0), sightline.Probability((2, 1)), sightline.Contrast(2, 1)]
    with torch.no_grad(), counting() as meter:
        together = sightline.methods.multi_target.multi_target(method, adapter, images, targets)
    assert meter.passes == sightline.types.Passes(4, 6)
    with torch.no_grad():
        for target, got in zip(targets, together, strict=True):
            assert_close(got.values, method(adapter, images, target).values)


def test_the_image_as_its_own_reference_gets_nothing(tiny_cnn: nn.Module) -> None:
    with pytest.warns(sightline.errors.SightlineWarning, match="constant map"):
        got = sightline.explain(tiny_cnn, torch.zeros(1, 3, 32, 32), "deep_lift", target=1).map
    assert not got.any()


def test_a_call_without_a_rule_is_refused(images: Tensor) -> None:
    model = Wrapped(lambda x: x.sin() * 3)
    with pytest.raises(sightline.errors.UnsupportedModel, match=r"do not add up to the score: Wrapped, or .* use ig"):
        sightline.explain(model, images, "deep_lift", target=1)


def test_images_whose_sum_is_off_by_rounding_are_flagged() -> None:
    class Rounded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 2, 1)

        def forward(self, images: Tensor) -> Tensor:
            total = images.sum(dim=(1, 2, 3)) + 30000  # of which float32 keeps multiples of 1/512
            return torch.stack([total - 30000, total], dim=1)

    images = torch.rand(2, 3, 8, 8)
    images[1] = torch.tensor([-1.0, 1.0]).repeat(3, 8, 4)
    images[1, 0, 0, 0] += 0.003
    with pytest.warns(sightline.errors.SightlineWarning, match="by more than 1% for 1 of 1 images"):
        got = sightline.explain(Rounded().eval(), images, "deep_lift", target=0, batch_size=1)
    assert got.flags == ("", "contributions do not add up")
    assert sightline.explain(Rounded().double().eval(), images.double(), "deep_lift", target=0).flags == ("", "")


def test_a_model_that_takes_another_way_on_the_reference_is_refused(images: Tensor) -> None:
    model = Wrapped(lambda x: x.tanh() if x.std() > 0.5 else x.sigmoid() * x)
    with pytest.raises(sightline.errors.UnsupportedModel, match="calls 'tanh' on the image where it calls 'sigmoid'"):
        sightline.explain(model, images * 3, "deep_lift", target=1)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(sightline.errors.RecipeError):
        sightline.parse("deep_lift(blank='grey')")
    with pytest.raises(sightline.errors.RecipeError):
        sightline.parse("deep_lift(at='patches')")
