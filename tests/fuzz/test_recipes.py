"""Any text is a recipe, a metric or a data set, or is refused in a sentence."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import strategies as st
from tests.fuzz.cases import CASES, try_all

from sightline.catalogue.ranges import COMMON
from sightline.data import open_dataset
from sightline.errors import SightlineError
from sightline.recipe import Call, parse, parse_metric, read_call, text
from sightline.registry import METHODS, METRICS, OPERATORS

KINDS = (METHODS, OPERATORS, METRICS)
SETS = ("shapes", "quads", "folder", "csv", "labelled", "coco", "voc", "imagenet", "imagenet_s", "pets", "mura")
NAMES = st.sampled_from([*METHODS, *OPERATORS, *METRICS, *SETS, "ixgg", "é", "None", "nan"])
OPTIONS = st.sampled_from(
    [*COMMON, "of", "root", "x", *(name for kind in KINDS for spec in kind.values() for name in vars(spec.build))]
)
NUMBERS = st.one_of(st.integers(), st.floats(), st.sampled_from([10**12, 2**63, 10**400, -1, 0, 1e308, 1e-320]))
WORDS = st.sampled_from(["top3", "top0", "slic", "grid", "half", "mean", ".", "", "\0", "~nobody", "a" * 300])
ODD = st.sampled_from(
    [
        *("9" * 5000, "1e999", "-1e999", f"0x{'f' * 300}", "1_000", "1j", "b'x'", "...", "f'{x}'", "x[0]", "'\\ud800'"),
        *("lambda: 0", "*a", "**a", f"{'(' * 300}{')' * 300}", "{1: 2}", "{1}", "-True", "not 1", "1 if 1 else 2"),
    ]
)
LITERALS = st.recursive(
    st.one_of(
        NUMBERS.map(repr), st.text(max_size=8).map(repr), WORDS.map(repr), ODD, st.sampled_from(["True", "None"])
    ),
    lambda inner: st.lists(inner, max_size=3).map(lambda items: f"({','.join([*items, ''])})" if items else "()"),
    max_leaves=4,
)


def calls(names: st.SearchStrategy[str], values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    named = st.tuples(OPTIONS, values).map("=".join)
    inside = st.tuples(st.lists(values, max_size=2), st.lists(named, max_size=3)).map(lambda both: both[0] + both[1])
    return st.builds(lambda name, parts: f"{name}({', '.join(parts)})", names, inside)


RECIPES = st.recursive(NAMES, lambda inner: calls(NAMES, st.one_of(inner, LITERALS)), max_leaves=6)
DATASETS = calls(st.sampled_from(SETS), st.one_of(LITERALS, st.just("shapes(count=8)")))


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """Cut, double and replace letters of a recipe."""
    letters = list(draw(RECIPES))
    for _ in range(draw(st.integers(0, 6))):
        place = draw(st.integers(0, len(letters)))
        other = draw(st.text(max_size=2) | st.sampled_from(list("()=,'\"[]{}*. \n\\#;:")))
        letters[place : place + draw(st.integers(0, 3))] = other
    return "".join(letters)


ANYTHING = st.one_of(RECIPES, mutated(), st.text(), st.text(alphabet="ixgplus()=,'1. ", max_size=60))


def check_recipe(recipe: str) -> None:
    for read in (parse, parse_metric):
        with suppress(SightlineError):
            built = read(recipe)
            assert read(text(built)) == built
    with suppress(SightlineError):
        assert isinstance(read_call(recipe), Call)


@CASES
def test_any_text_is_a_recipe_or_is_refused(cases: int) -> None:
    try_all(cases, ANYTHING, check_recipe)


def check_dataset(given: str) -> None:
    with suppress(SightlineError):
        dataset = open_dataset(given)
        dataset.read(dataset.ids[0])


@CASES
def test_any_text_is_a_data_set_or_is_refused(cases: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    try_all(cases, st.one_of(DATASETS, ANYTHING), check_dataset)


@pytest.mark.parametrize("depth", [1000, 3000, 10_000])
@pytest.mark.parametrize(
    "shape",
    [
        *("{open}ixg{close}", "ig(steps={open}1{close})", "{plus}ixg{close}", "{open}"),
        *("ig(steps={signs}1)", "ig(steps={squares})", "ig(steps=1{sums})", "quads({of}shapes{close})"),
    ],
)
def test_deep_nesting_is_refused_in_a_sentence(shape: str, depth: int) -> None:
    parts = {"open": "(", "close": ")", "plus": "plus(", "signs": "-", "squares": "[", "sums": "+1", "of": "quads(of="}
    recipe = shape.format(**{name: part * depth for name, part in parts.items()})
    for read in (parse, parse_metric, open_dataset):
        with pytest.raises(SightlineError):
            read(recipe)
