"""The table of comparisons with other packages: its rows, and cards that claim no more than a test asserts."""

from __future__ import annotations

import re

import pytest
from tests import parity

import sightline
from sightline.registry import METHODS, METRICS, OPERATORS

FEWEST = 40
ROWS = parity.read()
NUMBER = re.compile(r"(\d*e-\d+)|(exactly)")


def card(name: str) -> str | None:
    """Return what the card of a name claims; None for a target, which has none."""
    for registry in (METHODS, OPERATORS, METRICS):
        if name in registry:
            return registry[name].parity
    return None


def claimed(said: str, peer: str) -> float | None:
    """Return the closeness that a card claims for a peer: the first number behind its name; None where it has none."""
    package, _, function = peer.partition(" ")
    named = re.search(rf"\b{package}\b[^;]*?\b{function}\b", said, re.IGNORECASE)
    assert named is not None, f"the card names no {peer}: {said!r}"
    found = NUMBER.search(said[named.end() :].partition(";")[0])
    if found is None:
        return None
    return 0.0 if found[2] else float(found[1] if found[1][0] != "e" else f"1{found[1]}")


def test_there_are_enough_rows_and_every_one_names_something_of_ours() -> None:
    assert len({(row.name, row.peer) for row in ROWS}) == len(ROWS) >= FEWEST
    assert {row.peer.partition(" ")[0] for row in ROWS} >= {
        "captum", "grad-cam", "torchcam", "zennit", "quantus", "PAIR", "lime", "shap",
    }  # fmt: skip
    for row in ROWS:
        assert card(row.name) or row.name in sightline.__all__, row


def test_no_difference_is_above_its_bound() -> None:
    assert [row for row in ROWS if not row.difference <= row.bound] == []


@pytest.mark.parametrize("row", [row for row in ROWS if card(row.name)], ids=lambda row: f"{row.name}-{row.peer}")
def test_a_card_claims_no_more_than_the_test_asserts(row: parity.Row) -> None:
    said = card(row.name)
    assert said is not None
    claim = claimed(said, row.peer)
    assert claim is None or row.bound <= claim, f"{row.name}: asserted {row.bound:.0e}, claimed {claim:.0e}"


@pytest.mark.parametrize("registry", [METHODS, OPERATORS, METRICS])
def test_a_card_that_says_live_has_a_row(registry) -> None:
    measured = {row.name for row in ROWS}
    assert [name for name in registry if "live" in registry[name].parity.split(", ") and name not in measured] == []


def test_a_claim_is_the_first_number_behind_the_peer() -> None:
    said = "captum A and zennit A, 1e-9, and on a photograph, 1e-5; quantus 0.6 B, exactly; captum C"
    assert [claimed(said, peer) for peer in ("captum A", "zennit A", "quantus B", "captum C")] == [1e-9, 1e-9, 0, None]
    with pytest.raises(AssertionError, match="names no shap D"):
        claimed(said, "shap D")


def test_a_difference_is_relative_to_the_largest_number_and_not_a_number_is_none() -> None:
    assert parity.largest_difference([1.0, -2.0], [1.0, -4.0]) == 0.5
    assert parity.largest_difference([0.0, 1e-9], [0.0, 0.0]) == 1e-9
    for wrong in ([1.0, 1.1], [1.0, float("nan")]):
        with pytest.raises(AssertionError, match="x differs from captum Y"):
            parity.compare("x", "captum Y", wrong, [1.0, 1.0], 1e-3)
    with pytest.raises(AssertionError, match="cannot be compared"):
        parity.largest_difference([1.0], [1.0, 1.0])


def test_rows_of_one_name_and_peer_are_one_and_a_file_keeps_them(tmp_path) -> None:
    rows = [parity.Row("b", "captum B", "1", 2e-7, 1e-5), parity.Row("a", "captum A", "1", 0.0, 1e-9)]
    found = parity.gather([*rows, parity.Row("b", "captum B", "1", 3e-7, 1e-6)])
    assert list(found.values()) == [rows[1], parity.Row("b", "captum B", "1", 3e-7, 1e-5)]
    parity.write(found.values(), tmp_path / "table.csv")
    assert parity.read(tmp_path / "table.csv") == list(found.values())
