"""Digests of source: another code, another key; the same code, the same key on every machine."""

import importlib
import sys
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace

import pandas as pd
import pytest
from tests.bench.test_run import Listening

from sightline.bench import run as running
from sightline.bench import source_digest
from sightline.bench.run import resume, run
from sightline.bench.source_digest import digest_sources
from sightline.bench.store.rows import decode
from sightline.bench.store.status import status_of
from sightline.bench.store.store import Store, read_rows
from sightline.bench.tables.table import make_table
from sightline.bench.unit import Package, Unit
from sightline.bench.worker import Worker
from sightline.errors import InputError
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, pixel_grid

METHOD = """\
from dataclasses import dataclass

from mine.helper import weigh
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, pixel_grid


@METHODS.register("mine", family="gradient", parity="none")
@dataclass(frozen=True, slots=True)
class Mine:
    '''A map of the plug-in.'''

    def __call__(self, model, images, target):
        return Attribution(weigh(images).sum(dim=1)[None], pixel_grid(images))

    def cost(self, model):
        return Passes()
"""
FIRST = "def weigh(images):\n    return images\n"
SECOND = "def weigh(images):\n    return -images.abs()  # changed\n"
SMALL = {"methods": ["mine"], "metrics": ["insertion(step=128)"], "batch": 1}


def forget():
    METHODS._specs.pop("mine", None)
    for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
        del sys.modules[name]


@pytest.fixture
def install(outside, monkeypatch):
    """Install the plug-in `mine`, or another version of it in its place, as pip would for a new process."""

    def put(helper=FIRST, version="1.0", home=outside, method=METHOD):
        forget()
        facts = home / "mine_plugin-1.dist-info"
        for folder in (facts, home / "mine"):
            folder.mkdir(parents=True, exist_ok=True)
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: mine-plugin\nVersion: {version}\n")
        (facts / "entry_points.txt").write_text("[sightline.plugins]\nmine = mine.method\n")
        for name, text in {"__init__": "", "method": method, "helper": helper}.items():
            (home / "mine" / f"{name}.py").write_bytes(text.encode())
        monkeypatch.syspath_prepend(str(home))
        importlib.import_module("mine.method")

    yield put
    forget()


def digest():
    return digest_sources(["mine"], []).recipes["mine"]


# ---- plug-ins ------------------------------------------------------------------------------------------------------


def test_a_change_anywhere_in_the_plug_in_changes_its_digest_and_no_other(install):
    install()
    first = digest_sources(["mine", "ixg", "plus(mine)"], ["insertion"])
    install(SECOND)
    second = digest_sources(["mine", "ixg", "plus(mine)"], ["insertion"])
    assert first.recipes["mine"] != second.recipes["mine"]
    assert first.recipes["plus(mine)"] != second.recipes["plus(mine)"]
    assert first.recipes["ixg"] == second.recipes["ixg"]
    assert first.metrics == second.metrics
    install(FIRST)
    assert digest_sources(["mine", "ixg", "plus(mine)"], ["insertion"]) == first


def test_the_version_of_the_package_counts_and_is_named(install):
    install(version="1.0")
    first = digest()
    (named, ours) = digest_sources(["mine"], ["insertion"]).packages
    assert (named.name, named.version, ours.name) == ("mine-plugin", "1.0", "sightline")
    install(version="1.1")
    assert digest() != first
    (again, _) = digest_sources(["mine"], ["insertion"]).packages
    assert again == replace(named, version="1.1")  # the same files under another version


def test_where_the_package_lies_and_how_its_lines_end_does_not_count(install, tmp_path):
    install()
    first = digest()
    install(FIRST.replace("\n", "\r\n"), home=tmp_path / "elsewhere", method=METHOD.replace("\n", "\r\n"))
    assert digest() == first


def test_a_run_by_other_code_uses_no_row_of_the_first_and_an_unchanged_one_uses_all(install, plan, tmp_path, rows):
    install()
    store = str(tmp_path / "s")
    assert run(plan(**SMALL, limit=2), store, workers=0).computed == 2
    assert run(plan(**SMALL, limit=2), store, workers=0).computed == 0
    old = read_rows(store)

    install(SECOND)
    listening = Listening()
    outcome = run(plan(**SMALL, limit=3), store, workers=0, callback=listening)  # the count is raised, too
    assert (outcome.before, outcome.computed) == (0, 3)
    assert listening.notes == ["the source of mine has changed since the last run; 2 of 2 units are computed again"]
    new = read_rows(store)
    assert new["recipe_source"].nunique() == 1
    assert set(new["recipe_source"]).isdisjoint(old["recipe_source"])
    assert set(new["metric_source"]) == set(old["metric_source"])
    run(plan(**SMALL, limit=3), str(tmp_path / "alone"), workers=0)
    assert rows(store) == rows(tmp_path / "alone")
    assert list(old["value"]) != list(new["value"][:2])

    install(FIRST)  # back again: its rows are still there
    assert run(plan(**SMALL, limit=3), store, workers=0).computed == 1


