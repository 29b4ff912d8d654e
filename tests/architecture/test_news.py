"""News fragments have a kind and say something short, and a release gathers them into the changelog."""

from __future__ import annotations

import re
import sys

import pytest
from tests.architecture import pages

sys.path.insert(0, str(pages.ROOT / "scripts"))
import gather_news

FRAGMENTS = sorted(path for path in (pages.ROOT / "news").iterdir() if path.name != "README.md")
VERSION = re.compile(r"^## (\S+) – (unreleased|20\d\d-\d\d-\d\d)$", flags=re.MULTILINE)
BEFORE = "# Changelog\n\nText.\n\n## 0.1.0 – unreleased\n\n* a\n"
NEWS = {"b-b.fixed.md": "It works\nnow.\n", "a-a.added.md": "New.\n", "c.added.md": "Newer.\n"}
GATHERED = "### Added\n\n* New.\n* Newer.\n\n### Fixed\n\n* It works now.\n"


@pytest.mark.parametrize("path", FRAGMENTS, ids=lambda path: path.name)
def test_a_fragment_has_a_kind_and_is_a_few_sentences(path):
    assert gather_news.NAME.fullmatch(path.name)
    text = path.read_text(encoding="utf-8").strip()
    assert text.endswith(".")
    assert 20 < len(text) < 500


def test_the_kinds_are_those_that_the_page_explains():
    assert re.findall(r"^\| `(\w+)` \|", pages.read("news/README.md"), flags=re.MULTILINE) == [*gather_news.KINDS]


def test_every_section_of_the_changelog_has_a_version_and_a_date():
    changelog = pages.read("CHANGELOG.md")
    assert len(VERSION.findall(changelog)) == changelog.count("\n## ")


def test_a_release_completes_what_waits():
    assert gather_news.gathered(BEFORE, NEWS, "0.1.0", "2026-05-01") == (
        f"# Changelog\n\nText.\n\n## 0.1.0 – 2026-05-01\n\n* a\n\n{GATHERED}"
    )


def test_a_release_after_another_comes_first():
    released = BEFORE.replace("unreleased", "2026-05-01")
    assert gather_news.gathered(released, NEWS, "0.2.0", "2026-06-01") == (
        f"# Changelog\n\nText.\n\n## 0.2.0 – 2026-06-01\n\n{GATHERED}\n## 0.1.0 – 2026-05-01\n\n* a\n"
    )
