"""What the repository promises on its front page is there: verbs, extras, the check before landing."""

import ast
import os
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def extras_asked_for(text: str) -> set[str]:
    """Return the extras named in ``require(module, extra=...)``."""
    return {
        keyword.value.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") != "ConfigDict"  # which has an extra of its own
        for keyword in node.keywords
        if keyword.arg == "extra" and isinstance(keyword.value, ast.Constant)
    }


@pytest.mark.parametrize("verb", ["setup", "demo", "check", "test", "test-all", "docs", "bench", "clean"])
def test_make_knows_the_verb(verb):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{verb}:", makefile, flags=re.MULTILINE)


def test_what_lands_was_checked_and_tested():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text(encoding="utf-8").splitlines()[-1] == "make check test"


def test_a_missing_extra_is_one_that_pip_knows():
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    asked = set().union(*map(extras_asked_for, sources))
    assert asked <= set(PROJECT["optional-dependencies"])


def test_the_search_for_extras_finds_one():
    assert extras_asked_for("def f():\n    return require('timm.layers', extra='timm')") == {"timm"}


def test_no_copyleft_package_is_needed_to_run():
    groups = {**PROJECT["optional-dependencies"], "core": PROJECT["dependencies"]}
    copyleft = re.compile(r"(zennit|quantus|quadprog|qpsolvers)\b", flags=re.IGNORECASE)
    assert {name for name, packages in groups.items() if any(map(copyleft.match, packages))} == {"copyleft", "peers"}
