"""Registries: one decorator, discovery, plugins."""

from __future__ import annotations

import importlib.metadata
import sys
from dataclasses import dataclass, fields
from types import ModuleType, UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

import pytest

from sightline import METHODS, METRICS, OPERATORS, registry
from sightline.errors import RecipeError, RegistryError
from sightline.recipe import parse
from sightline.registry import Registry, Spec, spec_of
from sightline.types import Method


def test_finds_what_the_rooms_hold() -> None:
    first = {
        "random",
        "centre",
        "sobel",
        "input_norm",
        "gradient",
        "ixg",
        "ig",
        "smooth_grad",
        "grad_cam",
        "raw_attention",
    }
    assert first | {"rollout", "gae"} <= set(METHODS)
    assert {"plus", "skip_plus", "layers", "rectify", "absolute", "smooth", "against"} <= set(OPERATORS)
    assert {"insertion", "deletion", "ins_del"} <= set(METRICS)
    assert list(METHODS) == sorted(METHODS)
    assert len(METHODS) == len(list(METHODS))


def test_a_spec_says_family_cite_cost_needs_and_direction() -> None:
    spec = METHODS["gae"]
    assert (spec.family, spec.cite, spec.needs) == ("attention", "chefer2021generic", {"attention", "gradient"})
    assert spec.cost == "1 forward, 1 backward"
    assert METRICS["deletion"].direction == "lower"
    assert spec_of(spec.build()) is spec


@pytest.fixture
def empty() -> Registry:
    found = Registry("method", "methods")
    found._walked = True
    return found


@dataclass(frozen=True)
class Mine:
    """Mine."""


@dataclass(frozen=True)
class Yours:
    """Yours."""


def test_a_name_registered_twice_names_both_modules(empty: Registry) -> None:
    empty.register("mine", family="x")(Mine)
    with pytest.raises(RegistryError, match=r"'mine' is registered twice, by .*test_registry and by .*test_registry"):
        empty.register("mine", family="x")(Yours)


def test_faulty_registrations_are_refused(empty: Registry) -> None:
    with pytest.raises(RegistryError, match="must be a frozen dataclass"):
        empty.register("thing", family="x")(type("Thing", (), {}))
    with pytest.raises(RegistryError, match="got the name 'My-Method'"):
        empty.register("My-Method", family="x")
    with pytest.raises(RegistryError, match=r"needs \['magic'\], which no model offers"):
        empty.register("mine", family="x", needs=("magic",))
    with pytest.raises(RegistryError, match="direction='up'"):
        empty.register("mine", family="x", direction="up")


def test_something_unregistered_has_no_spec() -> None:
    with pytest.raises(RegistryError, match="object is not registered"):
        spec_of(object())


def test_outside_packages_join_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = ModuleType("their_plugin")
    loaded: list[str] = []
    plugin.__getattr__ = lambda name: loaded.append(name)  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "their_plugin", plugin)
    point = importlib.metadata.EntryPoint("theirs", "their_plugin:enter", "sightline.plugins")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == "sightline.plugins" else [])
    monkeypatch.setattr(registry, "_plugins_loaded", False)
    registry.load_plugins()
    registry.load_plugins()
    assert loaded == ["enter"]


EVERY = [names[name] for names in (METHODS, OPERATORS, METRICS) for name in names]


@pytest.mark.parametrize("spec", EVERY, ids=lambda spec: spec.name)
def test_a_word_that_an_option_does_not_know_is_refused_however_it_is_built(spec: Spec) -> None:
    inside = {field.name: parse("ixg") for field in fields(spec.build) if field.name == "method"}
    hints = get_type_hints(spec.build, localns={"Method": Method})
    for field in fields(spec.build):
        hint = hints[field.name]
        one_of = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if Literal in map(get_origin, one_of) and str not in one_of:
            with pytest.raises(RecipeError, match=f"{field.name}='no such word'; choose from "):
                spec.build(**inside, **{field.name: "no such word"})
