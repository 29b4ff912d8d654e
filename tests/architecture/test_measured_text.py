"""What guides quote from docs/measured is what the tables hold."""

from __future__ import annotations

import sys

import pytest
from tests.architecture import pages

sys.path.insert(0, str(pages.ROOT / "scripts"))
import measured_text

from sightline.recipe import parse, parse_metric
from sightline.registry import METHODS

PAGES = [path.relative_to(pages.ROOT).as_posix() for path in measured_text.pages()]


def test_every_paper_has_its_claims_in_its_guide():
    assert {f"docs/guide/{guide}.md" for guide in (*measured_text.GUIDES, "claims")} <= {*PAGES}


@pytest.mark.parametrize("guide", PAGES)
def test_a_guide_says_what_was_measured(guide):
    written = pages.read(guide)
    assert measured_text.filled(written) == written, "run python scripts/measured_text.py"


def test_a_claim_has_a_figure_and_the_verdict_that_follows_from_it():
    rows = measured_text.read("claims")
    assert {row["paper"] for row in rows} == {*measured_text.GUIDES.values()}
    for row in rows:
        if not row["metric"]:
            assert row["verdict"] == "cannot be told"
            continue
        difference, error = float(row["difference"]), float(row["error"])
        assert parse_metric(row["metric"])
        assert parse(row["recipe"])
        assert parse(row["than"])
        if row["verdict"] == "holds":
            assert difference + 0.02 > error
        if row["verdict"] == "does not hold":
            assert difference < -error


def test_the_memory_of_every_method_was_measured_and_is_below_four_gibibytes():
    rows = measured_text.read("memory_384")
    assert {row["method"] for row in rows} == {*METHODS}
    assert all(parse(row["recipe"]) for row in rows)
    assert all(bool(row["gib"]) != bool(row["note"]) for row in rows)  # measured, or why not
    assert max(float(row["gib"] or 0) + float(row["options_gib"] or 0) for row in rows) < 4


def test_mixed_precision_was_measured_for_every_method_without_many_passes():
    rows, many = measured_text.read("autocast"), {"is_cam", "ss_cam", "score_cam", "pami", "vit_cx"}
    many |= {"simple_deletion", "simple_insertion"}
    for model in ("vit_tiny", "efficientnet_lite0"):
        assert {*METHODS} - {row["method"] for row in rows if row["model"] == model} <= many
