"""What the repository promises on its front page is there: verbs, extras, the check before landing."""

import ast
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from sightline.extras import EXTRAS as TABLE
from sightline.extras import extra_of

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
WORKFLOWS = ROOT / ".github" / "workflows"
MODULES = {"pillow": "PIL", "open-clip-torch": "open_clip", "scikit-image": "skimage"}  # imported by another name


def packages_required(text: str) -> set[str]:
    """Return the packages named in ``require("package.module")``."""
    return {
        node.args[0].value.partition(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "require"
        if isinstance(node.args[0], ast.Constant)
    }


def packages(requirements: list[str]) -> set[str]:
    """Return the names of requirements without their versions."""
    return {re.split(r"[<>=~! \[]", requirement)[0] for requirement in requirements}


def yaml_of(path: Path) -> dict:
    return pytest.importorskip("yaml").safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("verb", ["setup", "demo", "check", "test", "test-all", "coverage", "docs", "bench", "clean"])
def test_make_knows_the_verb(verb):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{verb}:", makefile, flags=re.MULTILINE)


def test_what_lands_was_checked_and_tested():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text(encoding="utf-8").splitlines()[-1] == "make check test docs"


@pytest.mark.parametrize("extra", TABLE)
def test_the_table_of_extras_is_that_of_pip(extra):
    assert set(TABLE[extra].values()) == packages(EXTRAS[extra])


def test_every_package_that_is_required_has_its_extra():
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    required = set().union(*map(packages_required, sources))
    assert {"timm", "pyarrow", "skimage"} <= required
    assert [package for package in sorted(required) if extra_of(package) is None] == []


def test_the_examples_in_docstrings_are_tests():
    if shutil.which("make") is None:
        pytest.skip("needs make")
    for verb in ("test", "test-all", "coverage"):
        run = subprocess.run(["make", "-n", verb], cwd=ROOT, capture_output=True, text=True, check=True)
        assert "--doctest-modules src/sightline tests" in run.stdout


def test_a_core_dependency_is_one_that_is_imported():
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    imported = set(re.findall(r"^\s*(?:from|import) (\w+)", sources, flags=re.MULTILINE)) | packages_required(sources)
    assert {name for name in packages(PROJECT["dependencies"]) if MODULES.get(name, name) not in imported} == set()


def test_doctor_and_the_documentation_name_the_extras_that_are_there():
    assert {*EXTRAS} - {*TABLE} == {"dev", "docs", "peers", "copyleft"}
    table = (ROOT / "docs" / "installation.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE)
    assert {name.strip("`") for row in named for name in row.split(", ")} == {*EXTRAS}


def test_every_optional_package_is_installed_for_the_tests():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (installed,) = re.findall(r"^EXTRAS\s*\?= (\S+)$", makefile, flags=re.MULTILINE)
    # gradio, of `space`, would hold back Pillow for everything else
    assert {*EXTRAS} - {*installed.split(",")} == {"peers", "docs", "space"}


def test_the_search_for_packages_finds_one():
    assert packages_required("def f():\n    return require('timm.layers').PatchEmbed") == {"timm"}


def test_no_copyleft_package_is_needed_to_run():
    groups = {**EXTRAS, "core": PROJECT["dependencies"]}
    copyleft = re.compile(r"(zennit|quantus|quadprog|qpsolvers)\b", flags=re.IGNORECASE)
    assert {name for name, packages in groups.items() if any(map(copyleft.match, packages))} == {"copyleft", "peers"}


@pytest.mark.parametrize(
    "path", sorted([*ROOT.glob(".github/**/*.yml"), ROOT / ".pre-commit-config.yaml"]), ids=lambda path: path.name
)
def test_settings_for_other_programs_can_be_read(path):
    assert isinstance(yaml_of(path), dict)


def test_every_python_that_is_named_is_tested_on_both_systems():
    matrix = yaml_of(WORKFLOWS / "ci.yml")["jobs"]["test"]["strategy"]["matrix"]
    named = {line.split(" :: ")[-1] for line in PROJECT["classifiers"] if " :: Python :: 3." in line}
    assert {*matrix["python"]} == named
    assert matrix["os"] == ["ubuntu-latest", "macos-latest"]


def test_workflows_and_hooks_call_what_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    steps = [
        step for path in WORKFLOWS.glob("*.yml") for job in yaml_of(path)["jobs"].values() for step in job["steps"]
    ]
    verbs = {verb for step in steps for verb in re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))}
    assert {"check", "coverage", "docs"} <= verbs
    assert all(re.search(rf"^{verb}:", makefile, flags=re.MULTILINE) for verb in verbs)
    (local,) = yaml_of(ROOT / ".pre-commit-config.yaml")["repos"]
    assert {hook["entry"].split()[0] for hook in local["hooks"]} == {".venv/bin/ruff", ".venv/bin/mypy"}


def test_a_release_is_published_without_a_password():
    workflow = yaml_of(WORKFLOWS / "release.yml")
    publish = workflow["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert any(step.get("uses", "").startswith("pypa/gh-action-pypi-publish@") for step in publish["steps"])
    assert "secrets." not in (WORKFLOWS / "release.yml").read_text(encoding="utf-8")
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML reads the key `on` as true


@pytest.mark.parametrize("name", ["bug", "method", "question"])
def test_an_issue_form_asks_for_something(name):
    form = yaml_of(ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml")
    fields = [field for field in form["body"] if field.get("validations", {}).get("required")]
    assert form["name"]
    assert form["description"]
    assert fields
    assert len({field["id"] for field in form["body"]}) == len(form["body"])


def test_the_conda_recipe_needs_what_the_package_needs():
    recipe = yaml_of(ROOT / "packaging" / "conda" / "recipe.yaml")
    names = {"pytorch": "torch"}  # where the two indexes differ
    needed = {tuple(line.split()) for line in recipe["requirements"]["run"]}
    asked = {re.match(r"([a-z0-9-]+)(>=.+)", line).groups() for line in PROJECT["dependencies"]}
    assert {(names.get(name, name), least) for name, least in needed} == asked | {
        ("python", PROJECT["requires-python"])
    }
    assert recipe["package"] == {"name": PROJECT["name"], "version": PROJECT["version"]}
    assert recipe["build"]["python"]["entry_points"] == [
        f"{name} = {place}" for name, place in PROJECT["scripts"].items()
    ]
    assert recipe["about"]["license"] == PROJECT["license"]
