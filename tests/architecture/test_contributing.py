"""CONTRIBUTING teaches what the code does: its examples run, and every name and path on the page exists."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests import tiny
from tests.architecture import pages
from tests.models.fingerprint import fingerprint
from torch.testing import assert_close

import sightline
from sightline.data.dataset import DATASETS, open_dataset
from sightline.methods.multi_target import MultiTarget, multi_target
from sightline.metrics.case import Case
from sightline.models.passes import counting
from sightline.registry import METHODS, METRICS, OPERATORS

PAGE = "CONTRIBUTING.md"
KNOWN = {"model": sightline.Adapter, "case": Case}  # the words that stand for an object in the text
ELSEWHERE = {".ci/run", "../shared", ".venv", "coverage.xml", "docs/_build/html", ".venv/bin/ruff"}


def example(start: str) -> str:
    """Return the Python example that defines a class."""
    (code,) = (code for code in pages.blocks(PAGE, "python") if f"class {start}" in code)
    return code


@pytest.fixture
def learned(tmp_path) -> Iterator[Any]:
    """Import an example as a module, and forget what it registered afterwards."""
    before = [(registry, set(registry)) for registry in (METHODS, OPERATORS, METRICS, DATASETS)]
    modules = []

    def learn(start: str) -> ModuleType:
        path = tmp_path / f"documented_{start.lower()}.py"
        path.write_text(example(start))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        modules.append(path.stem)
        spec.loader.exec_module(module)
        return module

    yield learn
    for registry, names in before:
        for name in set(registry) - names:
            del registry._specs[name]
    for name in modules:
        del sys.modules[name]


# ---- the examples --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [tiny.vit, lambda: tiny.Cnn().eval()], ids=["vit", "cnn"])
def test_the_method_does_what_a_method_must(learned, build, images):
    method = learned("SquaredGradient").SquaredGradient()
    model = build().double()
    before = fingerprint(model)
    attribution = sightline.explain(model, images, "squared_gradient", target=[1, 3])
    alone = sightline.explain(model, images[1:], "squared_gradient", target=3)
    assert_close(attribution.map[1:], alone.map)
    pixels = images.clone().requires_grad_()
    logits = model(pixels)
    (gradient,) = torch.autograd.grad(logits[0, 1] + logits[1, 3], pixels)
    assert_close(attribution.map, gradient.square().sum(dim=1))
    assert fingerprint(model) == before
    assert sightline.parse(attribution.recipe) == method
    assert sightline.parse("squared_gradient(power=4)").power == 4


def test_the_method_costs_what_it_declares(learned, images):
    method = learned("SquaredGradient").SquaredGradient()
    adapter = sightline.adapt(tiny.Cnn().eval().double())
    targets = [sightline.Logit(0), sightline.Logit(1)]
    with counting() as meter:
        several = multi_target(method, adapter, images, targets)
    assert meter.passes == method.multi_target_cost(adapter, 2) * len(images)
    assert_close(several[1].values, method(adapter, images, targets[1]).values)
    assert method.cost(adapter) == method.multi_target_cost(adapter, 1)


def test_the_operator_keeps_its_law_and_the_layers(learned, images):
    learned("SignedSquare")
    model = tiny.vit().double()
    inner = sightline.explain(model, images, "ixg", target=1)
    squared = sightline.explain(model, images, "signed_square(ixg)", target=1)
    assert_close(squared.values, inner.values * inner.values.abs())
    assert squared.values.shape == inner.values.shape
    sightline.explain(model, images, "plus(signed_square(ixg))", target=1)


def test_the_metric_gives_a_number_that_can_be_written_down(learned, images):
    learned("PeakShare")
    maps = torch.zeros(2, 32, 32)
    maps[0, 0, :4] = torch.tensor([3.0, -1.0, 0.0, 0.0])
    model = tiny.Cnn().eval().double()
    scores = sightline.evaluate(model, images, maps, "peak_share", target=0)
    assert scores["peak_share"][0] == 0.75
    assert scores["peak_share"][1].isnan()
    assert "zero map" in scores.flags["peak_share"][1]
    assert scores.passes == sightline.types.Passes()


def test_the_data_set_opens(learned, tmp_path):
    learned("InFolders")
    for name in ("cat/1", "dog/1", "dog/2"):
        path = tmp_path / "photographs" / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(path)
    opened = open_dataset(f"in_folders(root={str(tmp_path / 'photographs')!r}, limit=3)")
    assert opened.ids == ("cat/1", "dog/1", "dog/2")
    assert [sample.label for sample in opened] == [0, 1, 1]


def test_the_column_is_computed(learned):
    row_type = learned("RowWithMedian").RowWithMedian
    columns = importlib.import_module("sightline.bench.tables.columns")
    assert columns.shown_columns(row_type)["median"].heading == "median"
    median = columns.columns_of(row_type)["median"]
    assert median.of(SimpleNamespace(values=np.array([1.0, 2.0, 6.0]))) == 2.0


def test_the_target_follows_its_images(learned, images):
    target = learned("AheadOfMean").AheadOfMean((0, 3))
    model = tiny.Cnn().eval().double()
    logits = torch.tensor([[3.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 5.0]])
    assert_close(target(logits), torch.tensor([2.25, 3.5]))
    both = sightline.explain(model, images, "ixg", target=target)
    second = sightline.explain(model, images[1:], "ixg", target=target.take([1]))
    assert_close(both.map[1:], second.map)


def test_most_methods_are_written_as_the_page_teaches():
    built = [spec.build for spec in METHODS.values()]
    assert sum(issubclass(build, MultiTarget) for build in built) > len(built) / 2


def test_every_how_to_ends_in_a_test():
    sections = re.split(r"^## Add ", pages.read(PAGE), flags=re.MULTILINE)[1:]
    names = ["a method", "an operator", "a metric", "a model family", "a data set", "a command"]
    names += ["a column to the table", "a target"]
    assert [section.partition("\n")[0] for section in sections] == names
    for section in sections:
        assert re.search(r"\*\*It is\s+done\s+when [^*]*`tests/", section), section.partition("\n")[0]


# ---- names and paths -----------------------------------------------------------------------------------------------


def quoted(text: str) -> list[str]:
    """Return what stands in backquotes, the examples left out."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


