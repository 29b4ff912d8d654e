"""The public names and their signatures are those that were recorded: none goes away or changes by accident."""

from __future__ import annotations

import json
import sys

import pytest
from tests.architecture import pages

import sightline

sys.path.insert(0, str(pages.ROOT / "scripts"))
import public_surface

HOW = "If that is meant, run `python scripts/public_surface.py --write` and add a news fragment."


def recorded() -> dict[str, str]:
    return json.loads(public_surface.FILE.read_text(encoding="utf-8"))


def test_no_public_name_went_away_or_changed():
    differences = public_surface.differences(recorded(), public_surface.surface())
    assert differences == [], "\n".join([*differences, HOW])


@pytest.mark.parametrize(
    "name",
    [
        "explain", "evaluate", "rank", "sanity", "compare", "tune", "adapt", "load", "parse",
        "Attribution.map", "Attribution.pixels", "Attribution.overlay", "Attribution.plot", "Attribution.save",
        "Attribution.load", "Attribution.to", "Attribution.__len__", "Attribution.__getitem__",
        "Attribution._repr_html_", "Scores.to_pandas", "Ranking.best", "Ranking.verdicts", "Ranking.to_pandas",
        "Ranking.save", "SanityCheck.verdicts", "SanityCheck.to_pandas", "SanityCheck.save", "Comparison.save",
        "Adapter", "Adapter.output", "Adapter.normalise", "METHODS['gae']", "errors.SightlineError",
    ],
)  # fmt: skip
def test_the_names_of_the_contract_are_recorded(name):
    assert name in recorded()


def test_the_fields_of_an_attribution_are_its_signature():
    fields = "values, grid, recipe='', passes=Passes(forward=0.0, backward=0.0), flags=(), details=None, target=None, "
    assert recorded()["Attribution"].startswith(f"({fields}labels=(), seen=None")


def test_a_name_that_goes_away_is_named(monkeypatch):
    monkeypatch.delattr(sightline.Attribution, "overlay")
    said = public_surface.differences(recorded(), public_surface.surface())
    assert said == ["Attribution.overlay is gone; it was Attribution.overlay(self, index=0, **options)"]


def test_a_signature_that_changes_is_shown(monkeypatch):
    monkeypatch.setattr(sightline, "parse", lambda text, strict=True: None, raising=False)
    (said,) = public_surface.differences(recorded(), public_surface.surface())
    assert said.startswith("parse was parse(")
    assert said.endswith("and is now parse(text, strict=True)")


def test_a_name_that_is_new_must_be_recorded_and_a_new_method_need_not():
    now = public_surface.surface()
    assert public_surface.differences(now, now | {"novelty": "()"}) == ["novelty is new and not recorded"]
    assert public_surface.differences(now, now | {"METHODS['novelty']": "()"}) == []
