"""The README and the links that a package index shows, with the addresses of the repository the package is built in.

A package index has none of the files beside the README, so links to them must be absolute there. Where the repository
lives is known to the workflow that builds a release, through the variables GitHub sets, and to nothing else: a build on
any other machine keeps the links as they stand and names no address.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from os import environ
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<path>(?!https?:|#)[^)]+)\)")


class PackagePage(MetadataHookInterface):
    """Fill in the readme and the urls that pyproject.toml declares dynamic."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Write both into the metadata of the package."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        places = addresses(environ)
        metadata["readme"] = {"content-type": "text/markdown", "text": with_absolute_links(text, places)}
        urls = self.config["urls"] if places else {}
        metadata["urls"] = {name: address.format(**places) for name, address in urls.items()}


def addresses(environment: Mapping[str, str]) -> dict[str, str]:
    """Return where the repository, its files and its pictures are; nothing where that is not known."""
    server, name = environment.get("GITHUB_SERVER_URL"), environment.get("GITHUB_REPOSITORY")
    if not server or not name:
        return {}
    repository, tag = f"{server}/{name}", environment.get("GITHUB_REF_NAME") or "main"
    files = f"{repository}/blob/{tag}"
    colab = f"https://colab.research.google.com/github/{name}/blob/{tag}" if server == "https://github.com" else files
    return {"repository": repository, "files": files, "pictures": f"{repository}/raw/{tag}", "colab": colab}


def with_absolute_links(text: str, places: Mapping[str, str]) -> str:
    """Return the text with every relative link and picture made absolute, or as it is where no address is known."""

    def absolute(link: re.Match[str]) -> str:
        base = places["pictures" if link["image"] else "colab" if link["text"] == "Open in Colab" else "files"]
        return f"{link['image']}[{link['text']}]({base}/{link['path']})"

    return LINK.sub(absolute, text) if places else text
