"""Recipes: text in, methods out, and back; never code."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline import parse
from sightline.errors import RecipeError
from sightline.methods.gradient.gradient import InputTimesGradient
from sightline.methods.path.ig import IntegratedGradients
from sightline.operators.against import Against
from sightline.operators.layers import SkipPlus
from sightline.recipe import options, parse_metric, parts, text
from sightline.registry import METHODS, OPERATORS


def test_nested_text_becomes_nested_methods() -> None:
    assert parse("skip_plus(against(ixg, other=3), start=1)") == SkipPlus(Against(InputTimesGradient(), 3), start=1)


def test_canonical_text_names_only_what_differs() -> None:
    assert text(parse(" ig( steps = 50 , rule='right') ")) == "ig(rule='right')"
    assert text(parse("skip_plus( method=ixg(at=None), start=None )")) == "skip_plus(ixg)"
    assert text(parse("against(ixg, 3)")) == "against(ixg, other=3)"


methods = st.sampled_from(["ixg", "gae", "rollout(start=1)", "ig(steps=3, rule='trapezoid')", "grad_cam(layer='a.b')"])
recipes = st.recursive(
    methods,
    lambda inner: st.one_of(
        inner.map("plus({})".format),
        inner.map("absolute({})".format),
        st.tuples(inner, st.integers(0, 9)).map(lambda p: f"against({p[0]}, other={p[1]})"),
        st.tuples(inner, st.floats(0, 5), st.integers(1, 9)).map(
            lambda p: f"smooth({p[0]}, samples={p[2]}, noise={p[1]!r})"
        ),
    ),
    max_leaves=5,
)


@given(recipes)
def test_round_trip_is_exact(recipe: str) -> None:
    method = parse(recipe)
    assert parse(text(method)) == method
    assert text(parse(text(method))) == text(method)
    assert hash(parse(text(method))) == hash(method)


@pytest.mark.parametrize(("recipe", "message"), [
    ("ixgg", "there is no method called 'ixgg'; did you mean 'ixg'?"),
    ("skipplus(ixg)", "did you mean 'skip_plus'?"),
    ("ig(step=3)", "there is no option called 'step' in ig; it has steps, rule, blank, at"),
    ("random(sed=3)", "there is no option called 'sed' in random; it has seed"),
    ("ig(steps='many')", "ig got steps='many'; input should be a valid integer"),
    ("ig(steps=2.5)", "ig got steps=2.5; input should be a valid integer"),
    ("ig(at='space')", "ig got at='space'; choose from pixels, tokens"),
    ("plus", "plus needs method, for instance plus(ixg)"),
    ("against(ixg)", "against needs other, for instance against(ixg, other=0)"),
    ("plus(3)", "plus got 3 where a method belongs"),
    ("plus('ixg')", "plus got 'ixg' where a method belongs"),
    ("ig(steps=ixg)", "ig got the method 'ixg' for the option steps; give a literal"),
    ("plus(ixg, ixg)", "plus takes 1 settings, got 2"),
    ("plus(ixg, method=ixg)", "plus got method twice"),
    ("ig(steps=3, steps=4)", "ig got steps twice"),
    ("ig(**{'steps': 3})", "write the options out"),
    ("ixg(", "cannot read 'ixg(' as a recipe"),
    ("", "got '' as a recipe"),
    ("   ", "as a recipe; write a name"),
    ("ixg; gae", "cannot read 'ixg; gae' as a recipe"),
    ("random(seed={1: 2})", "options are numbers, texts, True, False, None or tuples"),
    ("plus(" * 3000 + "ixg" + ")" * 3000, "at most 10000 are read"),
    ("plus(" * 1500 + "ixg" + ")" * 1500, "cannot read"),
])  # fmt: skip
def test_mistakes_are_answered_in_one_sentence(recipe: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse(recipe)
    assert message in str(caught.value)


@pytest.mark.parametrize("code", [
    "__import__('os').system('true')", "ixg.__class__", "(lambda: ixg)()", "[m for m in (ixg,)]",
    "open('x')", "ixg or gae",
    "random(seed=1+1)", "random(seed=(lambda: 3)())", "eval('1')", "f'{ixg}'", "random(seed=int('3'))",
    "plus(ixg)(gae)", "ixg[0]",
])  # fmt: skip
def test_python_code_is_refused(code: str) -> None:
    with pytest.raises(RecipeError):
        parse(code)


@given(st.text(max_size=60))
def test_any_text_is_a_recipe_or_a_recipe_error(garbage: str) -> None:
    try:
        method = parse(garbage)
    except RecipeError:
        return
    assert parse(text(method)) == method


def test_lists_become_tuples_so_that_methods_stay_hashable() -> None:
    assert parse_metric("ins_del(fill=['blur', 'black'])").fill == ("blur", "black")


def test_metrics_are_read_like_methods() -> None:
    assert text(parse_metric("insertion(step=448)")) == "insertion(step=448)"
    with pytest.raises(RecipeError, match="there is no metric called 'insertoin'; did you mean 'insertion'"):
        parse_metric("insertoin")
    with pytest.raises(RecipeError, match=r"cannot read 'insertion\.x' as a metric"):
        parse_metric("insertion.x")


@pytest.mark.parametrize(("recipe", "canonical"), [
    ("mda", "mda"),
    ("mda(seed=bi_attn)", "mda"),
    ("mda(None)", "mda(seed=None)"),
    ("mda(gae, 0.5)", "mda(seed=gae, gamma=0.5)"),
    ("mda(seed=bi_attn(steps=3))", "mda(seed=bi_attn(steps=3))"),
])  # fmt: skip
def test_a_method_that_is_the_default_is_not_written(recipe: str, canonical: str) -> None:
    assert text(parse(recipe)) == canonical
    assert parse(canonical) == parse(recipe)


def test_parts_lists_every_method_inside() -> None:
    assert [text(part) for part in parts(parse("plus(smooth(ig(steps=2), samples=3))"))] == [
        "plus(smooth(ig(steps=2), samples=3))", "smooth(ig(steps=2), samples=3)", "ig(steps=2)",
    ]  # fmt: skip


def test_options_are_listed_with_their_defaults() -> None:
    assert options(METHODS["ig"]) == {"steps": "50", "rule": "'gauss_legendre'", "blank": "'zero'", "at": "'pixels'"}
    assert options(OPERATORS["skip_plus"]) == {"method": "required", "start": "None"}
    assert IntegratedGradients().steps == 50
