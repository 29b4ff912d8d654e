"""The pages of the documentation that are written from the code say what the code says."""

from __future__ import annotations

import re
import sys

import pytest
from tests.architecture import pages

import sightline

sys.path.insert(0, str(pages.ROOT / "scripts"))


@pytest.mark.parametrize("page", ["methods.md", "operators.md", "metrics.md"])
def test_the_reference_is_what_the_registries_hold(page):
    import reference_tables

    written = pages.read(f"docs/reference/{page}")
    assert reference_tables.page(page) == written, "run python scripts/reference_tables.py"


def test_every_public_name_has_its_place_in_the_reference():
    named = re.findall(
        r"^\.\. (?:auto\w+|py:data):: sightline\.(\w+)", pages.read("docs/reference/api.md"), re.MULTILINE
    )
    assert sorted(named) == sorted(sightline.__all__)


def test_every_page_is_reached_from_the_first():
    index = pages.read("docs/index.md")
    trees = "\n".join(re.findall(r"```\{toctree\}\n(.*?)```", index, re.DOTALL))
    files = {path.relative_to(pages.ROOT / "docs") for path in (pages.ROOT / "docs").rglob("*.md")}
    there = {file.with_suffix("").as_posix() for file in files if "_build" not in file.parts} - {"index"}
    listed = {line for line in trees.splitlines() if line and not line.startswith(":")}
    assert {page for page in there if page not in listed and f"{page.partition('/')[0]}/*" not in listed} == set()
    assert listed - {"guide/*"} <= there
