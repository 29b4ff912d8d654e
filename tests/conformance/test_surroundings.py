"""Every method under whatever the caller has set up: threads, gradient modes, autocast, hooks, interrupts.

The result is that of a plain call, and nothing around it has changed: neither the model, nor the random numbers, nor
torch's global settings.
"""

from __future__ import annotations

import importlib
import random
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from tests import tiny
from tests.conformance.test_methods import COMPOSED, FAST
from tests.models.fingerprint import changes, fingerprint
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.testing import assert_close

import sightline
from sightline.recipe import parse, parts
from sightline.registry import METHODS, OPERATORS, spec_of

MODELS: dict[str, Callable[[], nn.Module]] = {"vit": tiny.vit, "cnn": lambda: tiny.Cnn().eval()}
INNER = {"vit": "blocks.1.mlp", "cnn": "conv2"}  # a module in the middle
TARGETS = (1, 3)
ON_BLOCKS = ("plus", "skip_plus", "layers", "libra(full_grad_plus", "full_grad_plus")  # of transformers only
OTHER_MODELS = {"bcos", "token_activation_map"}  # for B-cos networks, and for vision-language models
RECIPES = [FAST.get(name, name) for name in METHODS if name != "token_activation_map"]
RECIPES += [*COMPOSED, "absolute(ixg)", "layers(ixg)"]


@cache
def adapters() -> dict[str, sightline.Adapter]:
    return {name: sightline.adapt(build()) for name, build in MODELS.items()}


def runs_on(recipe: str, model: str) -> bool:
    """Tell whether a recipe can be tried on a model."""
    if model == "cnn" and recipe.startswith(ON_BLOCKS):
        return False
    try:
        sightline.api.check_needs(parse(recipe), adapters()[model])
    except sightline.errors.UnsupportedModel:
        return False
    return True


def recipes_on(model: str) -> list[str]:
    return [recipe for recipe in RECIPES if runs_on(recipe, model)]


def once() -> list[Any]:
    """Every recipe on the first model that it runs on; on the others as well among the slow tests."""
    found = []
    for recipe in RECIPES:
        for place, model in enumerate(name for name in MODELS if runs_on(recipe, name)):
            marks = (
                [pytest.mark.slow] if place and recipe != "lrp" else []
            )  # whose rules for both have little in common
            found.append(pytest.param(recipe, model, id=f"{recipe}-{model}", marks=marks))
    return found


def runs_the_model(recipe: str) -> bool:
    return any(spec_of(part).family != "chance" for part in parts(parse(recipe)))


def test_every_method_and_operator_is_tried() -> None:
    tried = {spec_of(part).name for recipe in RECIPES for part in parts(parse(recipe))}
    assert tried >= {*METHODS, *OPERATORS} - OTHER_MODELS
    assert {p.values[0] for p in once() if not p.marks} == set(RECIPES)  # type: ignore[attr-defined]


def images() -> Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(5))


@cache
def plain(recipe: str, model: str) -> Tensor:
    """Return what a plain call gives."""
    return sightline.explain(MODELS[model](), images(), recipe, target=TARGETS).values


def surroundings() -> dict[str, Any]:
    """Return everything global that explaining must leave as it was."""
    module = nn.modules.module
    return {
        "torch random": torch.get_rng_state().numpy().tobytes(),
        "numpy random": repr(np.random.get_state()),
        "python random": random.getstate(),
        "gradient mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "anomaly mode": torch.is_anomaly_enabled(),
        "default type": torch.get_default_dtype(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "deterministic": (torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic),
        "benchmark": (torch.backends.cudnn.benchmark, torch.backends.mkldnn.enabled),
        "threads": torch.get_num_threads(),
        "warnings": list(warnings.filters),
        "modes": (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()),
        "global hooks": [len(getattr(module, name)) for name in vars(module) if name.startswith("_global_")
                         and isinstance(getattr(module, name), dict)],
        "parametrizations cached": parametrize._cache_enabled,
    }  # fmt: skip


@contextmanager
def unchanged(*models: nn.Module) -> Iterator[None]:
    """Compare the models and all that is global, before and after."""
    before, around = [fingerprint(model) for model in models], surroundings()
    try:
        yield
    finally:
        after = [fingerprint(model) for model in models]
        assert changes(around, surroundings()) == {}
        assert [changes(*pair) for pair in zip(before, after, strict=True)] == [{}] * len(models)


@contextmanager
def default_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


SURROUNDINGS: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "default float64": default_float64,
    "deterministic algorithms": deterministic,
}


