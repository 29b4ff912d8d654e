"""Every page passes axe, the checker of the accessibility guidelines, at every width and in both colour schemes."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from tests.report import invented
from tests.report.conftest import lacking

import sightline
from sightline.data.shapes import Shapes
from sightline.report.benchmark.page import write_benchmark


@pytest.fixture(scope="module")
def checker() -> str:
    try:
        return resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
    except ModuleNotFoundError:
        lacking("axe-playwright-python")
        raise


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Write one page of each kind; return their addresses."""
    folder: Path = tmp_path_factory.mktemp("pages")
    write_benchmark(invented.page(invented.rows(images=9)), folder / "benchmark")
    model = sightline.load("bundled/shapes-cnn")
    images = model.normalise(Shapes(seed=1).draw(2).images)
    sightline.rank(model, images, ["grad_cam", "random"]).save(folder / "ranking.html")
    sightline.sanity(model, images, ["grad_cam", "sobel"]).save(folder / "sanity.html")
    sightline.compare([model], images[:1], ["grad_cam", "ixg"]).save(folder / "comparison.html")
    files = {path.stem: path for path in folder.glob("*.html")} | {"benchmark": folder / "benchmark" / "index.html"}
    return {name: path.as_uri() for name, path in files.items()}


@pytest.mark.parametrize("name", ["ranking", "sanity", "comparison", "benchmark"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_axe_finds_nothing(browser, checker, pages, name, scheme, width):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.goto(pages[name])
    page.locator("details").evaluate_all("all => all.forEach((details) => { details.open = true })")
    page.evaluate(checker)
    assert page.evaluate("document.documentElement.scrollWidth") <= width  # what is wider scrolls by itself
    tabs = page.get_by_role("tab").all()
    for tab in tabs or [None]:
        if tab is not None:
            tab.click()
        assert _violations(page) == []
    context.close()


def _violations(page: Any) -> list[str]:
    """Return what axe finds, a line for each element."""
    found = page.evaluate("async () => (await axe.run()).violations")
    return [f"{rule['id']}: {node['target']} {node['failureSummary']}" for rule in found for node in rule["nodes"]]