def test_two_codes_of_one_recipe_are_never_averaged(install, plan, tmp_path):
    install()
    run(plan(**SMALL, limit=2), str(tmp_path / "s"), workers=0)
    old = read_rows(tmp_path / "s")
    install(SECOND)
    run(plan(**SMALL), str(tmp_path / "s"), workers=0)
    new = read_rows(tmp_path / "s")
    others = new[~new["image"].isin(old["image"])]
    with pytest.raises(InputError, match="the rows of mine with tests/small come from 2 versions of its code"):
        make_table(pd.concat([old, others]))
    run(plan(name="other", methods=["ixg"], limit=1), str(tmp_path / "s"), workers=0)
    both = read_rows(tmp_path / "s", run="small")  # all rows of the earlier run, of either code
    assert len(both) == len(old) + len(new)
    with pytest.raises(InputError, match="2 versions of its code"):
        make_table(both)


def test_two_codes_of_one_metric_are_never_averaged_nor_known_with_unknown(install, plan, tmp_path):
    install()
    run(plan(**SMALL, limit=2), str(tmp_path / "s"), workers=0)
    rows = read_rows(tmp_path / "s")
    other = rows.assign(metric_source="0" * 32, image=rows["image"] + "x")
    with pytest.raises(InputError, match=r"the rows of insertion\(step=128\) with tests/small come from 2 versions"):
        make_table(pd.concat([rows, other]))
    unknown = rows.assign(recipe_source="", metric_source="", image=rows["image"] + "x")
    with pytest.raises(InputError, match="2 versions of its code"):
        make_table(pd.concat([rows, unknown]))
    five = rows[["model", "recipe", "metric", "image", "value"]]
    assert make_table(five).rows[0].count == 2


def test_that_units_are_computed_again_is_told_before_a_model_is_loaded(install, plan, tmp_path, monkeypatch):
    install()
    store = str(tmp_path / "s")
    run(plan(**SMALL | {"methods": ["mine", "sobel"]}, limit=2), store, workers=0)
    install(SECOND)
    listening = Listening()

    def refuse(*_, **__):
        raise InputError("no engine yet")

    monkeypatch.setattr(running, "open_engine", refuse)
    with pytest.raises(InputError, match="no engine yet"):
        resume(store, workers=0, callback=listening)
    assert listening.notes == ["the source of mine has changed since the last run; 2 of 4 units are computed again"]


def test_worker_processes_compute_the_keys_of_the_driver(install, plan, tmp_path):
    install()
    outcome = run(plan(**SMALL, limit=2), str(tmp_path / "s"), workers=1)
    assert (outcome.computed, outcome.complete) == (2, True)
    assert run(plan(**SMALL, limit=2), str(tmp_path / "s"), workers=0).computed == 0


def test_a_worker_with_other_code_refuses_the_unit(install, plan, tmp_path):
    install()
    run(plan(**SMALL, limit=1), str(tmp_path / "s"), workers=0)
    manifest = Store(str(tmp_path / "s")).manifest()
    (unit,) = manifest.units()
    install(SECOND)
    (flag,) = decode(Worker(manifest.config).compute(unit).rows)["flag"].to_pylist()
    assert flag.startswith("failed: the source of mine that this worker loaded")
    assert flag.endswith("install the same packages on all machines, or run the plan again")


def test_rows_manifest_status_and_table_name_the_packages(install, plan, tmp_path):
    install()
    run(plan(**SMALL, limit=1), str(tmp_path / "s"), workers=0)
    manifest = Store(str(tmp_path / "s")).manifest()
    assert [package.name for package in manifest.packages] == ["mine-plugin", "sightline"]
    assert status_of(str(tmp_path / "s")).to_json()["packages"][0]["version"] == "1.0"
    rows = read_rows(tmp_path / "s")
    assert set(rows["recipe_source"]) == {manifest.source.recipes["mine"]}
    assert set(rows["metric_source"]) == {manifest.source.metrics["insertion(step=128)"]}
    table = make_table(rows, packages=manifest.packages)
    assert table.to_json()["packages"][0] == {
        "name": "mine-plugin",
        "version": "1.0",
        "digest": manifest.packages[0].digest,
    }
    short = manifest.packages[0].digest[:12]
    assert f"Computed by mine-plugin 1.0 (source {short}), sightline" in table.to_markdown()
    assert table.to_latex().startswith(f"% Computed by mine-plugin 1.0 (source {short}), sightline")


