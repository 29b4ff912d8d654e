"""No method, operator or metric waits for the device, or sends it something, once per step, sample, patch or batch.

There is no GPU here: `tests.transfers` pretends one and counts. Everything runs short in large batches, and long in
batches of one; the long run may not wait more often, nor send more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests import tiny
from tests.conformance.test_methods import FAST
from tests.conformance.test_metrics import FAST as FAST_METRICS
from tests.conformance.test_surroundings import runs_on
from tests.transfers import PretendedDevice
from torch import nn

import sightline
from sightline.models.vit.last_block import LastBlock
from sightline.recipe import parse, parse_metric
from sightline.registry import METHODS, METRICS, OPERATORS

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
COMPOSED = {  # operators and options of methods, short and long
    "plus(ixg)": None,
    "skip_plus(ixg)": None,
    "layers(ixg)": None,
    "full_grad_plus(gae)": None,
    "libra(ixg)": None,
    "var(ixg)": None,
    "against(ixg, other=2)": None,
    "absolute(ixg)": None,
    "rectify(ixg)": None,
    "finer_cam(grad_cam)": None,
    "refine_cam(grad_cam, layer=(-2, -1))": None,
    "forgrad(gradient(at='pixels'), sigma=3.0)": None,
    "smooth(ixg, samples=2)": "smooth(ixg, samples=9)",
    "mda(seed=ixg, cells=2, steps=3, search='exact')": "mda(seed=ixg, cells=3, steps=6, search='exact')",
    "mda(seed=ixg, cells=2, steps=3, search='joint')": "mda(seed=ixg, cells=3, steps=6, search='joint')",
    "score_cam(blank='dropped')": None,
    "rise(samples=16, cells=3, design='orthogonal')": "rise(samples=48, cells=3, design='orthogonal')",
    "lime(samples=16, segments=('grid', 3), design='orthogonal')": (
        "lime(samples=48, segments=('grid', 3), design='orthogonal')"
    ),
    "hsic(samples=16, cells=3, variant='orthogonal')": "hsic(samples=48, cells=3, variant='orthogonal')",
}
LONG_METRICS = {  # with more samples, stages or steps; without an option for it, metrics have more pixels
    **{name: f"{name}(stages=8)" for name in METRICS if name.startswith("randomisation_")},
    **{
        name: f"{name}(samples=24)"
        for name in METRICS
        if name.startswith(("relative_", "f_fidelity", "average_sens", "max_sens", "local_l", "infidelity"))
    },
    **{name: f"{name}(steps=16)" for name in METRICS if name.endswith(("_accuracy", "_aopc")) and "tion_" in name},
    "smooth_mprt": "smooth_mprt(stages=4, samples=6)",
    "continuity": "continuity(shifts=16)",
    "mu_fidelity": "mu_fidelity(samples=48)",
    "sensitivity_n": "sensitivity_n(samples=12)",
    "faithfulness_correlation": "faithfulness_correlation(size=32, samples=48)",
    "monotonicity_nguyen": "monotonicity_nguyen(step=64, samples=6)",
    "non_sensitivity": "non_sensitivity(grid=(4, 4), samples=3)",
    "saco": "saco(groups=20)",
    "single_deletion": "single_deletion(grid=(8, 8))",
    "soundness": "soundness(steps=30)",
    "road": "road(percentiles=(5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0))",
    "positive": "positive(fractions=(0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9))",
}
# What a method decides on the processor, and why it waits there; what is not here does not wait.
WAITS = {
    "blur_ig": "its blurs and sums are in double precision on the processor",
    "guided_ig": "its path is chosen in double precision on the processor",
    "partition_shap": "it chooses what to split by the scores so far",
    "pami": "it segments every shifted image on the processor",
    "deep_lift_shap": "its rules look for differences too small to divide by",
    "internal_influence": "it refuses a layer without any gradient",
    "mda": "it chooses what comes next by the scores so far",
    "road": "missing pixels are solved for on the processor",
    "soundness": "missing pixels are solved for on the processor",
    "monotonicity_nguyen": "the colours of every sample are seeded by the image",
    "non_sensitivity": "the colours of every sample are seeded by the image",
}
# What sends something with every batch, without waiting.
SENDS = {
    "blur_ig": "blurred images",
    "guided_ig": "points of its path",
    "partition_shap": "masks of what it splits",
    "pami": "segments of the shifted image",
    "dave": "transformations, drawn on the processor",
    "iia": "points of the paths",
    "iia2": "points of the paths",
    "iia3": "points of the paths",
    "img": "points of the paths",
    "soundness": "mean and deviation of the pixels, to and from those that an in-painter sees",
    "monotonicity_nguyen": "mean and deviation of the pixels, with the colours",
    "non_sensitivity": "mean and deviation of the pixels, with the colours",
}
OTHER_MODELS = {"token_activation_map", "d_rise", "bcos"}  # language models, B-cos networks; d_rise is rise with boxes
MODELS: dict[str, Callable[[int], nn.Module]] = {
    "vit": lambda size: tiny.vit(img_size=size),
    "cnn": lambda _: tiny.Cnn().eval(),
    "depthwise": lambda _: depthwise(),
}
MANY, ONE = 8, 1  # images at once


def depthwise() -> nn.Module:
    """A network that is fed channels-last images on a processor."""
    layers = (nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(), nn.Conv2d(6, 6, 3, 1, 1, groups=6), nn.ReLU(), nn.Conv2d(6, 8, 1))
    return tiny.awake(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))).eval()


def pictures(count: int, size: int) -> torch.Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(5))


def transfers(model: str, recipe: str, size: int = 32, batch: int = MANY) -> PretendedDevice:
    adapter = sightline.adapt(MODELS[model](size), batch=batch)
    images = pictures(1, size)
    if model != "vit":
        sightline.explain(adapter, images, recipe, target=3)  # finds the cuts of the model, once
    with PretendedDevice() as device:
        sightline.explain(adapter, images, recipe, target=3)
    return device


def lengths(model: str, short: str, long: str | None, size: int = 32) -> tuple[PretendedDevice, PretendedDevice]:
    """Count a short and a long run; without an option for it, a run is longer with more patches or cells."""
    return transfers(model, short, size), transfers(model, long or short, size if long else 2 * size, ONE)


def judged(model: str, metric: str, size: int, batch: int) -> PretendedDevice:
    adapter = sightline.adapt(MODELS[model](size), batch=batch)
    images, masks = pictures(2, size), torch.zeros(2, size, size, dtype=torch.long)
    masks[:, size // 4 : size // 2, size // 4 :] = 1
    attribution = sightline.explain(adapter, images, "ixg", target=3)
    sightline.evaluate(adapter, images, attribution, metric, masks=masks)
    with PretendedDevice() as device:
        sightline.evaluate(adapter, images, attribution, metric, masks=masks)
    return device


def metric_lengths(name: str, model: str) -> tuple[PretendedDevice, PretendedDevice]:
    short = FAST_METRICS.get(name, name)
    return judged(model, short, 32, 2 * MANY), judged(model, LONG_METRICS.get(name, short), 48, ONE)


def cases() -> list[Any]:
    names = [(name, model) for name in METHODS if name not in OTHER_MODELS for model in ("vit", "cnn")]
    return [pytest.param(*case, id="-".join(case)) for case in names if runs_on(FAST.get(case[0], case[0]), case[1])]


def composed_cases() -> list[tuple[str, str]]:
    on_both = [recipe for recipe in COMPOSED if runs_on(recipe, "cnn") and "dropped" not in recipe]
    return [*((recipe, "vit") for recipe in COMPOSED), *((recipe, "cnn") for recipe in on_both)]


def check_growth(name: str, short: PretendedDevice, long: PretendedDevice) -> None:
    if name not in WAITS:
        assert not long.waits - short.waits
    if name not in SENDS:
        assert not long.sent - short.sent


@pytest.mark.parametrize(("name", "model"), cases())
def test_a_longer_run_neither_waits_nor_sends_more(name: str, model: str) -> None:
    check_growth(name, *lengths(model, FAST.get(name, name), LONG.get(name)))


@pytest.mark.parametrize(("recipe", "model"), composed_cases())
def test_neither_do_operators_and_other_options(recipe: str, model: str) -> None:
    check_growth(recipe.partition("(")[0], *lengths(model, recipe, COMPOSED[recipe]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", ["vit", "cnn"])
@pytest.mark.parametrize("name", METRICS)
def test_neither_does_a_metric(name: str, model: str) -> None:
    check_growth(name, *metric_lengths(name, model))


@pytest.mark.parametrize("recipe", ["rise(samples=20)", "ablation_cam", "ig(steps=3)"])
def test_neither_does_a_network_that_is_fed_channels_last(recipe: str) -> None:
    check_growth(recipe, *lengths("depthwise", recipe, LONG.get(recipe.partition("(")[0])))


@pytest.mark.parametrize("name", ["rise", "ixg", "ig", "occlusion"])
def test_neither_does_a_last_block_that_runs_for_the_class_token(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    run = LastBlock.__call__
    monkeypatch.setattr(LastBlock, "__call__", lambda self, *given: calls.append(1) or run(self, *given))
    monkeypatch.setattr(torch._C, "_len_torch_function_stack", lambda: 0)  # it stays away where anyone watches
    check_growth(name, *lengths("vit", FAST.get(name, name), LONG.get(name), 72))  # smaller images run the whole block
    assert len(calls) > 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(WAITS | SENDS))
def test_exceptions_are_still_needed(name: str) -> None:
    if name in METRICS:
        short, long = metric_lengths(name, "vit")
    elif name in OPERATORS:
        short, long = lengths("vit", *next(each for each in COMPOSED.items() if each[0].startswith(f"{name}(")))
    else:
        model = "vit" if runs_on(FAST.get(name, name), "vit") else "cnn"
        short, long = lengths(model, FAST.get(name, name), LONG.get(name))
    assert bool(long.waits - short.waits) == (name in WAITS)
    assert bool(long.sent - short.sent) == (name in SENDS)


def test_long_recipes_are_those_of_fast() -> None:
    assert set(LONG) == {name for name in FAST if name != "att_cam"}
    assert all(type(parse(LONG[name])) is type(parse(FAST[name])) for name in LONG)
    assert all(long is None or type(parse(long)) is type(parse(short)) for short, long in COMPOSED.items())
    assert all(type(parse_metric(long)) is type(parse_metric(name)) for name, long in LONG_METRICS.items())


def test_every_operator_is_among_the_composed() -> None:
    assert {name for name in OPERATORS if any(f"{name}(" in recipe for recipe in COMPOSED)} == {*OPERATORS} - {"bcos"}


def test_the_pretended_device_sees_waits_and_what_is_sent() -> None:
    values = torch.randn(4)
    with PretendedDevice() as device:
        values[values > 0].sum().item()
        values[[0, 1]] + torch.tensor([1.0, 2.0], device=values.device)
        torch.arange(3).sum().item()  # on the processor from the beginning
        torch.randn(4, generator=torch.Generator()).to(values)
    assert device.waits == {"__getitem__ by a mask": 1, "item": 1}
    assert device.sent == {"__getitem__ by a list": 1, "tensor": 1}
