"""Verdicts on claims and the choice of a panel follow from the numbers they are given."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pandas
import pytest

FOLDER = Path(__file__).parents[2] / "experiments"


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return import_module


@pytest.mark.parametrize(
    ("difference", "reach", "margin", "verdict"),
    [
        (0.1, 0.05, 0.0, "holds"),
        (0.1, 0.2, 0.0, "cannot be told"),
        (-0.1, 0.05, 0.0, "does not hold"),
        (-0.01, 0.005, 0.02, "holds"),
        (-0.01, 0.02, 0.02, "cannot be told"),
    ],
)
def test_an_interval_decides(module, difference, reach, margin, verdict):
    assert module("claims").verdict(difference, reach, margin) == verdict


def test_a_quad_counts_once_and_lower_may_be_better(module, tmp_path):
    claims, paper_claims = module("claims"), module("paper_claims")
    values = {"one": (0.5, 0.7), "other": (0.2, 0.1)}
    found = {
        recipe: {f"q{quad}#{cell}": {"iou": ends[quad]} for quad in (0, 1) for cell in range(4)}
        for recipe, ends in values.items()
    }
    (tmp_path / "quads-x.json").write_text(json.dumps({"found": {"place": found}}))
    pair = paper_claims.Comparison("quads-x", "iou", "one", "other")
    line = claims.compare(claims.Measured(tmp_path), paper_claims.Claim("P", "c", (pair,)), pair)
    assert (line["images"], line["difference"], line["mean"]) == ("2", ".450", ".600")
    measured = claims.Measured(tmp_path)
    measured._stores["s"] = {("ixg", "deletion"): {"a": 0.1, "b": 0.2}, ("gae", "deletion"): {"a": 0.3, "b": 0.4}}
    lower = paper_claims.Comparison("s", "deletion", "ixg", "gae")
    assert claims.compare(measured, paper_claims.Claim("P", "c", (lower,)), lower)["difference"] == ".200"


def test_a_panel_takes_the_best_of_each_family_that_is_cheap(module):
    panel = module("default_panel")
    scores = {"gae": 0.9, "rollout": 0.95, "ixg": 0.5, "ig": 0.99, "grad_cam": 0.4, "random": 1.0}
    rows = pandas.DataFrame(
        {"recipe": recipe, "image": image, "metric": metric, "value": value, "forward": 1.0, "backward": 1.0}
        for recipe, value in scores.items()
        for image in ("a", "b")
        for metric in panel.METRICS
    )
    rows.loc[rows["recipe"] == "ig", "forward"] = 50.0
    assert panel.choose(rows) == ["rollout", "ixg", "grad_cam"]
    assert panel.lead(rows, "gae", "ixg")[0] == pytest.approx(0.4)
    first, *rest = panel.report(rows, ["rollout", "ixg"], ["gae", "ixg"])
    assert first["recipe"] == "rollout"
    assert ".050 ± .000 above `gae`" in first["note"]
    assert [row["note"] for row in rest] == ["before", "chosen, and before"]