@pytest.mark.parametrize(("recipe", "model"), once())
def test_gives_the_same_whatever_the_caller_has_set(recipe: str, model: str) -> None:
    network, batch, want = MODELS[model](), images(), plain(recipe, model)
    for name, surround in SURROUNDINGS.items():
        with surround(), unchanged(network):
            got = sightline.explain(network, batch, recipe, target=TARGETS).values
        assert torch.equal(got, want), name
        assert got.dtype == torch.float32, name


def test_evaluates_the_same_whatever_the_caller_has_set() -> None:
    network, batch = MODELS["vit"](), images()
    metrics = [
        "insertion",
        "deletion_mda(visible='keep')",
        "road",
        "infidelity",
        "max_sensitivity",
        "randomisation_ssim",
        "irof",
    ]
    attribution = sightline.explain(network, batch, "ixg", target=TARGETS)
    want = sightline.evaluate(network, batch, attribution, metrics)
    for name, surround in SURROUNDINGS.items():
        with surround(), unchanged(network):
            got = sightline.evaluate(network, batch, attribution, metrics)
        for metric in want:
            assert torch.equal(got[metric], want[metric]), (name, metric)


# ---- hooks and parametrizations --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("recipe", "model"), once())
def test_leaves_the_caller_s_hooks_where_they_are_and_runs_them(recipe: str, model: str) -> None:
    network, seen = MODELS[model](), []
    inner = network.get_submodule(INNER[model])
    inner.register_forward_pre_hook(lambda *_: seen.append("before"))
    inner.register_forward_hook(lambda *_: seen.append("after"))
    inner.register_full_backward_hook(lambda *_: seen.append("backward"))
    with unchanged(network):
        got = sightline.explain(network, images(), recipe, target=TARGETS).values
    assert torch.equal(got, plain(recipe, model))
    assert not runs_the_model(recipe) or "before" in seen


