"""Registries: one decorator, discovery, plugins."""

from __future__ import annotations

import contextlib
import importlib.metadata
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import ModuleType, UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

import pytest

from sightline import METHODS, METRICS, OPERATORS, registry
from sightline.catalogue.options import missing_options
from sightline.data.dataset import DATASETS, open_dataset
from sightline.errors import InputError, RecipeError, RegistryError
from sightline.recipe import parse, parse_metric
from sightline.registry import BaseSpec, HasOptions, Registry, _spec, spec_of
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
    registry = Registry("method", "sightline.methods", _spec)
    registry._walked = True
    return registry


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
        empty.register("mine", family="x", needs=("magic",))(Mine)
    with pytest.raises(RegistryError, match="direction='up'"):
        empty.register("mine", family="x", direction="up")(Mine)


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


EVERY = [registry[name] for registry in (METHODS, OPERATORS, METRICS, DATASETS) for name in registry]


def inner(spec: BaseSpec) -> dict[str, object]:
    """Return values for the options of a name that have no default."""
    values = {"method": parse("ixg"), "other": 0, "root": Path("somewhere"), "of": None}
    return {name: values[name] for name in missing_options(spec.build, ())}


def word_options(spec: BaseSpec) -> list[str]:
    """Return the options of a name that are one of a few words."""
    hints = get_type_hints(spec.build, localns={"Method": Method})
    names = []
    for field in fields(spec.build):
        hint = hints[field.name]
        one_of = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if Literal in map(get_origin, one_of) and str not in one_of:
            names.append(field.name)
    return names


@pytest.mark.parametrize("spec", [s for s in EVERY if word_options(s)], ids=lambda spec: spec.name)
def test_a_word_that_an_option_does_not_know_is_refused_however_it_is_built(spec: BaseSpec) -> None:
    for option in word_options(spec):
        sentence = f"^{spec.name} got {option}='no such word'; choose from "
        with pytest.raises(RecipeError, match=sentence):
            spec.build(**inner(spec) | {option: "no such word"})
        # a data set may refuse its other options by now, for instance a folder that does not exist
        with contextlib.suppress(InputError):
            built = spec.build(**inner(spec))
            with pytest.raises(RecipeError, match=sentence):
                replace(built, **{option: "no such word"})


@pytest.mark.parametrize("spec", [s for s in EVERY if word_options(s)], ids=lambda spec: spec.name)
def test_a_recipe_says_the_same_of_a_word_that_is_unknown(spec: BaseSpec, tmp_path: Path) -> None:
    option = word_options(spec)[0]
    required = {"method": "ixg", "other": "0", "root": repr(str(tmp_path)), "of": "shapes(count=4)"}
    given = [f"{name}={required[name]}" for name in missing_options(spec.build, ())]
    recipe = f"{spec.name}({', '.join([*given, option])}='no such word')"
    read = {"metric": parse_metric, "dataset": open_dataset}.get(getattr(spec, "kind", "dataset"), parse)
    with pytest.raises(RecipeError, match=f"^{spec.name} got {option}='no such word'; choose from "):
        read(recipe)


def test_words_inside_a_tuple_are_checked_too() -> None:
    with pytest.raises(RecipeError, match=r"^ins_del got fill=\('blur', 'grey'\); choose from zero, blur, black"):
        METRICS["ins_del"].build(fill=("blur", "grey"))


@pytest.mark.parametrize("bases", [(), (HasOptions,)])
def test_a_class_from_outside_checks_its_words_whatever_it_derives_from(
    empty: Registry, bases: tuple[type, ...]
) -> None:
    fields = {"__annotations__": {"variant": Literal["a", "b"]}, "variant": "a"}
    mine = dataclass(frozen=True)(type("Outside", bases, fields))
    empty.register("mine", family="x")(mine)
    assert mine("b").variant == "b"
    with pytest.raises(RecipeError, match=r"^mine got variant='c'; choose from a, b$"):
        mine("c")


def test_data_sets_are_registered_like_methods() -> None:
    assert isinstance(DATASETS, Registry)
    with pytest.raises(RecipeError, match="there is no dataset called 'shaps'; did you mean 'shapes'"):
        DATASETS["shaps"]
    with pytest.raises(RegistryError, match=r"Mine must be a Source to be registered as dataset mine"):
        DATASETS.register("mine", family="x")(Mine)
