"""Any TOML file is a plan or is refused in a sentence, in Python and on the command line."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from tests.fuzz.cases import CASES, try_all
from tests.fuzz.test_recipes import ANYTHING, DATASETS
from typer.testing import CliRunner

from sightline.bench.plan import Plan, make_plan, read_plan
from sightline.cli.main import app
from sightline.errors import SightlineError

PLANS = [path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parents[2].glob("plans/*.toml"))]
VALUES = st.recursive(
    st.one_of(
        ANYTHING,
        DATASETS,
        st.integers(),
        st.floats(),
        st.booleans(),
        st.none(),
        st.sampled_from([2**63, 10**400, math.nan, "bundled/shapes-vit", "ixg", "insertion", "file:", "py:os:system"]),
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.just("name"), inner, max_size=3)
    ),
    max_leaves=5,
)
SETTINGS = st.dictionaries(st.sampled_from([*Plan.model_fields, "x"]), VALUES, max_size=6)
SOUND = {"models": ["bundled/shapes-vit"], "dataset": "shapes(count=4)", "methods": ["ixg"], "metrics": ["insertion"]}
LINES = st.sampled_from(
    ["[", "]]", "=", "a = 1", "[a.b]", "a.b.c = 1", '"""', "'" * 3, "\0", "\ufeff", "seed = " + "9" * 5000]
)


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """Drop, repeat and replace lines and letters of one of the plans."""
    lines = draw(st.sampled_from(PLANS)).splitlines()
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(lines)))
        lines[place : place + draw(st.integers(0, 2))] = draw(
            st.lists(st.one_of(LINES, st.sampled_from(lines)), max_size=2)
        )
    text = "\n".join(lines)
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(text)))
        text = text[:place] + draw(st.text(max_size=3)) + text[place + draw(st.integers(0, 3)) :]
    return text


def check_text(path: Path, text: str | bytes) -> None:
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    with suppress(SightlineError):
        assert isinstance(read_plan(path), Plan)


def check_settings(settings: dict[str, Any]) -> None:
    for changed in (settings, {**SOUND, **settings}):
        with suppress(SightlineError):
            make_plan(changed).expanded()


@CASES
def test_any_file_is_a_plan_or_is_refused(cases: int, tmp_path: Path) -> None:
    try_all(cases, st.one_of(mutated(), st.text(), st.binary()), lambda text: check_text(tmp_path / "plan.toml", text))


@CASES
def test_any_settings_are_a_plan_or_are_refused(cases: int) -> None:
    try_all(cases, SETTINGS, check_settings)


@pytest.mark.parametrize("text", ["a = " + "[" * 10_000, "a = " + "{a=" * 3000, "[" + "a." * 3000 + "a]", "a" * 10**6])
def test_deep_nesting_in_a_plan_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(SightlineError):
        read_plan(path)


def check_command(path: Path, settings: dict[str, Any]) -> None:
    """Run a plan that is refused: the exit code is 1 or 2, and a sentence says why."""
    path.write_text("\n".join(f"{key} = {json.dumps(value, default=str)}" for key, value in settings.items()))
    try:
        read_plan(path)
    except SightlineError:
        done = CliRunner().invoke(app, ["bench", "run", str(path), "--store", str(path.parent / "store")])
        assert done.exit_code in (1, 2)
        assert done.stderr.startswith("error: ")
        assert "this is unexpected" not in done.stderr


@CASES
def test_a_plan_that_is_refused_ends_in_an_exit_code(cases: int, tmp_path: Path) -> None:
    try_all(cases, SETTINGS, lambda settings: check_command(tmp_path / "plan.toml", settings))
