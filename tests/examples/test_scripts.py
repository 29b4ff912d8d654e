"""The examples that are scripts become notebooks, and these run cell by cell."""

from __future__ import annotations

import json
import sys

import pytest
from tests.architecture import pages

from sightline.registry import METHODS

sys.path.insert(0, str(pages.ROOT / "scripts"))
import documentation_gallery
import documentation_notebooks

PRINTED = {
    "activation_patching": "caap(radius=0): ",
    "clip_and_text": "('red triangle', 'blue circle', 'empty table')",
    "contrast_two_classes": "torch.Size(",
    "first_map": "forward",
    "is_my_method_sane": "['sobel']",
    "new_method": "contrast_gradient",
    "small_benchmark": "layer_cam: average_precision ",
    "which_map": "",
    "your_own_cnn": "('dog',)",
}


@pytest.fixture
def _methods_as_before():
    """Forget the methods that an example registers."""
    before = set(METHODS)
    yield
    for name in set(METHODS) - before:
        del METHODS._specs[name]


def test_every_example_is_listed_here():
    assert {path.stem for path in documentation_notebooks.EXAMPLES} == {*PRINTED}


@pytest.mark.usefixtures("_methods_as_before")
@pytest.mark.parametrize("name", PRINTED)
def test_the_notebook_of_an_example_runs(name):
    script = (pages.ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    ran = documentation_gallery.run_example(script)
    printed = "\n".join(printed for _, _, printed, _ in ran)
    assert printed.strip()
    assert PRINTED[name] in printed
    shown = "".join(shown for *_, shown in ran)
    assert "data:image/" in shown or name in ("activation_patching", "small_benchmark")
    page = documentation_gallery.example_page(name, ran)
    assert page.startswith("# ")
    assert f"{name}.ipynb" in page
    assert all(text in page for _, text, _, _ in ran)


@pytest.mark.parametrize("name", PRINTED)
def test_the_notebook_beside_an_example_is_built_from_it(name):
    script = pages.ROOT / "examples" / f"{name}.py"
    built = documentation_notebooks.notebook(script.read_text(encoding="utf-8"))
    assert json.loads(script.with_suffix(".ipynb").read_text(encoding="utf-8")) == built, (
        "run `python scripts/documentation_notebooks.py examples`"
    )


def test_examples_become_notebooks(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    paths = documentation_notebooks.write(tmp_path)
    assert len(paths) == len(PRINTED)
    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert notebook.cells[0].source.startswith("# ")
        assert "sightline" in "".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