@cache
def words_of_the_code() -> set[str]:
    files = [*pages.ROOT.glob("src/**/*.py"), *pages.ROOT.glob("tests/**/*.py")]
    files += [pages.ROOT / name for name in ("Makefile", "pyproject.toml")]
    page = pages.ROOT / "tests" / "architecture" / "test_contributing.py"
    return {word for path in files if path != page for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}


def is_there(name: str) -> bool:
    """Tell whether a path, a dotted name or a word exists."""
    if name in ELSEWHERE:
        return True
    if re.fullmatch(r"[\w./-]*(/|\.(py|md|toml|txt|bib|yaml))[\w./-]*", name):
        tops = (pages.ROOT, pages.ROOT / "src", pages.ROOT / "src" / "sightline")
        return any((top / name).exists() for top in tops)
    if re.fullmatch(r"\w+(\.\w+)+", name):
        first, *rest = name.split(".")
        owner = KNOWN.get(first) or importlib.import_module(first)
        try:
            for part in rest:
                owner = getattr(owner, part)
        except AttributeError:
            return False
        return True
    return re.match(r"\w*", name)[0] in words_of_the_code()


def unknown(text: str) -> list[str]:
    plain = r"(make |ruff |mypy$|UV_|--|\.venv/bin/)"  # commands, which other tests look at
    names = [re.sub(r"^python (\S+).*", r"\1", name) for name in quoted(text)]
    return [name for name in names if not re.match(plain, name) and not is_there(name)]


def test_every_name_and_path_exists():
    assert len(quoted(pages.read(PAGE))) > 80
    assert unknown(pages.read(PAGE)) == []


def test_the_rooms_on_the_page_are_those_of_the_code():
    house = pages.read(PAGE).split("## The house")[1].split("```")[1]
    source = pages.ROOT / "src" / "sightline"
    rooms = {path.name for path in source.iterdir() if (path / "__init__.py").exists()}
    assert set(re.findall(r"^  (\w+)/", house, flags=re.MULTILINE)) == rooms
    for line in re.findall(r"^  (\w+/.*)$", house, flags=re.MULTILINE):
        room, *families = re.findall(r"(\w+)/", line)
        folders = {path.name for path in (source / room).iterdir() if path.is_dir() and path.name != "__pycache__"}
        assert set(families) | {"weights"} >= folders, room
        assert set(families) <= folders, room


@pytest.mark.parametrize(
    "text",
    [
        "`models/no_such_file.py`",
        "`model.no_such_question`",
        "`sightline.seeds.no_such_function`",
        "`NoSuchClassAtAll`",
        "`python scripts/no_such_script.py`",
    ],
)
def test_a_planted_fault_is_found(text):
    assert len(unknown(text)) == 1
