"""No method waits for the device, or sends it something, once per step, sample or patch.

There is no GPU here: `tests.transfers` pretends one and counts. Every method runs short and long; the long run may not
wait more often, nor send more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests import tiny
from tests.conformance.test_methods import FAST
from tests.conformance.test_surroundings import runs_on
from tests.transfers import PretendedDevice
from torch import nn

import sightline
from sightline.recipe import parse
from sightline.registry import METHODS

LONG = {  # the recipes of FAST with more steps, samples, windows or channels
    "ig": "ig(steps=9)",
    "guided_ig": "guided_ig(steps=9)",
    "blur_ig": "blur_ig(steps=9, sigma=4.0)",
    "xrai": "xrai(steps=6, segments=('grid', 4), radius=1)",
    "idgi": "idgi(steps=9)",
    "gradient_shap": "gradient_shap(samples=9)",
    "deep_lift_shap": "deep_lift_shap(samples=6)",
    "smooth_grad": "smooth_grad(samples=9)",
    "iia": "iia(steps=4)",
    "iia2": "iia2(steps=4)",
    "iia3": "iia3(steps=3)",
    "img": "img(steps=6)",
    "act": "act(steps=6)",
    "tis": "tis(samples=24)",
    "rise": "rise(samples=60)",
    "hsic": "hsic(samples=48, cells=4)",
    "sobol": "sobol(samples=16, cells=2)",
    "craft": "craft(components=2, samples=12)",
    "conductance": "conductance(steps=9)",
    "internal_influence": "internal_influence(steps=9)",
    "iba": "iba(steps=6, samples=2)",
    "m2ib": "m2ib(steps=6)",
    "pami": "pami(segments=(('grid', 4),), samples=6)",
    "extremal_perturbation": "extremal_perturbation(steps=9, stride=8, sigma=8)",
    "lime": "lime(samples=60, segments=('grid', 3))",
    "kernel_shap": "kernel_shap(samples=60, segments=('grid', 3))",
    "partition_shap": "partition_shap(samples=60)",
    "shapley_sampling": "shapley_sampling(samples=6, segments=('grid', 3))",
    "feature_ablation": "feature_ablation(segments=('grid', 5))",
    "occlusion": "occlusion(window=0.25, stride=0.125)",
    "ss_cam": "ss_cam(samples=6)",
    "is_cam": "is_cam(samples=6)",
    "gscore_cam": "gscore_cam(channels=9)",
    "smooth_grad_cam_pp": "smooth_grad_cam_pp(samples=9)",
    "bi_attn": "bi_attn(steps=9)",
    "tam": "tam(steps=9)",
    "t_attn": "t_attn(steps=9)",
    "att_ig": "att_ig(steps=9)",
}
# What a method decides on the processor, and why it waits there; what is not here does not wait.
WAITS = {
    "blur_ig": "its blurs and sums are in double precision on the processor",
    "guided_ig": "its path is chosen in double precision on the processor",
    "partition_shap": "it chooses what to split by the scores so far",
    "pami": "it segments every shifted image on the processor",
    "deep_lift_shap": "its rules look for differences too small to divide by",
    "internal_influence": "it refuses a layer without any gradient",
    "tis": "its masks keep different patches, whose places have to be known",
}
# What sends something with every batch, without waiting.
SENDS = {
    "guided_ig": "points of its path",
    "partition_shap": "masks of what it splits",
    "pami": "segments of the shifted image",
    "tis": "places of the patches that are kept",
    "mutex": "places of the patches that are kept",
    "iia": "points of the paths",
    "iia2": "points of the paths",
    "iia3": "points of the paths",
    "img": "points of the paths",
}
OTHER_MODELS = {"token_activation_map", "d_rise"}  # for vision-language models; d_rise is rise with boxes
MODELS: dict[str, Callable[[int], nn.Module]] = {
    "vit": lambda size: tiny.vit(img_size=size),
    "cnn": lambda _: tiny.Cnn().eval(),
}


def transfers(model: str, recipe: str, size: int = 32) -> PretendedDevice:
    adapter = sightline.adapt(MODELS[model](size), batch=2)
    images = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(5))
    if model == "cnn":
        sightline.explain(adapter, images, recipe, target=3)  # finds the cuts of the model, once
    with PretendedDevice() as device:
        sightline.explain(adapter, images, recipe, target=3)
    return device


def cases() -> list[Any]:
    names = [(name, model) for name in METHODS if name not in OTHER_MODELS for model in MODELS]
    return [pytest.param(*case, id="-".join(case)) for case in names if runs_on(FAST.get(case[0], case[0]), case[1])]


@pytest.mark.parametrize(("name", "model"), cases())
def test_a_longer_run_neither_waits_nor_sends_more(name: str, model: str) -> None:
    short = transfers(model, FAST.get(name, name))
    # without an option for it, a run is longer where there are more patches or cells
    long = transfers(model, LONG[name]) if name in LONG else transfers(model, FAST.get(name, name), 64)
    if name not in WAITS:
        assert not long.waits - short.waits
    if name not in SENDS:
        assert not long.sent - short.sent


@pytest.mark.parametrize("name", sorted(WAITS | SENDS))
def test_exceptions_are_still_needed(name: str) -> None:
    model = "vit" if runs_on(FAST.get(name, name), "vit") else "cnn"
    short = transfers(model, FAST.get(name, name))
    long = transfers(model, LONG[name]) if name in LONG else transfers(model, FAST.get(name, name), 64)
    assert bool(long.waits - short.waits) == (name in WAITS)
    assert bool(long.sent - short.sent) == (name in SENDS)


def test_long_recipes_are_those_of_fast() -> None:
    assert set(LONG) == {name for name in FAST if name != "att_cam"}
    assert all(type(parse(LONG[name])) is type(parse(FAST[name])) for name in LONG)


def test_the_pretended_device_sees_waits_and_what_is_sent() -> None:
    values = torch.randn(4)
    with PretendedDevice() as device:
        values[values > 0].sum().item()
        values[[0, 1]] + torch.tensor([1.0, 2.0], device=values.device)
        torch.arange(3).sum().item()  # on the processor from the beginning
        torch.randn(4, generator=torch.Generator()).to(values)
    assert device.waits == {"__getitem__ by a mask": 1, "item": 1}
    assert device.sent == {"__getitem__ by a list": 1, "tensor": 1}
