"""Fixtures of the command line: images on disk, and a way to type a command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from sightline.cli import console
from sightline.cli.main import app
from sightline.data.shapes import Shapes

Type = Callable[..., Any]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty folder, without anyone's settings, on a terminal that is wide enough."""
    home = tmp_path / "here"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.delenv("SIGHTLINE_MODEL", raising=False)
    monkeypatch.setattr(console.out, "width", console.WIDE)


@pytest.fixture
def sightline() -> Type:
    """Type a command: ``sightline("explain", "a.png")`` gives exit_code, stdout and stderr."""

    def run(*words: object) -> Any:
        return CliRunner().invoke(app, [str(word) for word in words])

    return run


@pytest.fixture
def opened() -> Callable[[object], Image.Image]:
    """Read a picture and close its file."""

    def read(path: object) -> Image.Image:
        with Image.open(str(path)) as picture:
            picture.load()
            return picture

    return read


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder with two images of `shapes`."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for index in range(2):
        Image.fromarray(Shapes(seed=5)[index].image).save(folder / f"{'ab'[index]}.png")
    return folder
