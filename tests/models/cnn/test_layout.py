"""Images lie channels last where a network has depthwise convolutions, and nothing but the time changes."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from tests.models.fingerprint import fingerprint
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline.extras import require
from sightline.models.cnn import layout
from sightline.models.cnn.adapter import Convolutional
from sightline.models.passes import undone_on_error

DEPTHWISE = ("mobilenet_v2", "mobilenet_v3_small", "mnasnet0_5", "shufflenet_v2_x0_5")
OTHERS = ("resnet18", "densenet121", "squeezenet1_1", "regnet_x_400mf")
SIZE = 64


def torchvision(name: str) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = require("torchvision.models").get_model(name, weights=None).eval()
    return model


class Views(nn.Module):
    """A depthwise convolution, and a view that memory in another order refuses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3, stride=4, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.head = nn.Linear(8 * (SIZE // 4) ** 2, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = self.second(self.first(images)).relu()
        logits: Tensor = self.head(x.view(len(x), -1))
        return logits


def images(count: int = 2) -> Tensor:
    return torch.randn(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def guarded() -> Iterator[None]:
    """Be where `explain` is when it calls a model."""
    with undone_on_error():
        yield


@pytest.fixture
def strides() -> Iterator[list[bool]]:
    """Note of every convolution whether its input lay channels last."""
    seen: list[bool] = []

    def note(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if isinstance(module, nn.Conv2d) and not args[0].is_meta and min(args[0].shape[1:]) > 1:
            seen.append(not args[0].is_contiguous())

    handle = nn.modules.module.register_module_forward_pre_hook(note)
    yield seen
    handle.remove()


# ---- the rule --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize("name", DEPTHWISE)
def test_networks_with_depthwise_convolutions_run_channels_last(name: str) -> None:
    model = torchvision(name)
    assert layout.has_depthwise(model)
    assert layout.runs_channels_last(model, images(), (3, SIZE, SIZE))


@pytest.mark.parametrize("name", OTHERS)
def test_other_networks_do_not(name: str) -> None:
    model = torchvision(name)
    assert not layout.has_depthwise(model)
    assert not layout.runs_channels_last(model, images(), (3, SIZE, SIZE))


def test_other_precisions_and_devices_stay_as_they_are() -> None:
    model = torchvision("mobilenet_v2")
    for x in (images().double(), images().to("meta"), images().bfloat16()):
        assert not layout.runs_channels_last(model, x, (3, SIZE, SIZE))


# ---- the numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize("name", ["mobilenet_v2", "mobilenet_v3_small", "mnasnet0_5"])
def test_logits_cuts_and_gradients_are_those_of_the_model(name: str, strides: list[bool]) -> None:
    adapter, x = sightline.adapt(torchvision(name)), images()
    assert isinstance(adapter, Convolutional)
    with torch.no_grad():
        want = adapter.model(x)
        assert not strides[0]
        strides.clear()
        assert_close(adapter(x), want, rtol=1e-5, atol=1e-5)
        assert strides[0]
        site = adapter.cam_layer
        activation = adapter.trunk(x, site)
        kept = activation.clone()
        assert_close(adapter.tail(activation, site), want, rtol=1e-5, atol=1e-5)
        assert_close(adapter.tail(activation.contiguous(), site), want, rtol=1e-5, atol=1e-5)
        assert_close(activation, kept, rtol=0, atol=0)
    leaf, plain = x.clone().requires_grad_(), x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(adapter(leaf)[:, 0].sum(), leaf)
    (expected,) = torch.autograd.grad(adapter.model(plain)[:, 0].sum(), plain)
    assert gradient.is_contiguous()
    assert_close(gradient, expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


@pytest.mark.parametrize("recipe", ["gradient", "grad_cam", "guided_backprop", "deep_lift", "lrp", "eigen_cam"])
def test_maps_do_not_depend_on_the_format(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = torchvision("mobilenet_v2"), images()
    before = fingerprint(model)
    got = sightline.explain(model, x, recipe, target=3)
    assert fingerprint(model) == before
    assert got.values.is_contiguous()
    monkeypatch.setitem(layout._takes, model, False)
    want = sightline.explain(model, x, recipe, target=3)
    assert_close(got.values, want.values, rtol=1e-4, atol=1e-5 * want.values.abs().max().item())
    assert got.passes == want.passes


# ---- models that want the ordinary format ----------------------------------------------------------------------------


def test_a_model_that_takes_a_view_is_run_in_the_ordinary_format(strides: list[bool]) -> None:
    model = Views().eval()
    with pytest.raises(RuntimeError, match=layout.REFUSAL):
        model(images().to(memory_format=torch.channels_last))
    adapter = sightline.adapt(model)
    with torch.no_grad():
        assert_close(adapter(images()), model(images()))  # has tried the other format by now
        strides.clear()
        adapter(images())
    assert strides
    assert not any(strides)


def test_evaluate_takes_such_a_model() -> None:
    model = Views().eval()
    scores = sightline.evaluate(model, images(), torch.rand(2, SIZE, SIZE), "deletion(step=1024)", target=1)
    assert scores["deletion(step=1024)"].isfinite().all()


@pytest.mark.parametrize("recipe", ["gradient", "grad_cam", "guided_backprop", "deep_lift"])
def test_one_that_refuses_only_when_it_runs_is_run_again(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Views().eval()
    want = sightline.explain(model, images(), recipe, target=1)
    monkeypatch.setitem(layout._takes, model, True)  # as if the weightless copy had run
    before = fingerprint(model)
    got = sightline.explain(model, images(), recipe, target=1)
    assert_close(got.values, want.values)
    assert layout._takes[model] is False
    assert fingerprint(model) == before


@pytest.mark.usefixtures("guarded")
def test_models_are_not_kept() -> None:
    model = Views().eval()
    sightline.adapt(model)(images())
    assert model in layout._takes
    count = len(layout._takes)
    del model
    gc.collect()
    assert len(layout._takes) < count


@pytest.mark.parametrize("name", DEPTHWISE)
def test_a_direct_call_gives_what_the_model_gives(name: str) -> None:
    model = torchvision(name)
    with torch.no_grad():
        assert torch.equal(sightline.adapt(model)(images()), model(images()))