def test_a_plug_in_whose_file_is_gone_is_told(outside):
    (outside / "faulty_plugin.py").unlink()
    with pytest.raises(InputError, match=r"the source of faulty_plugin cannot be read .*; install its package again"):
        digest_sources(["picky"], [])


def test_units_without_a_source_keep_their_key(install):
    unit = Unit("r", "m", "w", "ixg", ("a", "b"), ("i",), "d", "0", "predicted", 0, 1, "cpu", "model", (), 0, "0.1.0")
    assert "source" not in unit.to_json()
    known = replace(unit, source=("1", "2", "3"))
    assert known.key != unit.key
    assert Unit.from_json(known.to_json()) == known
    assert (known.source_of("b"), unit.source_of("b")) == (("1", "3"), ("", ""))


# ---- sightline itself ----------------------------------------------------------------------------------------------


@pytest.fixture
def house(tmp_path, monkeypatch):
    """A small sightline: its files can be changed, and its digests asked for."""
    root = tmp_path / "site" / "sightline"
    texts = {
        "__init__": "",
        "types": "class Method: pass",
        "methods/__init__": "",
        "methods/first": "from sightline.types import Method\nfrom . import shared",
        "methods/shared": "def late():\n    from sightline.models import adapter",
        "methods/second": (
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import sightline.types\n"
            "else:\n    import sightline.models.adapter"
        ),
        "models/__init__": "",
        "models/adapter": "import torch",
        "report": "import sightline.methods.first",
    }
    caches = ("_our_modules", "_our_module", "_our_text", "_our_distribution")

    def digests(**changes):
        for name, text in (texts | {key.replace("_", "/"): text for key, text in changes.items()}).items():
            path = root / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for name in caches:
            getattr(source_digest, name).cache_clear()
        return {name: source_digest._our_files([f"sightline.methods.{name}"]) for name in ("first", "second")}

    monkeypatch.setattr(source_digest, "sightline", SimpleNamespace(__path__=[str(root)], __version__="9"))
    yield digests
    monkeypatch.undo()
    for name in caches:
        getattr(source_digest, name).cache_clear()


def test_a_module_counts_with_what_it_imports_and_nothing_else(house):
    found = house()
    assert sorted(found["first"]) == [
        "sightline/methods/__init__.py",
        "sightline/methods/first.py",
        "sightline/methods/shared.py",
        "sightline/models/__init__.py",
        "sightline/models/adapter.py",
        "sightline/types.py",
    ]
    assert sorted(found["second"]) == ["sightline/methods/second.py", "sightline/models/adapter.py"]
    assert house(report="changed = True") == found
    assert house(types="changed = True")["first"] != found["first"]
    assert house(types="changed = True")["second"] == found["second"]
    assert house(models_adapter="changed = True")["second"] != found["second"]


def test_our_own_digests_are_of_files_that_exist_and_cost_little():
    files = source_digest._our_files(["sightline.methods.gradient.gradient"])
    assert {"sightline/methods/gradient/gradient.py", "sightline/types.py"} <= set(files)
    assert not [path for path in files if path.startswith(("sightline/bench", "sightline/report", "sightline/cli"))]
    (ours,) = digest_sources(["ixg"], ["insertion"]).packages
    assert ours == Package("sightline", source_digest.sightline.__version__, ours.digest)
    assert digest_sources(["ixg"], []).recipes["ixg"] != digest_sources(["plus(ixg)"], []).recipes["plus(ixg)"]


# ---- notebooks -----------------------------------------------------------------------------------------------------


def test_what_has_no_file_is_the_same_in_one_session_only(outside, monkeypatch):
    monkeypatch.setitem(sys.modules, "cell", ModuleType("cell"))

    @dataclass(frozen=True)
    class Typed:
        """A map."""

        __module__ = "cell"

        def __call__(self, model, images, target):
            return Attribution(images.sum(dim=1)[None], pixel_grid(images))

        def cost(self, model):
            return Passes()

    METHODS.register("typed", family="gradient")(Typed)
    first = digest_sources(["typed"], [])
    assert digest_sources(["typed"], []) == first
    assert first.packages[0].name == "cell"
    monkeypatch.setattr(source_digest, "SESSION", b"another session")
    source_digest._sources_of.cache_clear()
    source_digest._digest.cache_clear()
    assert digest_sources(["typed"], []).recipes != first.recipes
