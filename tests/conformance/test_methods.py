"""Every method in the registry, on every kind of model it can run on."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
import torch
from tests import tiny
from tests.models.fingerprint import fingerprint
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline.methods.multi_target import multi_target, multi_target_cost
from sightline.models.passes import counting
from sightline.recipe import parse, parts, text
from sightline.registry import METHODS, OPERATORS, spec_of

FAST = {
    "ig": "ig(steps=3)",
    "guided_ig": "guided_ig(steps=3)",
    "blur_ig": "blur_ig(steps=3, sigma=4.0)",
    "xrai": "xrai(steps=2, segments=('grid', 4), radius=1)",
    "idgi": "idgi(steps=3)",
    "gradient_shap": "gradient_shap(samples=3)",
    "deep_lift_shap": "deep_lift_shap(samples=2)",
    "smooth_grad": "smooth_grad(samples=3)",
    "iia": "iia(steps=2)",
    "iia2": "iia2(steps=2)",
    "iia3": "iia3(steps=2)",
    "img": "img(steps=2)",
    "act": "act(steps=2)",
    "tis": "tis(samples=8)",
    "rise": "rise(samples=20)",
    "hsic": "hsic(samples=24, cells=4)",
    "sobol": "sobol(samples=4, cells=2)",
    "craft": "craft(components=2, samples=4)",
    "conductance": "conductance(steps=3)",
    "internal_influence": "internal_influence(steps=3)",
    "iba": "iba(steps=2, samples=2)",
    "m2ib": "m2ib(steps=2)",
    "pami": "pami(segments=(('grid', 4),), samples=2)",
    "extremal_perturbation": "extremal_perturbation(steps=3, stride=8, sigma=8)",
    "lime": "lime(samples=20, segments=('grid', 3))",
    "kernel_shap": "kernel_shap(samples=20, segments=('grid', 3))",
    "partition_shap": "partition_shap(samples=20)",
    "shapley_sampling": "shapley_sampling(samples=2, segments=('grid', 3))",
    "feature_ablation": "feature_ablation(segments=('grid', 3))",
    "occlusion": "occlusion(window=0.5, stride=0.25)",
    "ss_cam": "ss_cam(samples=2)",
    "is_cam": "is_cam(samples=2)",
    "gscore_cam": "gscore_cam(channels=3)",
    "smooth_grad_cam_pp": "smooth_grad_cam_pp(samples=3)",
    "bi_attn": "bi_attn(steps=3)",
    "tam": "tam(steps=3)",
    "t_attn": "t_attn(steps=3)",
    "att_ig": "att_ig(steps=3)",
    "att_cam": "att_cam(variant='mda')",  # the positive part of a random model's map may well be empty
}
COMPOSED = [
    "plus(ixg)",
    "skip_plus(gae)",
    "skip_plus(decompx)",
    "decompx(form='forward', start=2)",
    "plus(globenc)",
    "rectify(grad_cam)",
    "smooth(ixg, samples=2)",
    "smooth(ixg, samples=3, stat='variance')",
    "against(ixg, other=2)",
    "finer_cam(grad_cam)",
    "refine_cam(grad_cam, layer=(-2, -1))",
    "finer_cam(ixg, variant='weighted', references=2)",
    "forgrad(gradient(at='pixels'), sigma=3.0)",
    "libra(ixg)",
    "libra(ixg(at='pixels'), gamma=(0.25, 0.05))",
    "plus(libra(full_grad))",
    "libra(full_grad_plus)",
    "full_grad_plus(gae)",
    "caap(frozen=True, blank='mean')",
    "mda(seed=None, cells=2, steps=3)",
    "mda(seed=ixg, cells=2, steps=3, search='exact')",
    "var(caap, classes='top1', at='grid')",
    "var(ixg)",
    "var(ixg, classes='top1', at='grid', preset='recommended')",
]
MODELS = {
    "vit": tiny.vit,
    "vit-pooled": lambda: tiny.vit(global_pool="avg", class_token=False),
    "vit-registers": lambda: tiny.vit(reg_tokens=2, init_values=0.5, qk_norm=True),
    "cnn": lambda: tiny.Cnn().eval(),
    "function": lambda: lambda images: images.mean(dim=-1)[:, :, :2].flatten(1).double(),
}


def recipes() -> list[str]:
    return [FAST.get(name, name) for name in METHODS] + COMPOSED


def fit() -> list[Any]:
    """Every recipe on every model that offers what it needs."""
    found = []
    for model in MODELS:
        adapter = sightline.adapt(build(model))
        for recipe in recipes():
            layered = recipe.startswith(("plus", "skip_plus", "libra(full_grad_plus", "full_grad_plus"))
            layered |= recipe.startswith("iia(") and model == "function"  # integrates over inner layers by default
            if sightline.METHODS and _offered(recipe, adapter) and not (layered and adapter.kind != "transformer"):
                found.append(pytest.param(recipe, model, id=f"{recipe}-{model}"))
    return found


def _offered(recipe: str, adapter: sightline.Adapter) -> bool:
    try:
        sightline.api.check_needs(parse(recipe), adapter)
    except sightline.errors.UnsupportedModel:
        return False
    return True


def build(name: str) -> Any:
    model = MODELS[name]()
    return model.double() if isinstance(model, nn.Module) else model


@pytest.fixture
def batch() -> Tensor:
    return torch.randn(3, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


TARGETS = (1, 0, 3)


@pytest.mark.parametrize(("recipe", "model"), fit())
def test_gives_finite_signed_unscaled_maps_of_the_right_shape(recipe: str, model: str, batch: Tensor) -> None:
    got = sightline.explain(build(model), batch, recipe, target=TARGETS)
    assert got.values.shape == (len(got.values), 3, got.grid.height, got.grid.width)
    assert got.map is not None
    assert torch.equal(got.map, got.values[0])
    assert got.pixels().shape == (3, 32, 32)
    assert torch.isfinite(got.values).all()
    assert got.values.dtype == torch.float64
    assert not got.values.requires_grad
    assert not torch.equal(got.map, tiny.min_max(got.map))


@pytest.mark.parametrize(("recipe", "model"), fit())
def test_gives_the_same_answer_twice(recipe: str, model: str, batch: Tensor) -> None:
    first = sightline.explain(build(model), batch, recipe, target=TARGETS).values
    assert torch.equal(first, sightline.explain(build(model), batch, recipe, target=TARGETS).values)


@pytest.mark.parametrize(("recipe", "model"), fit())
def test_a_batch_equals_its_images_one_by_one(recipe: str, model: str, batch: Tensor) -> None:
    network = build(model)
    together = sightline.explain(network, batch, recipe, target=TARGETS).values
    for row, target in enumerate(TARGETS):
        alone = sightline.explain(network, batch[row : row + 1], recipe, target=target).values
        assert_close(together[:, row], alone[:, 0], rtol=1e-9, atol=1e-12)
    assert_close(sightline.explain(network, batch, recipe, target=TARGETS, batch_size=2).values, together)


@contextmanager
def exploding(model: nn.Module) -> Iterator[None]:
    """Make the model raise in its middle."""
    inner = model.blocks[1].mlp if hasattr(model, "blocks") else model.norm2  # type: ignore[index,union-attr]

    def explode(*_: Any) -> None:
        raise ZeroDivisionError("boom")

    handle = inner.register_forward_hook(explode)
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize(("recipe", "model"), [p for p in fit() if "function" not in p.id])
def test_leaves_the_model_as_it_was(recipe: str, model: str, batch: Tensor) -> None:
    network = build(model)
    logits, before = network(batch), fingerprint(network)
    sightline.explain(network, batch, recipe, target=TARGETS)
    assert fingerprint(network) == before
    if METHODS[recipe.split("(")[0]].family != "chance" if recipe.split("(")[0] in METHODS else True:
        with pytest.raises(ZeroDivisionError), exploding(network):
            sightline.explain(network, batch, recipe, target=TARGETS)
    assert fingerprint(network) == before
    assert torch.equal(network(batch), logits)


@pytest.mark.parametrize(("recipe", "model"), fit())
def test_costs_what_it_declares(recipe: str, model: str, batch: Tensor) -> None:
    adapter, method = sightline.adapt(build(model)), parse(recipe)
    with torch.no_grad(), counting() as meter:
        method(adapter, batch, sightline.Logit(TARGETS))
    spent_as_declared(recipe, meter.passes, method.cost(adapter) * len(batch))


def spent_as_declared(recipe: str, spent: sightline.Passes, declared: sightline.Passes) -> None:
    """Compare; a method whose search ends when it ends declares the most it can cost."""
    bounded = any(spec_of(part).cost.startswith("at most") for part in parts(parse(recipe)))
    for got, want in ((spent.forward, declared.forward), (spent.backward, declared.backward)):
        assert got == pytest.approx(want, abs=1e-6) or (bounded and 0 < got < want)


@pytest.mark.parametrize(("recipe", "model"), fit())
def test_several_targets_at_once_are_the_same_as_one_by_one_and_cost_no_more(
    recipe: str, model: str, batch: Tensor
) -> None:
    adapter, method = sightline.adapt(build(model)), parse(recipe)
    targets = [sightline.Logit(TARGETS), sightline.Logit((0, 1, 2))]
    with torch.no_grad(), counting() as meter:
        together = multi_target(method, adapter, batch, targets)
    spent_as_declared(recipe, meter.passes, multi_target_cost(method, adapter, 2) * len(batch))
    with torch.no_grad(), counting() as apart:
        for target, got in zip(targets, together, strict=True):
            assert_close(got.values, method(adapter, batch, target).values, rtol=1e-9, atol=1e-12)
    assert meter.passes.forward <= apart.passes.forward + 1e-9
    assert meter.passes.backward <= apart.passes.backward + 1e-9


@pytest.mark.parametrize("recipe", recipes())
def test_is_frozen_hashable_picklable_and_rebuilt_from_its_text(recipe: str) -> None:
    method = parse(recipe)
    assert parse(text(method)) == method
    assert text(parse(text(method))) == text(method)
    assert hash(method) == hash(parse(recipe))
    assert pickle.loads(pickle.dumps(method)) == method
    for field in fields(method):  # type: ignore[arg-type]
        with pytest.raises(FrozenInstanceError):
            setattr(method, field.name, None)


@pytest.mark.parametrize("name", [*METHODS, *OPERATORS])
def test_is_documented(name: str) -> None:
    spec = METHODS[name] if name in METHODS else OPERATORS[name]
    assert spec.summary.endswith(".")
    assert len(spec.summary) < 120
    assert spec.cost
    assert spec.family
    assert ".. math::" in spec.doc or spec.family == "chance"
    for field in fields(spec.build):  # type: ignore[arg-type]
        assert field.name == "method" or f"{field.name}:" in spec.doc, f"{name} does not say what {field.name} is"
    if spec.kind == "method":
        assert spec.parity


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].agnostic])
def test_class_agnostic_methods_ignore_the_class(name: str, tiny_vit: nn.Module, batch: Tensor) -> None:
    one, other = (sightline.explain(tiny_vit, batch, name, target=target).values for target in (0, 4))
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    "name", [name for name, spec in METHODS.items() if not spec.agnostic and "language" not in spec.needs]
)
def test_other_methods_follow_the_class(name: str, tiny_vit: nn.Module, tiny_cnn: nn.Module, batch: Tensor) -> None:
    recipe, model = FAST.get(name, name), tiny_cnn if "cuts" in METHODS[name].needs else tiny_vit
    one, other = (sightline.explain(model, batch, recipe, target=target).values for target in (0, 4))
    assert not torch.allclose(one, other)
