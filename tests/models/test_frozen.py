"""Weights that want no gradient while a model is explained, and want it again afterwards."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tests import tiny
from torch import Tensor, nn

import sightline
from sightline.models.memory import LiveTensors, activation_memory
from sightline.models.passes import frozen, is_changed, ready, thawed


def images(count: int = 1) -> Tensor:
    return torch.randn(count, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def network() -> nn.Module:
    """A ViT of which one weight is frozen by its user."""
    model = tiny.vit(img_size=64, depth=8)
    model.patch_embed.proj.weight.requires_grad_(False)
    return model


def wanted(model: nn.Module) -> list[bool]:
    return [weight.requires_grad for weight in model.parameters()]


def test_weights_want_no_gradient_inside_and_what_they_wanted_afterwards() -> None:
    model = network()
    before = wanted(model)
    with ready(sightline.adapt(model)):
        assert not any(wanted(model))
        with ready(sightline.adapt(model)):  # once more inside, as a method that calls `explain` does
            pass
        assert not any(wanted(model))
        assert not is_changed()  # what methods share does not depend on it
    assert wanted(model) == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_they_want_it_again_after_an_error(error: type[BaseException]) -> None:
    model = network()
    before = wanted(model)
    with pytest.raises(error), ready(sightline.adapt(model)):
        raise error
    assert wanted(model) == before


def test_a_gradient_at_the_last_layer_keeps_no_graph_of_the_layers_before() -> None:
    adapter = sightline.adapt(network())
    counted = activation_memory(adapter, (64, 64))
    assert counted is not None
    with LiveTensors() as tensors:
        sightline.explain(adapter, images(), "grad_cam", target=1)
    assert tensors.peak < counted.graph / 2


def test_who_watches_a_layer_finds_its_graph() -> None:
    model = network()
    slopes: list[Tensor] = []

    def watching(_module: nn.Module, _args: Any, output: Tensor) -> None:
        if torch.is_grad_enabled():
            output.register_hook(slopes.append)

    model.blocks[0].register_forward_hook(watching)
    sightline.explain(model, images(), "grad_cam(layer='block.7.input')", target=1)
    with ready(sightline.adapt(model)):
        assert any(wanted(model))
        with torch.enable_grad():
            model(images()).sum().backward()
    assert slopes


class WeightGradients:
    """An object of another package that differentiates by a weight."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def attribute(self, inputs: Tensor, target: Any) -> Tensor:
        score = self.model(inputs)[:, 0].sum()
        (slope,) = torch.autograd.grad(score, self.model.head.weight)
        return inputs.detach() * slope.sum()


def test_methods_of_other_packages_find_weights_as_they_are() -> None:
    model = network()
    before = wanted(model)
    values = sightline.explain(model, images(), WeightGradients(model), target=0).values
    assert values.abs().sum() > 0
    assert wanted(model) == before
    with frozen([*model.modules()]), thawed():
        assert wanted(model) == before


def test_threads_that_explain_one_model_leave_it_as_it_was() -> None:
    model = network()
    before = wanted(model)
    with ThreadPoolExecutor(4) as pool:
        maps = list(pool.map(lambda _: sightline.explain(model, images(), "ixg", target=1).values, range(8)))
    assert all(torch.equal(values, maps[0]) for values in maps)
    assert wanted(model) == before