def parametrised(model: str) -> nn.Module:
    """A network whose weights are computed: by weight norm at one place, by spectral norm at another."""
    network = MODELS[model]().double()
    torch.manual_seed(7)
    layers = [module for module in network.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    for place, layer in enumerate(layers):
        (parametrizations.weight_norm if place % 2 else parametrizations.spectral_norm)(layer)
    return network.eval()


def plainly_weighted(model: str) -> nn.Module:
    """The same network with its weights as they come out."""
    network = parametrised(model)
    for module in network.modules():
        if parametrize.is_parametrized(module):
            parametrize.remove_parametrizations(module, "weight")
    return network


@pytest.mark.filterwarnings("ignore:.* gave a constant map:sightline.errors.SightlineWarning")
@pytest.mark.parametrize(("recipe", "model"), once())
def test_computed_weights_are_weights(recipe: str, model: str) -> None:
    network, batch = parametrised(model), images().double()
    want = sightline.explain(plainly_weighted(model), batch, recipe, target=TARGETS).values
    with unchanged(network):
        got = sightline.explain(network, batch, recipe, target=TARGETS).values
    assert_close(got, want, rtol=1e-8, atol=1e-10)


# ---- interrupts ------------------------------------------------------------------------------------------------------


class Interrupt(torch.autograd.Function):
    """The identity, interrupted forward or backward when its turn comes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, turns: list[int], backward: bool) -> Tensor:
        ctx.turns, ctx.backward_too = turns, backward
        if not backward:
            Interrupt.count(turns)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        if ctx.backward_too:
            Interrupt.count(ctx.turns)
        return gradients[0], None, None

    @staticmethod
    def count(turns: list[int]) -> None:
        turns[0] -= 1
        if turns[0] == 0:
            raise KeyboardInterrupt


@contextmanager
def interrupted(module: nn.Module, turns: list[int], *, backward: bool) -> Iterator[None]:
    """Raise `KeyboardInterrupt` at the given pass through a module, and then never again."""
    handle = module.register_forward_hook(lambda _module, _args, output: Interrupt.apply(output, turns, backward))
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize(("recipe", "model"), once())
def test_an_interrupt_leaves_everything_as_it_was(recipe: str, model: str) -> None:
    network, batch = MODELS[model](), images()
    inner, stopped = network.get_submodule(INNER[model]), 0
    with unchanged(network):
        for backward in (False, True):
            for turn in (1, 2):
                with interrupted(inner, [turn], backward=backward):
                    try:
                        sightline.explain(network, batch, recipe, target=TARGETS)
                    except KeyboardInterrupt:
                        stopped += 1
    assert (stopped > 0) == runs_the_model(recipe)
    assert torch.equal(sightline.explain(network, batch, recipe, target=TARGETS).values, plain(recipe, model))


@pytest.mark.parametrize("recipe", ["gae", "caap", "ixg", "grad_rollout"])
@pytest.mark.parametrize("turn", [1, 2, 3])
def test_an_interrupt_while_a_model_is_given_back_leaves_it_as_it_was(
    recipe: str, turn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, batch, turns = MODELS["vit"](), images(), [turn]
    network.train()
    capture = importlib.import_module("sightline.models.capture")
    unhook = capture._unhook

    def interrupt(*call: Any) -> None:
        Interrupt.count(turns)
        unhook(*call)

    monkeypatch.setattr(capture, "_unhook", interrupt)
    with (
        unchanged(network),
        pytest.warns(sightline.errors.SightlineWarning, match="train mode"),
        pytest.raises(KeyboardInterrupt),
    ):
        sightline.explain(network, batch, recipe, target=TARGETS)
    monkeypatch.undo()
    assert torch.equal(sightline.explain(network.eval(), batch, recipe, target=TARGETS).values, plain(recipe, "vit"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*train mode:sightline.errors.SightlineWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a destructor that is interrupted
@pytest.mark.parametrize("recipe", ["gae", "caap", "ixg"])
def test_interrupts_at_any_moment_leave_the_model_as_it_was(recipe: str) -> None:
    network, batch, moments, stopped = MODELS["vit"]().train(), images(), random.Random(0), 0

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    sightline.explain(network, batch, recipe, target=TARGETS)
    started = time.perf_counter()
    sightline.explain(network, batch, recipe, target=TARGETS)
    lasts = time.perf_counter() - started
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(300):
            with unchanged(network):
                try:
                    signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.05, 1.2) * lasts)
                    sightline.explain(network, batch, recipe, target=TARGETS)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except (KeyboardInterrupt, RuntimeError):  # torch's own contexts may fail when they are interrupted
                    stopped += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert stopped > 50


# ---- threads ---------------------------------------------------------------------------------------------------------

THREADS = 8


def at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    """Call all in eight threads; return what each gives, in order."""
    begin = threading.Barrier(THREADS)
    with ThreadPoolExecutor(THREADS, initializer=begin.wait, initargs=(60,)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


@pytest.mark.parametrize("model", MODELS)
def test_threads_that_share_a_model_get_what_one_alone_gets(model: str) -> None:
    network, batch = MODELS[model](), images()
    network.train()  # every call holds it in eval mode meanwhile
    recipes = recipes_on(model)
    want = {recipe: plain(recipe, model) for recipe in recipes}
    shuffled = random.Random(0).sample(recipes * 2, 2 * len(recipes))

    def call(recipe: str) -> Callable[[], Any]:
        return lambda: sightline.explain(network, batch, recipe, target=TARGETS).values

    with unchanged(network), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* is in train mode", sightline.errors.SightlineWarning)
        got = at_once([call(recipe) for recipe in shuffled])
    assert [r for r, values in zip(shuffled, got, strict=True) if not torch.equal(values, want[r])] == []


def test_threads_on_other_models_do_not_wait() -> None:
    mine, other, batch = MODELS["cnn"](), MODELS["cnn"](), images()
    inside, done, entered = threading.Event(), threading.Event(), []

    def wait(*_: Any) -> None:
        entered.append(threading.get_ident())
        inside.set()
        assert done.wait(30)

    mine.get_submodule("conv2").register_forward_hook(wait)
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(sightline.explain, mine, batch, "ixg", TARGETS)
        assert inside.wait(30)
        quick = pool.submit(sightline.explain, other, batch, "grad_cam", TARGETS)
        assert torch.equal(quick.result(30).values, plain("grad_cam", "cnn"))
        assert not slow.done()
        same = threading.Thread(target=sightline.explain, args=(mine, batch, "ixg", TARGETS))
        same.start()
        same.join(0.2)
        assert len(entered) == 1  # its turn comes when the first has finished
        done.set()
        assert torch.equal(slow.result(30).values, plain("ixg", "cnn"))
        same.join(30)
        assert not same.is_alive()


@pytest.mark.parametrize(("model", "site"), [("cnn", "conv2"), ("vit", "block.1.input"), ("vit", "block.1.v")])
def test_a_thread_that_runs_a_model_while_it_is_edited_gets_what_it_always_gets(model: str, site: str) -> None:
    network, batch = MODELS[model](), images()
    adapter, logits = sightline.adapt(network), network(batch).detach()
    with torch.no_grad(), ThreadPoolExecutor(1) as pool, adapter.edit({site: torch.zeros_like}):
        assert not torch.allclose(network(batch), logits)
        assert torch.equal(pool.submit(network, batch).result(30).detach(), logits)
        with pytest.raises(RuntimeError):
            pool.submit(network, batch[:, :2]).result(30)
        assert torch.equal(pool.submit(network, batch).result(30).detach(), logits)
    assert torch.equal(network(batch), logits)
