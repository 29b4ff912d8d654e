"""The wheel holds every file the package reads, and its page on a package index has no dead link."""

from __future__ import annotations

import email
import re
import sys
import zipfile
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "sightline"


def build(monkeypatch: pytest.MonkeyPatch, folder: Path, **environment: str) -> zipfile.ZipFile:
    """Build the wheel here, with the backend itself, so that nothing is downloaded."""
    wheel = pytest.importorskip("hatchling.builders.wheel")
    for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_REF_NAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (artefact,) = wheel.WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return zipfile.ZipFile(artefact)


def metadata(wheel: zipfile.ZipFile) -> Message:
    """Read the core metadata, whose body is the description."""
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return email.message_from_string(wheel.read(name).decode("utf-8"))


def links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)]+)\)", text)


def test_the_wheel_holds_every_file_of_the_package_and_the_bibliography(monkeypatch, tmp_path):
    files = [path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    wanted = {f"sightline/{path.relative_to(SOURCE).as_posix()}" for path in files} | {"sightline/references.bib"}
    wanted |= {f"sightline/plans/{path.name}" for path in (ROOT / "plans").iterdir()}
    assert "sightline/plans/caap-table-1.toml" in wanted
    assert {"sightline/py.typed", "sightline/models/zoo/weights/shapes-vit.safetensors"} <= wanted
    names = {name for name in build(monkeypatch, tmp_path).namelist() if ".dist-info/" not in name}
    assert names == wanted


def test_the_comment_in_pyproject_names_files_that_exist():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    comment = text.split("[tool.hatch.build.targets.wheel]")[1].split("only-include")[0].replace("\n# ", " ")
    inside = re.search(r"everything inside it \(([^)]+)\)", comment)
    assert inside is not None
    for pattern in inside[1].split(", "):
        assert list(SOURCE.glob(pattern)), pattern


def test_a_release_has_links_that_work_anywhere(monkeypatch, tmp_path):
    place = {"GITHUB_SERVER_URL": "https://example.org", "GITHUB_REPOSITORY": "a/b", "GITHUB_REF_NAME": "v1"}
    page = metadata(build(monkeypatch, tmp_path, **place))
    text = page.get_payload()
    assert page["Description-Content-Type"] == "text/markdown"
    assert len(links(text)) > 3
    assert [link for link in links(text) if not link.startswith("https://")] == []
    assert "https://example.org/a/b/raw/v1/docs/overview.png" in links(text)
    assert "https://example.org/a/b/blob/v1/CONTRIBUTING.md" in links(text)
    assert "Homepage, https://example.org/a/b" in page.get_all("Project-URL")
    assert "Changelog, https://example.org/a/b/blob/v1/CHANGELOG.md" in page.get_all("Project-URL")
    for link in (link for link in links(text) if "/v1/" in link):
        assert (ROOT / link.split("/v1/")[1]).exists(), link


def test_a_release_on_github_opens_notebooks_in_colab(monkeypatch, tmp_path):
    place = {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "a/b", "GITHUB_REF_NAME": "v1"}
    text = metadata(build(monkeypatch, tmp_path, **place)).get_payload()
    assert "https://colab.research.google.com/github/a/b/blob/v1/examples/first_look.ipynb" in links(text)


def test_a_build_elsewhere_invents_no_address(monkeypatch, tmp_path):
    page = metadata(build(monkeypatch, tmp_path))
    assert page.get_all("Project-URL") is None
    assert page.get_payload() == (ROOT / "README.md").read_text(encoding="utf-8")
