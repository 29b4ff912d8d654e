"""README and first steps claim only what their own code and commands show."""

from __future__ import annotations

import re

import pytest
from tests.architecture import pages

PAGES = ["README.md", "docs/first_steps.md"]
LINES = 149


@pytest.mark.parametrize("page", PAGES)
def test_its_python_runs_and_prints_what_it_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert pages.run(page) == []
    assert (tmp_path / "overlay.png").stat().st_size > 1000
    assert "<img" in (tmp_path / "ranking.html").read_text()


def test_a_comment_that_is_wrong_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\nprint(x)  # prints: 1\n```\nthen\n```python\nprint(x + 1)  # prints: 3\n```\n")
    assert pages.run(str(page)) == ["print(x + 1)  # prints: 3 printed 2"]


def test_the_front_page_shows_every_verb():
    code = "\n".join(pages.blocks("README.md", "python"))
    assert {"load", "explain", "evaluate", "rank", "sanity", "compare"} == set(re.findall(r"sightline\.(\w+)\(", code))
    assert code.count("# prints: ") == 6


def test_the_front_page_is_short():
    assert len(pages.read("README.md").splitlines()) <= LINES
    assert all(len([line for line in code.splitlines() if line]) <= 12 for code in pages.blocks("README.md", "python"))


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md"])
def test_every_make_command_is_a_target(page):
    targets = re.findall(r"^([a-z-]+):", pages.read("Makefile"), re.MULTILINE)
    assert [line for line in pages.commands(page, "make") if line.split()[1] not in targets] == []


LISTED = sorted({line for page in PAGES for line in pages.commands(page, "sightline")})


@pytest.mark.parametrize("line", LISTED)
def test_every_sightline_command_exists_with_its_options(line):
    assert pages.missing_options(line) == []


def test_an_option_that_is_not_there_is_found():
    assert pages.missing_options("sightline doctor --jason") == ["--jason"]


@pytest.mark.parametrize(
    "page", [*PAGES, "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "news/README.md", "docs/installation.md"]
)
def test_links_lead_somewhere(page):
    assert [link for link in pages.links(page) if not (pages.ROOT / link).exists()] == []
