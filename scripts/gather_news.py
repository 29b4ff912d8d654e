"""Gather the news fragments into CHANGELOG.md for a release, and remove them.

    python scripts/gather_news.py 0.2.0 2026-05-01

The section of the version is made, or completed where CHANGELOG.md already has one that is "unreleased".
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
KINDS = ("added", "changed", "fixed", "removed")
NAME = re.compile(rf"(?P<change>[a-z0-9-]+)\.(?P<kind>{'|'.join(KINDS)})\.md")


def gathered(changelog: str, fragments: Mapping[str, str], version: str, date: str) -> str:
    """Return the changelog with the fragments, file name to text, under the version."""
    parts = []
    for kind in KINDS:
        texts = [" ".join(fragments[name].split()) for name in sorted(fragments) if name.endswith(f".{kind}.md")]
        if texts:
            parts += [f"### {kind.capitalize()}", "", *(f"* {text}" for text in texts), ""]
    news = "\n".join(parts)
    heading, waiting = f"## {version} – {date}\n", f"## {version} – unreleased\n"
    before, first, after = changelog.partition("\n## ")
    if waiting not in changelog:
        return f"{before}\n{heading}\n{news}{first}{after}"
    before, _, after = changelog.partition(waiting)
    section, following, rest = after.partition("\n## ")
    return f"{before}{heading}{section.rstrip()}\n\n{news}{following}{rest}"


def main() -> None:
    """Rewrite CHANGELOG.md and empty the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version")
    parser.add_argument("date")
    options = parser.parse_args()
    paths = [path for path in (ROOT / "news").iterdir() if NAME.fullmatch(path.name)]
    changelog = ROOT / "CHANGELOG.md"
    texts = {path.name: path.read_text(encoding="utf-8") for path in paths}
    changelog.write_text(gathered(changelog.read_text(encoding="utf-8"), texts, options.version, options.date))
    for path in paths:
        path.unlink()


if __name__ == "__main__":
    main()
