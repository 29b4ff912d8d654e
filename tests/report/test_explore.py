"""The notebook widget: it holds what the ranking holds, runs in a kernel, and is drawn without a network."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.report.conftest import browser  # noqa: F401 - a fixture

import sightline
from sightline.data.shapes import Shapes
from sightline.report.explore import widget_module, widget_style

RECIPES = ["ixg", "grad_cam", "centre"]


@pytest.fixture(scope="module")
def ranking() -> sightline.Ranking:
    model = sightline.load("bundled/shapes-segmenter")
    return sightline.rank(model, model.normalise(Shapes(seed=11).draw(1).images), RECIPES)


@pytest.fixture(scope="module")
def widget(ranking) -> Any:
    return ranking.explore()


def test_the_widget_holds_what_the_ranking_holds(ranking, widget):
    image = ranking[0]
    maps = np.frombuffer(widget.maps, "<f4").reshape(len(image.maps), 64, 64)
    for values, scored in zip(maps, image.maps, strict=True):
        np.testing.assert_array_equal(values, scored.map.astype("<f4"))
    assert np.frombuffer(widget.region, np.uint8).reshape(64, 64).astype(bool).tolist() == image.region.tolist()
    assert (np.frombuffer(widget.seen, np.uint8).reshape(64, 64, 3) == image.inputs["seen"]).all()
    assert widget.facts["headline"] == image.verdict.headline
    assert [each["recipe"] for each in widget.facts["maps"]] == [each.recipe for each in image.maps]


def test_the_module_is_the_page_s_own_scripts_and_names_no_other_host():
    module = widget_module().replace("http://www.w3.org/2000/svg", "")
    assert "export default { render }" in module
    assert "import " not in module.replace("important ", "")
    assert "fetch(" not in module
    assert "://" not in module + widget_style()


OPEN = """async ({ module, facts, style, arrays }) => {
  const bytes = (text) => new DataView(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
  const held = { facts, style };
  for (const [name, text] of Object.entries(arrays)) held[name] = bytes(text);
  const { default: widget } = await import(URL.createObjectURL(new Blob([module], { type: "text/javascript" })));
  widget.render({ model: { get: (name) => held[name] }, el: document.getElementById("cell") });
}"""
PIXELS = """() => { const canvas = document.getElementById("cell").shadowRoot.querySelector("canvas.large");
  return [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data]; }"""


def test_the_widget_is_drawn_and_scrubbed_in_a_browser(browser, ranking, widget):  # noqa: F811
    page = browser.new_page(viewport={"width": 400, "height": 800})
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: problems.append(request.url) if request.url.startswith("http") else None)
    page.set_content('<div id="cell"></div><button id="theirs">Run</button>')
    names = ("seen", "insertion", "deletion", "maps", "region")
    arrays = {name: base64.b64encode(getattr(widget, name)).decode() for name in names}
    page.evaluate(OPEN, {"module": widget._esm, "facts": widget.facts, "style": widget.style, "arrays": arrays})
    assert page.locator("ol.maps code").all_inner_texts() == [each.recipe for each in ranking[0].maps]
    assert page.locator("tbody tr").count() == len(RECIPES)
    map_alone = page.evaluate(PIXELS)
    page.locator("select").nth(2).select_option("deletion")
    page.locator("input[type=range]").nth(1).fill("14")
    curve = ranking[0].maps[0].curves["deletion"]
    assert page.locator("fieldset output").inner_text().endswith(f"is {curve[14]:.3f}")
    assert page.evaluate(PIXELS) != map_alone
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert page.evaluate("getComputedStyle(document.getElementById('theirs')).borderRadius") != "8px"
    page.close()
    assert problems == []


RUN = """
import sys
import nbformat
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

code = '''import sightline
from sightline.data.shapes import Shapes
model = sightline.load("bundled/shapes-cnn")
sightline.rank(model, model.normalise(Shapes(seed=1).draw(1).images), ["grad_cam"], step=1024).explore()'''
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
manager = KernelManager()
manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
NotebookClient(notebook, km=manager, timeout=240).execute()
nbformat.write(notebook, sys.argv[1])
"""


def test_the_widget_shows_itself_in_a_notebook(tmp_path: Path):
    executed = tmp_path / "executed.ipynb"
    done = subprocess.run([sys.executable, "-c", RUN, str(executed)], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "application/vnd.jupyter.widget-view+json" in executed.read_text("utf-8")
