"""Any words on the command line end in an exit code, and in a sentence where they are refused."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import strategies as st
from tests.fuzz.cases import CASES, try_all
from tests.fuzz.test_recipes import ANYTHING, DATASETS, NAMES
from typer.testing import CliRunner

from sightline.cli.main import app
from sightline.errors import SightlineError
from sightline.recipe import parse

OPTIONS = ("--json", "--bibtex", "--family", "--help", "--method", "--model", "--limit", "--debug", "--", "-m", "--out")
WORDS = st.one_of(NAMES, ANYTHING, DATASETS, st.sampled_from(OPTIONS), st.integers().map(str))
LOOKUPS = st.tuples(st.sampled_from(["cite", "card", "list", "report", "nothing", ""]), st.lists(WORDS, max_size=3))


def check(words: list[str]) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code in (0, 1, 2)
    assert "this is unexpected" not in done.stderr
    assert done.exit_code == 0 or "error: " in done.stderr


@CASES
def test_any_words_end_in_an_exit_code(cases: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    try_all(cases, LOOKUPS, lambda words: check([words[0], *words[1]]))


def check_explain(recipe: str) -> None:
    """Explain with a recipe that is refused; one that is not would run for a while."""
    with suppress(SightlineError):
        parse(recipe)
        return
    check(["explain", "missing.png", "--model", "bundled/shapes-vit", f"--method={recipe}"])


@CASES
def test_any_recipe_on_the_command_line_ends_in_an_exit_code(cases: int) -> None:
    try_all(cases, ANYTHING, check_explain)
