"""Calls as text: names, literals, other calls; never code."""

from __future__ import annotations

import pytest

from sightline.errors import RecipeError
from sightline.recipe import Call, is_call, read_call


def test_a_call_is_read_with_its_values_and_calls_inside() -> None:
    call = read_call(" quads( coco(root='a, b', limit=3), side=64, of_none=None, sizes=[1, -2.5] ) ")
    inner = Call("coco", options={"root": "a, b", "limit": 3})
    assert call == Call("quads", (inner,), {"side": 64, "of_none": None, "sizes": (1, -2.5)})
    assert list(call.names()) == ["quads", "coco"]


def test_its_text_reads_back() -> None:
    call = read_call("mda(gae, gamma=0.5, at='it''s', inner=plus(ixg()))")
    assert str(call) == "mda(gae, gamma=0.5, at='its', inner=plus(ixg))"
    assert read_call(str(call)) == call


def test_values_without_a_name_belong_to_the_options_in_order() -> None:
    assert read_call("a(1, z=3)").bind(["x", "y", "z"]) == {"x": 1, "z": 3}
    with pytest.raises(RecipeError, match=r"a takes 1 settings, got 2 in 'a\(1, 2\)'"):
        read_call("a(1, 2)").bind(["x"])
    with pytest.raises(RecipeError, match="a got x twice"):
        read_call("a(1, x=2)").bind(["x"])


@pytest.mark.parametrize(("text", "called"), [
    ("a", True), ("a()", True), ("a(1 + 1)", True), ("a.b", False), ("a/b", False), ("a(", False), ("a(1)(2)", False),
    ("", False), ("'a'", False),
])  # fmt: skip
def test_what_is_a_call(text: str, called: bool) -> None:
    assert is_call(text) == called


@pytest.mark.parametrize(("text", "message"), [
    ("a(1 + 1)", "cannot read '1 + 1' in the plan 'a(1 + 1)'; it may hold names and literals only"),
    ("a(b.c)", "cannot read 'b.c' in the plan"),
    ("a(*b)", "cannot read '*b' in the plan"),
    ("a(**b)", "a got **; write the options out"),
    ("a(x=1, x=2)", "a got x twice in the plan"),
    ("a(x={1})", "got {1} in the plan"),
    ("a.b", "cannot read 'a.b' as a plan, which holds names and literals only; write this"),
    ("  ", "got '  ' as a plan; write a name, for instance this"),
    ("a" * 10_001, "got a plan of 10001 characters; at most 10000 are read"),
])  # fmt: skip
def test_what_cannot_be_read_says_why(text: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        read_call(text, "plan", "this")
    assert message in str(caught.value)
