"""What the repository promises on its front page is there: verbs, extras, the check before landing."""

import ast
import os
import re
import tomllib
from pathlib import Path

import pytest

from sightline.extras import EXTRAS, extra_of

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def packages_required(text: str) -> set[str]:
    """Return the packages named in ``require("package.module")``."""
    return {
        node.args[0].value.partition(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "require"
        if isinstance(node.args[0], ast.Constant)
    }


def distributions(requirements: list[str]) -> set[str]:
    """Return the names of requirements, without their versions."""
    return {re.split(r"[<>=!~;\[ ]", requirement)[0] for requirement in requirements}


@pytest.mark.parametrize("verb", ["setup", "demo", "check", "test", "test-all", "docs", "bench", "clean"])
def test_make_knows_the_verb(verb):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{verb}:", makefile, flags=re.MULTILINE)


def test_what_lands_was_checked_and_tested():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text(encoding="utf-8").splitlines()[-1] == "make check test"


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_table_of_extras_is_that_of_pip(extra):
    assert set(EXTRAS[extra].values()) == distributions(PROJECT["optional-dependencies"][extra])


def test_every_package_that_is_required_has_its_extra():
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    required = set().union(*map(packages_required, sources))
    assert {"timm", "pyarrow", "skimage"} <= required
    assert [package for package in sorted(required) if extra_of(package) is None] == []


def test_the_search_for_packages_finds_one():
    assert packages_required("def f():\n    return require('timm.layers').PatchEmbed") == {"timm"}


def test_no_copyleft_package_is_needed_to_run():
    groups = {**PROJECT["optional-dependencies"], "core": PROJECT["dependencies"]}
    copyleft = re.compile(r"(zennit|quantus|quadprog|qpsolvers)\b", flags=re.IGNORECASE)
    assert {name for name, packages in groups.items() if any(map(copyleft.match, packages))} == {"copyleft", "peers"}
