"""The environment of a run: where nothing has changed and nothing is left to do, a resume loads no model."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sightline.bench import run as module
from sightline.bench import source_digest
from sightline.bench.environment import digest_environment, is_unchanged
from sightline.bench.plan import make_plan
from sightline.bench.run import Callback, resume, run
from sightline.bench.store.store import Store
from sightline.bench.unit import Manifest, Package
from sightline.models import inputs
from sightline.models.zoo.ids import WEIGHTS
from sightline.recipe import parse, parse_metric

MODULES = ["sightline.recipe"]
RESUMED = """
import sys
from sightline.bench.run import resume
outcome = resume(sys.argv[1], workers=0)
assert "torch" not in sys.modules
print(outcome.total, outcome.before, outcome.computed, outcome.complete)
print([(mean.recipe, mean.metric, mean.mean) for mean in outcome.running_means.ranked()])
"""


class Notes(Callback):
    def __init__(self):
        self.notes = []

    def note(self, sentence):
        self.notes.append(sentence)


@pytest.fixture
def weights(tmp_path):
    """A bundled model's weights in a file of one's own, which may change."""
    file = tmp_path / "own.safetensors"
    file.write_bytes((WEIGHTS / "shapes-cnn.safetensors").read_bytes())
    return file


@pytest.fixture
def finished(tmp_path):
    """The store of a run in which nothing is left to do."""
    settings = {"name": "done", "models": ["bundled/shapes-cnn"], "methods": ["ixg", "gradient", "gae"],
                "metrics": ["deletion(step=1024)", "sparseness"], "dataset": "shapes(count=4)", "batch": 2,
                "controls": False, "maps": False}  # fmt: skip
    assert run(make_plan(settings), str(tmp_path / "s"), workers=0).complete
    return str(tmp_path / "s")


@pytest.fixture
def described(monkeypatch):
    """How often models were loaded to be described."""
    calls = []
    opened = module.open_engine
    monkeypatch.setattr(
        module, "open_engine", lambda *given, **options: calls.append(given) or opened(*given, **options)
    )
    return calls


def test_a_finished_run_is_resumed_without_torch_and_says_the_same(finished):
    told = subprocess.run([sys.executable, "-c", RESUMED, finished], capture_output=True, text=True, check=True)
    store = Store(finished)
    store.write_manifest(replace(store.manifest(), environment=""))
    outcome = resume(finished, workers=0)  # as if nothing were known of the last time
    means = [(mean.recipe, mean.metric, mean.mean) for mean in outcome.running_means.ranked()]
    assert told.stdout == f"{outcome.total} {outcome.before} 0 True\n{means}\n"
    assert store.manifest().environment


def test_what_was_left_out_is_said_all_the_same(finished, described):
    listening = Notes()
    outcome = resume(finished, workers=0, callback=listening)
    assert not described
    assert [name for _, name, _ in outcome.left_out] == ["gae"]
    assert any(note.startswith("left out gae on bundled/shapes-cnn") for note in listening.notes)


def test_a_unit_that_is_missing_or_damaged_is_made_anew(finished, described):
    files = sorted(Path(finished).glob("units/*/*.parquet"))
    files[0].unlink()
    assert resume(finished, workers=0).computed == 1
    files[1].write_bytes(b"nonsense")
    assert resume(finished, workers=0).computed == 1
    assert len(described) == 2
    assert resume(finished, workers=0).computed == 0
    assert len(described) == 2


@pytest.fixture
def edit(monkeypatch):
    """Change the text of a module of sightline, as far as digests go."""
    caches = (source_digest._our_module, source_digest._sources_of, source_digest._digest)

    def change(name):
        assert name in source_digest._our_modules()
        text = source_digest._our_text
        monkeypatch.setattr(source_digest, "_our_text", lambda own: text(own) + b"#" * (own == name))
        for cache in caches:
            cache.cache_clear()

    yield change
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize(
    "name", ["models.adapter", "models.tasks.detectors", "api.prepare", "registry", "bench.worker"]
)
def test_other_code_that_decides_what_runs_on_a_model_is_noticed(finished, described, edit, name):
    edit(f"sightline.{name}")
    resume(finished, workers=0)
    assert len(described) == 1
    resume(finished, workers=0)
    assert len(described) == 1  # it is known now


@pytest.mark.parametrize(
    "name", ["cli.main", "report.benchmark.page", "bench.store.compact", "bench.stats.paired", "methods.cam.ablation"]
)
def test_code_that_takes_no_part_may_change(finished, described, edit, name):
    edit(f"sightline.{name}")
    assert resume(finished, workers=0).complete
    assert not described


@pytest.mark.parametrize("recipe", ["gradient", "sparseness"])
def test_units_of_changed_code_are_computed_again(finished, described, edit, recipe):
    edit({"gradient": parse, "sparseness": parse_metric}[recipe](recipe).__class__.__module__)
    outcome = resume(finished, workers=0)
    assert len(described) == 1
    assert outcome.computed == outcome.total or (recipe == "gradient" and outcome.computed >= outcome.total / 2)


def test_a_module_that_comes_or_goes_is_noticed(finished, monkeypatch):
    manifest, known = Store(finished).manifest(), source_digest._our_modules()
    assert is_unchanged(manifest)
    for others in ({"methods.other"}, {"models.other"}):
        more = known | {f"sightline.{name}": Path() for name in others}
        monkeypatch.setattr(source_digest, "_our_modules", lambda more=more: more)
        assert not is_unchanged(manifest)
    for gone in ("sightline.recipe", "sightline.methods.cam.ablation"):
        fewer = {name: path for name, path in known.items() if name != gone}
        monkeypatch.setattr(source_digest, "_our_modules", lambda fewer=fewer: fewer)
        assert not is_unchanged(manifest)


def test_another_version_is_noticed(finished, monkeypatch):
    monkeypatch.setattr("sightline.__version__", "9.9")
    assert not is_unchanged(Store(finished).manifest())


def test_other_weights_are_noticed(weights):
    model = [f"file:{weights}@timm/resnet18"]
    before = digest_environment(model, MODULES)
    stat = weights.stat()
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # neither size nor time says so
    assert before != digest_environment(model, MODULES) != ""
    weights.unlink()
    assert digest_environment(model, MODULES) == ""


@pytest.mark.parametrize(
    "model", ["timm/resnet18", "hf/owner/name", "py:package:function", "tests/small", "bundled/other"]
)
def test_where_weights_are_not_known_nothing_is_digested(model):
    assert digest_environment(["bundled/shapes-vit", model], MODULES) == ""


def test_what_comes_from_outside_is_always_looked_at(finished, monkeypatch, outside):
    assert digest_environment(["bundled/shapes-vit"], MODULES) == ""  # a plug-in is installed


def test_a_family_or_a_class_from_outside_is_always_looked_at(finished, monkeypatch):
    manifest = Store(finished).manifest()
    assert is_unchanged(manifest)
    other = replace(manifest.source, packages=(*manifest.packages, Package("other", "1", "0")))
    assert not is_unchanged(replace(manifest, source=other))
    monkeypatch.setattr(inputs, "_registered", [lambda model, facts: None])
    assert not is_unchanged(manifest)


def test_a_manifest_of_a_version_that_did_not_record_it_is_read(finished):
    data = Store(finished).manifest().to_json()
    for name in ("modules", "environment"):
        del data["resolved"][name]
        assert not is_unchanged(Manifest.from_json(data))
