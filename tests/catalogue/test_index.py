"""The index says what the registries say, and loads next to nothing."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from sightline import METHODS, METRICS, OPERATORS
from sightline.catalogue.index import entries, find
from sightline.catalogue.model_ids import KNOWN
from sightline.data.dataset import DATASETS, options_of
from sightline.errors import RecipeError
from sightline.models.zoo.ids import BUNDLED, TASK_MODELS

REGISTRIES = {"method": METHODS, "operator": OPERATORS, "metric": METRICS}
SOURCE = Path(__file__).parents[1] / "src"
COMMANDS = (
    ["cite", "gae"],
    ["cite", "plus(libra(ixg))", "insertion"],
    ["list", "methods"],
    ["list", "operators"],
    ["list", "metrics"],
    ["list", "datasets"],
    ["list", "models"],
)


@pytest.mark.parametrize("kind", REGISTRIES)
def test_the_index_holds_what_the_registry_holds(kind: str) -> None:
    index, registry = entries(kind), REGISTRIES[kind]
    assert list(index) == list(registry)
    for name, spec in registry.items():
        entry = index[name]
        same = ("name", "kind", "family", "cite", "cost", "needs", "direction", "agnostic", "summary")
        assert {fact: getattr(entry, fact) for fact in same} == {fact: getattr(spec, fact) for fact in same}


def test_the_index_holds_what_is_known_of_data_sets() -> None:
    index = entries("dataset")
    assert list(index) == list(DATASETS)
    for name, spec in DATASETS.items():
        entry = index[name]
        same = ("name", "family", "cite", "layout", "filters", "summary")
        assert {fact: getattr(entry, fact) for fact in same} == {fact: getattr(spec, fact) for fact in same}
        assert entry.protocols == tuple(spec.protocols)
        assert list(entry.options.items()) == list(options_of(spec).items())


def test_the_bundled_models_are_among_the_ids() -> None:
    assert KNOWN["bundled"] == (*BUNDLED, *TASK_MODELS)


def test_a_name_of_any_kind_is_found() -> None:
    assert [find(name).kind for name in ("gae", "plus", "insertion", "coco")] == [
        "method",
        "operator",
        "metric",
        "dataset",
    ]
    with pytest.raises(RecipeError, match="there is no method called 'gea'; did you mean 'gae'"):
        find("gea")


def run(code: str, *paths: Path) -> tuple[str, float]:
    """Run code in a fresh interpreter; return what it printed and the processor time it took."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (SOURCE, *paths)))}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def typed(words: list[str]) -> str:
    """Return code that types a command and prints which heavy packages it loaded."""
    return (
        "import sys\nfrom sightline.cli.main import app\n"
        f"try:\n    app({words!r})\nexcept SystemExit as done:\n    assert not done.code\n"
        "print('LOADED', [name for name in ('torch', 'numpy', 'PIL', 'timm') if name in sys.modules])"
    )


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_looking_things_up_loads_no_torch(words: list[str]) -> None:
    printed, _ = run(typed(words))
    assert printed.splitlines()[-1] == "LOADED []"
    assert len(printed.splitlines()) > 2


def test_citing_takes_less_than_a_second_and_importing_less_than_four_tenths() -> None:
    # the best of three, so that a machine under load does not count as ours
    assert min(run(typed(["cite", "gae"]))[1] for _ in range(3)) < 1.0
    assert min(run("import sightline")[1] for _ in range(3)) < 0.4


PLUGIN = '''
from dataclasses import dataclass
from sightline.registry import METHODS

@METHODS.register("from_outside", family="theirs", cite="petsiuk2018")
@dataclass(frozen=True)
class Theirs:
    """A method of another package."""
'''


def test_what_plugins_register_is_listed_and_cited(tmp_path: Path) -> None:
    (tmp_path / "their_package.py").write_text(PLUGIN)
    facts = tmp_path / "theirs-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[sightline.plugins]\ntheirs = their_package\n")
    listed, _ = run(typed(["list", "methods", "--json"]), tmp_path)
    assert "from_outside" in listed
    assert "A method of another package." in listed
    assert '"gae"' in listed
    cited, _ = run(typed(["cite", "plus(from_outside)"]), tmp_path)
    assert "[petsiuk2018]" in cited
    ours, _ = run(f"{typed(['cite', 'gae'])}\nprint('their_package' in sys.modules)", tmp_path)
    assert ours.splitlines()[-1] == "False"
