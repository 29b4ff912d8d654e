"""Captum objects as methods: maps, targets, metrics that ask them again, and models that are not theirs."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from captum.attr import IntegratedGradients, Saliency
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline.errors import TargetError, UnsupportedMethod
from sightline.methods.foreign import Foreign
from sightline.metrics.case import Case
from sightline.metrics.judge import judge
from sightline.types import Value

OURS = {"saliency": "gradient(variant='abs_sum')", "ig": "ig(steps=50)"}


def captum(name: str, model: Any) -> Any:
    return Saliency(model) if name == "saliency" else IntegratedGradients(model)


def case(model: nn.Module, images: Tensor, method: Any, target: Any = None) -> Case:
    adapter = sightline.adapt(model)
    target = sightline.Logit((1, 3)) if target is None else target
    with torch.no_grad():
        maps = method(adapter, images, target).pixels()
    return Case(adapter, images, target, maps, method=method)


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("metric", ["max_sensitivity(samples=2)", "random_logit"])
def test_metrics_ask_a_captum_object_again(name: str, metric: str, tiny_cnn: nn.Module, images: Tensor) -> None:
    got = judge(case(tiny_cnn, images, Foreign(captum(name, tiny_cnn))), metric)[metric]
    want = judge(case(tiny_cnn, images, sightline.parse(OURS[name])), metric)[metric]
    assert_close(got, want, rtol=1e-6, atol=1e-6)
    assert (got != 0).all()


@pytest.mark.parametrize("name", OURS)
def test_evaluate_takes_a_captum_object_as_the_method(name: str, tiny_cnn: nn.Module, images: Tensor) -> None:
    source = captum(name, tiny_cnn)
    attribution = sightline.explain(tiny_cnn, images, source, target=(1, 3))
    scores = sightline.evaluate(
        tiny_cnn, images, attribution, "max_sensitivity(samples=2)", target=(1, 3), method=source
    )
    assert torch.isfinite(scores["max_sensitivity(samples=2)"]).all()
    assert (scores["max_sensitivity(samples=2)"] > 0).all()


METRICS = ["randomisation_spearman", "randomisation_pearson", "randomisation_cosine", "randomisation_ssim"]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("name", OURS)
def test_a_randomised_copy_is_refused(metric: str, name: str, tiny_cnn: nn.Module, images: Tensor) -> None:
    source = captum(name, tiny_cnn)
    attribution = sightline.explain(tiny_cnn, images, source, target=1)
    with pytest.raises(
        UnsupportedMethod, match=r"runs a model of its own, which shares no weights with Cnn, so it would"
    ):
        sightline.evaluate(tiny_cnn, images, attribution, metric, target=1, method=source)


class Holder:
    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images)
        return logits

    def logits(self, images: Tensor) -> Tensor:
        return self(images)


WAYS = {
    "module": lambda model: model,
    "bound method": lambda model: model.forward,
    "closure": lambda model: lambda images: model(images),
    "partial": lambda model: partial(torch.func.functional_call, model, {}),
    "object": Holder,
    "method of an object": lambda model: Holder(model).logits,
}


@pytest.mark.parametrize("way", WAYS)
def test_another_model_is_refused_however_the_object_holds_its_own(
    way: str, tiny_cnn: nn.Module, images: Tensor
) -> None:
    other = copy.deepcopy(tiny_cnn)
    with pytest.raises(UnsupportedMethod, match="it would explain another model"):
        sightline.explain(tiny_cnn, images, Saliency(WAYS[way](other)), target=1)
    want = sightline.explain(tiny_cnn, images, "gradient(variant='abs_sum')", target=1).map
    assert_close(sightline.explain(tiny_cnn, images, Saliency(WAYS[way](tiny_cnn)), target=1).map, want)


def test_a_part_of_the_model_and_a_wrapper_around_it_are_the_same_model(tiny_cnn: nn.Module, images: Tensor) -> None:
    wrapped = nn.Sequential(tiny_cnn, nn.Identity()).eval()
    want = sightline.explain(tiny_cnn, images, Saliency(tiny_cnn), target=1).map
    assert_close(sightline.explain(tiny_cnn, images, Saliency(wrapped), target=1).map, want)
    assert_close(sightline.explain(wrapped, images, Saliency(tiny_cnn), target=1).map, want)


def test_a_function_is_explained_by_an_object_that_runs_it(images: Tensor) -> None:
    weight = torch.randn(3, 4, dtype=torch.float64)

    def function(pixels: Tensor) -> Tensor:
        return pixels.square().sum(dim=(2, 3)) @ weight

    got = sightline.explain(function, images, Saliency(function), target=2).map
    assert_close(got, (2 * images * weight[:, 2, None, None]).abs().sum(dim=1))


def test_the_index_of_a_value_is_taken_and_other_targets_are_refused(tiny_cnn: nn.Module, images: Tensor) -> None:
    adapter, method = sightline.adapt(tiny_cnn), Foreign(Saliency(tiny_cnn))
    assert torch.equal(method(adapter, images, Value(2)).values, method(adapter, images, sightline.Logit(2)).values)
    with pytest.raises(TargetError, match="Saliency takes class indices; got Contrast, give Logit or an index"):
        method(adapter, images, sightline.Contrast(1, 2))


class Unhashable(Saliency):
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise ArithmeticError("compared")


def test_two_are_equal_where_they_hold_the_same_object(tiny_cnn: nn.Module) -> None:
    first, second = Unhashable(tiny_cnn), Unhashable(tiny_cnn)
    assert Foreign(first) == Foreign(first)
    assert Foreign(first) != Foreign(second)
    assert Foreign(first) != first
    assert len({Foreign(first), Foreign(first), Foreign(second)}) == 2


def test_its_cost_is_not_known_before(tiny_cnn: nn.Module) -> None:
    with pytest.raises(UnsupportedMethod, match="what Saliency costs is known only after it has run"):
        Foreign(Saliency(tiny_cnn)).cost(sightline.adapt(tiny_cnn))


@pytest.mark.parametrize("steps", [1, 4])
def test_passes_are_counted_at_the_input_of_its_model(steps: int, tiny_cnn: nn.Module, images: Tensor) -> None:
    method = Foreign(IntegratedGradients(tiny_cnn))
    method.source.attribute = partial(method.source.attribute, n_steps=steps)
    got = sightline.explain(tiny_cnn, images, method, target=1)
    assert got.passes == sightline.types.Passes(2 * steps, 2 * steps)
