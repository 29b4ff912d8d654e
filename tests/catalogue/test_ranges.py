"""Numbers out of range are refused by the class itself, in one sentence that names the range."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Annotated, Any

import numpy as np
import pytest

from sightline import METHODS, METRICS, OPERATORS
from sightline.catalogue.options import hints_of
from sightline.catalogue.ranges import ANY, COMMON, Range, range_of
from sightline.errors import RecipeError
from sightline.methods.path.ig import IntegratedGradients
from sightline.methods.sampling.vit_cx import CausalExplanation
from sightline.recipe import parse
from sightline.registry import Registry, _spec


@pytest.fixture
def plugin() -> Any:
    """A method from outside, with an option of a common name, one of its own, and one with a range of its own."""

    @Registry("toy", "sightline.methods", _spec).register("toy", family="chance")
    @dataclass(frozen=True)
    class Toy:
        steps: int = 3
        warmth: float = 1.0
        tau: Annotated[float | None, Range(0, 2)] = None
        pairs: tuple[int, ...] = ()

    return Toy


def refused(build: Any, **options: Any) -> str:
    with pytest.raises(RecipeError) as caught:
        build(**options)
    return str(caught.value)


def test_the_sentence_says_what_came_what_is_needed_and_what_to_do() -> None:
    said = "ig got steps=1000000000000; steps is between 1 and 10000; choose a smaller number"
    assert refused(lambda: parse("ig(steps=1000000000000)")) == said
    assert refused(IntegratedGradients, steps=10**12) == said
    assert refused(IntegratedGradients, steps=0).endswith("choose a larger number")


def test_a_number_too_long_to_print_is_refused_like_any_other() -> None:
    assert refused(IntegratedGradients, steps=10**5000).startswith("ig got steps=(a number of 16610 bits); steps is")


@pytest.mark.parametrize("value", [2.0, "3", None, True, math.nan, (3,), [3]])
def test_a_whole_number_is_a_whole_number(value: Any) -> None:
    assert refused(IntegratedGradients, steps=value).endswith("; give a whole number")


def test_numbers_of_numpy_are_numbers() -> None:
    assert IntegratedGradients(steps=np.int64(7)).steps == 7
    assert CausalExplanation(tau=np.float32(0.5)).tau == 0.5


def test_a_field_may_have_a_range_of_its_own() -> None:
    assert CausalExplanation(tau=2.0).tau == 2
    assert "tau is between 0 and 2" in refused(CausalExplanation, tau=2.5)


def test_a_class_from_outside_is_held_to_the_common_ranges(plugin: Any) -> None:
    assert plugin(steps=5, warmth=-3.5, tau=2, pairs=(1, 2)).tau == 2
    assert refused(plugin, steps=10**9).startswith("toy got steps=1000000000; steps is between 1 and")
    assert refused(plugin, tau=2.1).startswith("toy got tau=2.1; tau is between 0 and 2")
    assert refused(plugin, pairs=(1, 0.5)) == "toy got pairs=(1, 0.5); give a value of the type tuple[int, ...]"
    assert refused(plugin, tau="hot").endswith("give a number, or None")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_option_that_nobody_declares_is_finite_at_least(plugin: Any, value: float) -> None:
    assert refused(plugin, warmth=value).endswith("choose a finite number")


@pytest.mark.parametrize("kinds", [METHODS, OPERATORS, METRICS], ids=["methods", "operators", "metrics"])
def test_every_range_that_is_declared_holds_the_default(kinds: Any) -> None:
    for name in kinds:
        hints = hints_of(kinds[name].build, annotated=True)
        for field in fields(kinds[name].build):
            if isinstance(field.default, int | float) and not isinstance(field.default, bool):
                limits = range_of(field.name, hints[field.name])
                assert limits.least <= field.default <= limits.most, f"{name}({field.name}=)"


def test_no_range_is_empty_or_endless() -> None:
    for limits in (ANY, *COMMON.values()):
        assert -math.inf < limits.least < limits.most < math.inf
