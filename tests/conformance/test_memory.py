"""The peak that a cost declares, against the bytes that every method really holds; and batches that fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import tiny
from tests.conformance.test_methods import COMPOSED, FAST
from tests.conformance.test_surroundings import runs_on
from torch import nn
from torch.testing import assert_close

import sightline
from sightline.models import memory
from sightline.models.memory import ActivationMemory, LiveTensors, activation_memory, free_memory, images_that_fit
from sightline.recipe import parse
from sightline.registry import METHODS
from sightline.types import Passes

FACTOR = 2.0  # between what is declared and what is held
SIZE, BATCH = 64, 4
MODELS: dict[str, Callable[[], nn.Module]] = {
    "vit": lambda: tiny.vit(img_size=SIZE, embed_dim=32, depth=4, num_heads=4),
    "cnn": lambda: tiny.Cnn().eval(),
}
RECIPES = [{**FAST, "d_rise": "d_rise(samples=20)"}.get(name, name) for name in METHODS] + COMPOSED
OTHER_MODELS = ("token_activation_map",)  # for vision-language models


def adapter(model: str) -> sightline.Adapter:
    """A model that no method has run on yet: some keep the activations of a blank image with it."""
    return sightline.adapt(MODELS[model](), batch=BATCH)


def images(count: int = 1) -> torch.Tensor:
    return torch.randn(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


def cases() -> list[Any]:
    pairs = [(recipe, model) for recipe in RECIPES if recipe not in OTHER_MODELS for model in MODELS]
    return [pytest.param(*pair, id="-".join(pair)) for pair in pairs if runs_on(*pair)]


@pytest.mark.parametrize(("recipe", "model"), cases())
def test_the_declared_peak_is_near_what_is_held(recipe: str, model: str) -> None:
    network = adapter(model)
    with LiveTensors() as tensors:
        sightline.explain(network, images(), recipe, target=3)
    declared = parse(recipe).cost(network).peak
    assert tensors.peak / FACTOR <= declared <= tensors.peak * FACTOR


@pytest.mark.parametrize("model", MODELS)
def test_activations_are_counted_without_running_the_model(model: str) -> None:
    network = MODELS[model]()
    counted = activation_memory(sightline.adapt(network), (SIZE, SIZE))
    assert counted is not None
    batch = images()
    with LiveTensors() as forward, torch.no_grad():
        network(batch.clone())
    network.requires_grad_(False)  # as it is while a method runs
    with LiveTensors() as graph:
        pixels = batch.clone().requires_grad_()
        logits = network(pixels)
        assert graph.held > logits.nbytes
        torch.autograd.grad(logits.sum(), pixels)
    assert counted.forward == pytest.approx(forward.peak, rel=0.3)
    assert counted.graph == pytest.approx(graph.peak, rel=0.15)
    assert counted.image == batch.nbytes


def test_attention_is_counted_though_no_fused_kernel_stores_it() -> None:
    network = tiny.vit()
    counted = activation_memory(sightline.adapt(network))
    assert counted is not None
    assert counted.attention == 3 * 2 * 17 * 17 * 4  # blocks, heads, tokens, tokens, bytes


def test_weights_keep_the_inputs_of_their_layers_only_where_somebody_watches() -> None:
    free, frozen, watched = tiny.vit(), tiny.vit().requires_grad_(False), tiny.vit()
    watched.blocks[0].register_forward_hook(lambda *_: None)
    first, second, third = (activation_memory(sightline.adapt(network)) for network in (free, frozen, watched))
    assert first is not None
    assert second is not None
    assert third is not None
    assert first == second
    assert first.graph < third.graph
    assert all(parameter.requires_grad for parameter in free.parameters())


def test_a_function_cannot_be_counted() -> None:
    model = sightline.adapt(lambda x: x.mean((2, 3)))
    assert activation_memory(model) is None
    assert model.batch == memory.IMAGES
    assert parse("rise").cost(model).peak == 0


def test_live_tensors_count_a_storage_once_and_what_was_there_not_at_all() -> None:
    before = torch.zeros(1000)
    with LiveTensors() as tensors:
        made = before + 1
        view = made.view(10, 100)
        assert tensors.held == made.nbytes
        before.add_(1)
        del made, view
        assert tensors.held == 0
    assert tensors.peak == before.nbytes


# ---- batches --------------------------------------------------------------------------------------------------------


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Callable[..., sightline.Adapter]:
    """A model of which one image takes so many bytes with a graph and without one, on a machine with so many free."""

    def make(graph: float, free: float, forward: float = 1) -> sightline.Adapter:
        counted = ActivationMemory(image=1, forward=int(forward), graph=int(graph))
        monkeypatch.setattr(memory, "activation_memory", lambda _: counted)
        monkeypatch.setattr(memory, "free_memory", lambda _: free)
        return sightline.adapt(tiny.Cnn().eval(), input_size=(256, 256))

    return make


def test_the_batch_is_what_fits_into_half_of_what_is_free(large: Callable[..., sightline.Adapter]) -> None:
    assert large(graph=1e6, free=1e9).batch == 16
    assert large(graph=1e8, free=1e9).batch == 4  # five would fit; a power of two
    assert large(graph=1e10, free=1e9).batch == 1
    assert large(graph=1e9, free=1e12).batch == 2  # of 3 GiB, however much is free


def test_on_a_processor_the_activations_of_a_batch_are_what_the_allocator_keeps(
    large: Callable[..., sightline.Adapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert large(graph=1e6, free=1e12, forward=13e6).batch == 2  # 48 MiB hold three; a power of two
    assert large(graph=1e6, free=1e12, forward=2e6).batch == 16
    assert large(graph=1e6, free=1e12, forward=1e9).batch == 1
    assert large(graph=1e8, free=1e9, forward=2e6).batch == 4
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert large(graph=1e6, free=1e12, forward=13e6).batch == 8  # each thread has its share


def test_a_batch_that_is_said_is_kept(large: Callable[..., sightline.Adapter]) -> None:
    model = large(graph=1e10, free=1e9)
    model.batch = 5
    assert model.batch == 5
    assert model.with_facts(name="again").batch == 5


def test_the_batch_does_not_change_while_the_adapter_lives(
    large: Callable[..., sightline.Adapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = large(graph=1e8, free=1e9)
    assert model.batch == 4
    monkeypatch.setattr(memory, "free_memory", lambda _: 1e6)
    assert model.batch == 4


@pytest.mark.parametrize("recipe", ["ig(steps=5)", "rise(samples=9)", "ablation_cam", "smooth_grad(samples=5)"])
def test_results_do_not_depend_on_the_batch(recipe: str) -> None:
    network = tiny.Cnn().eval().double()
    small, large = (
        sightline.explain(sightline.adapt(network, batch=size), images(2).double(), recipe, target=1).values
        for size in (1, 16)
    )
    assert_close(small, large, rtol=1e-9, atol=1e-12)


def test_free_memory_heeds_the_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    everywhere = free_memory(torch.device("cpu"))
    assert everywhere > 0
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("2000\n")
    (tmp_path / "memory.stat").write_text("anon 1500\ninactive_file 500\n")
    assert free_memory(torch.device("cpu")) == 3500
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory(torch.device("cpu")) > 3500


def test_peaks_of_costs_one_after_the_other_do_not_add_up() -> None:
    both = Passes(1, 1, peak=7) + Passes(1, 0, peak=5) * 3
    assert both == Passes(4, 1)
    assert both.peak == 7
    assert images_that_fit(sightline.adapt(tiny.vit())) == memory.IMAGES  # too small to count
