"""The notebook runs from top to bottom in a kernel of this interpreter, and shows pictures without a network."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "first_look.ipynb"
SOURCE = re.compile(r"""src=["']([^"']*)["']""")


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


RUN = """
import sys
import nbformat
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

source, executed, folder = sys.argv[1:]
manager = KernelManager()
manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
notebook = nbformat.read(source, as_version=4)
NotebookClient(notebook, km=manager, timeout=240, resources={"metadata": {"path": folder}}).execute()
nbformat.write(notebook, executed)
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run the notebook once, in an empty folder; return the HTML that each cell shows, by its last line.

    Another process drives the kernel: nbclient leaves sockets and event loops open behind it, and warnings are errors.
    """
    for package in ("nbclient", "ipykernel", "nbformat"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"could not import {package!r}")
    top = tmp_path_factory.mktemp("notebook")
    (folder := top / "empty").mkdir()
    program = [sys.executable, "-c", RUN, str(NOTEBOOK), str(top / "executed.ipynb"), str(folder)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    assert list(folder.iterdir()) == []
    cells = [cell for cell in read(top / "executed.ipynb")["cells"] if cell["cell_type"] == "code"]
    return {"".join(cell["source"]).splitlines()[-1]: html_of(cell) for cell in cells}


def html_of(cell: dict[str, Any]) -> str:
    return "".join("".join(output.get("data", {}).get("text/html", "")) for output in cell["outputs"])


def pictures(html: str) -> list[Image.Image]:
    """Return the pictures of an output, which must be inside it."""
    sources = SOURCE.findall(html)
    assert all(source.startswith("data:image/") for source in sources)
    return [Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))) for source in sources]


def colours(picture: Image.Image) -> int:
    return len(picture.convert("RGB").getcolors(1 << 24) or [])


def test_an_attribution_shows_its_overlays(outputs):
    html = outputs["attribution"]
    assert len(pictures(html)) == 2
    assert all(colours(picture) > 100 for picture in pictures(html))
    assert "plus(libra(ixg))" in html


def test_a_ranking_shows_its_panel_with_the_verdict(outputs):
    (line,) = (line for line in outputs if line == "ranking")
    html = outputs[line]
    assert len(pictures(html)) == 7  # the image, and the map of each of six recipes
    assert "measured on this very image" in html
    for recipe in ("plus(libra(ixg))", "gae", "rollout", "grad_cam", "sobel", "random"):
        assert recipe in html


def test_a_check_shows_a_strip_for_each_method(outputs):
    html = outputs["check"]
    assert len(pictures(html)) == 2
    assert all(picture.width > 2 * picture.height for picture in pictures(html))
    assert "passes" in html
    assert "fails" in html


def test_a_comparison_shows_a_picture_and_a_frame_a_table(outputs):
    (compared,) = (html for line, html in outputs.items() if line.startswith("sightline.compare"))
    (frame,) = (html for line, html in outputs.items() if line.startswith("ranking.to_pandas"))
    assert len(pictures(compared)) == 1
    assert frame.count("<tr") == 7


def test_nothing_is_fetched_from_anywhere(outputs):
    shown = "".join(outputs.values())
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", shown)
    assert "<script src" not in shown
    assert "<link" not in shown


def test_the_file_holds_no_outputs_and_no_path_of_a_machine():
    notebook = read(NOTEBOOK)
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in notebook["cells"])
    assert not re.search(r"/(home|root|Users|work|tmp)/", NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
