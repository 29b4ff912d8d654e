"""Verdicts on claims and the choice of a panel follow from the numbers they are given."""

from __future__ import annotations

import csv
import json
from importlib import import_module
from pathlib import Path
from statistics import fmean, stdev

import pandas
import pytest
from scipy import stats

FOLDER = Path(__file__).parents[2] / "experiments"


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return import_module


def lines_of(claims, claim, *found):
    """Return unjudged lines with these differences and errors, of 11 images."""
    return [
        {"difference": str(difference), "p": claims.p_text(claims.chance(difference, error, 11, claim))}
        for difference, error in found
    ]


@pytest.mark.parametrize(
    ("found", "no_loss", "verdicts"),
    [
        ([(0.1, 0.02)], False, ["holds"]),
        ([(0.1, 0.09)], False, ["cannot be told"]),
        ([(-0.1, 0.02)], False, ["does not hold"]),
        ([(-0.01, 0.002)], True, ["holds"]),
        ([(-0.01, 0.02)], True, ["cannot be told"]),
        ([(-0.1, 0.02)], True, ["does not hold"]),
        ([(0.1, 0.04)], False, ["holds"]),  # p = .03 alone, and not as one of three
        ([(0.1, 0.04), (0.1, 0.09), (-0.1, 0.01)], False, ["cannot be told", "cannot be told", "does not hold"]),
    ],
)
def test_corrected_p_values_decide(module, found, no_loss, verdicts):
    claims = module("claims")
    claim = module("paper_claims").Claim("P", "c", (), no_loss)
    assert [row["verdict"] for row in claims.judged(claim, lines_of(claims, claim, *found))] == verdicts


def test_a_p_value_is_that_of_a_paired_t_test(module):
    values = [0.3, 0.1, -0.05, 0.2, 0.15]
    error = stdev(values) / len(values) ** 0.5
    claim = module("paper_claims").Claim("P", "c", ())
    expected = stats.ttest_1samp(values, 0.0).pvalue
    assert module("claims").chance(fmean(values), error, len(values), claim) == pytest.approx(expected)


def test_lines_whose_run_is_gone_are_kept_and_turned_where_the_claim_is_the_opposite(module, tmp_path):
    claims, paper_claims = module("claims"), module("paper_claims")
    pair = paper_claims.Comparison("store", "iou", "gae", "ixg")
    old = dict.fromkeys(claims.COLUMNS, "") | {
        "on": "store", "metric": "iou", "recipe": "gae", "than": "ixg", "mean": ".600", "other_mean": ".200",
        "difference": ".400", "error": ".000", "images": "9",
    }  # fmt: skip
    table = tmp_path / "claims.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, claims.COLUMNS)
        writer.writeheader()
        writer.writerow(old)
    opposite = paper_claims.Comparison("store", "iou", "ixg", "gae")
    unknown = paper_claims.Comparison("store", "iou", "ixg", "rollout")
    made = [paper_claims.Claim("P", name, (each,)) for name, each in zip("abc", (pair, opposite, unknown), strict=True)]
    first, second, third = claims.lines(claims.Measured(tmp_path), claims.Kept(table), made)
    assert (first["claim"], first["difference"], first["verdict"]) == ("a", ".400", "holds")
    assert (second["difference"], second["mean"], second["verdict"]) == ("-.400", ".200", "does not hold")
    assert (third["metric"], third["verdict"]) == ("", "cannot be told")


def test_the_committed_verdicts_follow_from_the_committed_numbers(module):
    claims, paper_claims = module("claims"), module("paper_claims")
    table = FOLDER.parent / "docs" / "measured" / "claims.csv"
    with table.open(encoding="utf-8", newline="") as file:
        committed = list(csv.DictReader(file))
    by_text = {claim.text: claim for claim in paper_claims.CLAIMS}
    assert [*dict.fromkeys(row["claim"] for row in committed)] == [*by_text]
    for text, claim in by_text.items():
        rows = [row for row in committed if row["claim"] == text and row["metric"]]
        if rows:
            assert claims.judged(claim, rows) == rows
            assert len(rows) == len(claim.comparisons)


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


def test_a_similarity_below_zero_counts_as_zero(module, monkeypatch, tmp_path):
    claims = module("claims")
    rows = pandas.DataFrame(
        {"recipe": "ixg", "image": image, "metric": metric, "value": value}
        for metric in ("randomisation_spearman()", "ins_del")
        for image, value in (("a", -0.3), ("b", 0.2))
    )
    monkeypatch.setattr(claims, "read_rows", lambda _: rows)
    stored = claims.Measured(tmp_path)._store("s")
    assert stored["ixg", "randomisation_spearman()"] == {"a": 0.0, "b": 0.2}
    assert stored["ixg", "ins_del"] == {"a": -0.3, "b": 0.2}


def test_a_panel_takes_the_best_of_each_family_that_is_cheap_and_knows_the_class(module):
    panel = module("default_panel")
    scores = {"gae": 0.9, "grad_rollout": 0.95, "rollout": 0.97, "ixg": 0.5, "ig": 0.99, "grad_cam": 0.4, "random": 1.0}
    rows = pandas.DataFrame(
        {"recipe": recipe, "image": image, "metric": metric, "value": value, "forward": 1.0, "backward": 1.0}
        for recipe, value in scores.items()
        for image in ("a", "b")
        for metric in panel.METRICS
    )
    rows.loc[rows["recipe"] == "ig", "forward"] = 50.0
    assert panel.choose(rows) == ["grad_rollout", "ixg", "grad_cam"]
    assert panel.lead(rows, "gae", "ixg")[0] == pytest.approx(0.4)
    first, *rest = panel.report(rows, ["grad_rollout", "ixg"], ["gae", "ixg"])
    assert first["recipe"] == "grad_rollout"
    assert ".050 ± .000 above `gae`" in first["note"]
    assert [row["note"] for row in rest] == ["before", "chosen, and before"]
