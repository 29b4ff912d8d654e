"""The examples that are scripts become notebooks, and these run cell by cell."""

from __future__ import annotations

import ast
import json
import sys
from typing import Any

import pytest
from tests.architecture import pages

from sightline.registry import METHODS

sys.path.insert(0, str(pages.ROOT / "scripts"))
import documentation_notebooks

PRINTED = {
    "activation_patching": "caap(radius=0): ",
    "clip_and_text": "('red triangle', 'blue circle', 'empty table')",
    "contrast_two_classes": "torch.Size(",
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


def run_cell(code: str, names: dict[str, Any]) -> str:
    """Run a cell as a notebook does: what its last expression is worth shows itself, as HTML where it can."""
    *rest, last = ast.parse(code).body
    if not isinstance(last, ast.Expr):
        rest, shown = [*rest, last], None
    else:
        shown = ast.Expression(last.value)
    exec(compile(ast.Module(rest, []), "cell", "exec"), names)
    value = None if shown is None else eval(compile(shown, "cell", "eval"), names)
    return value._repr_html_() if hasattr(value, "_repr_html_") else ""


def test_every_example_is_listed_here():
    assert {path.stem for path in documentation_notebooks.EXAMPLES} == {*PRINTED}


@pytest.mark.usefixtures("_methods_as_before")
@pytest.mark.parametrize("name", PRINTED)
def test_the_notebook_of_an_example_runs(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    script = (pages.ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    cells = json.loads(json.dumps(documentation_notebooks.notebook(script)))["cells"]
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = [run_cell(cell["source"], names) for cell in cells if cell["cell_type"] == "code"]
    printed = capsys.readouterr().out
    assert printed.strip()
    assert PRINTED[name] in printed
    assert "data:image/" in "".join(shown) or name in ("activation_patching", "small_benchmark")
    assert list(tmp_path.iterdir()) == []


def test_examples_become_notebooks(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    paths = documentation_notebooks.write(tmp_path)
    assert len(paths) == len(PRINTED)
    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert notebook.cells[0].source.startswith("# ")
        assert "sightline" in "".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
