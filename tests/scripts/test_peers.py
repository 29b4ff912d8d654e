"""Pairs of benchmarks/peers.py: both sides give the same map, and the table holds methods that there are."""

from __future__ import annotations

import csv
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from tests.parity import largest_difference
from torch import nn

import sightline
import tiny
from sightline.recipe import parse, parse_metric

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import peers
from pairs import PAIRS
from pairs.pair import Setting, bare_passes
from pairs.timing import in_turn, ratio

TABLE = Path(__file__).parents[2] / "docs" / "measured" / "peers.csv"
COMPARED = [(pair, kind) for pair in PAIRS for kind in pair.kinds if not pair.differs]


class Cnn(nn.Module):
    """A CNN whose ReLUs are modules of their own, none in place, as peers need them."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Conv2d(3, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 8, 3, 2, 1), nn.ReLU())
        self.features, self.pool, self.head = nn.Sequential(*layers), nn.AdaptiveAvgPool2d(1), nn.Linear(8, 5)

    def forward(self, images):
        return self.head(self.pool(self.features(images)).flatten(1))


@cache
def setting(kind: str) -> Setting:
    torch.manual_seed(0)
    model = sightline.adapt(tiny.vit() if kind == "vit" else tiny.awake(Cnn()).eval())
    return Setting(model, torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(3)), 3, 4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("pair", "kind"), COMPARED, ids=lambda given: getattr(given, "peer", given))
def test_both_sides_of_a_pair_say_the_same(pair, kind):
    given = setting(kind)
    assert largest_difference(pair.shown(pair.job(given)()), pair.theirs(given)()) <= pair.bound


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.name}-{pair.peer}")
def test_a_pair_names_what_there_is(pair):
    given = setting(pair.kinds[0])
    assert pair.name in {*sightline.METHODS, *sightline.OPERATORS, *sightline.METRICS}
    assert peers.version(pair.peer)
    assert "{" not in pair.text(given)
    if pair.bare:
        assert pair.passes(given).forward >= 1


def test_bare_passes_are_those_that_are_declared():
    given, seen = setting.__wrapped__("cnn"), []
    pair = next(pair for pair in PAIRS if pair.name == "kernel_shap")
    given.network.register_forward_hook(lambda *call: seen.append(len(call[1][0])))
    bare_passes(given, pair)()
    assert seen == [16]  # fourteen coalitions, the empty and the full one, sixteen images at once


def test_jobs_run_in_turn_and_a_ratio_has_an_interval():
    order = []
    taken = in_turn({name: lambda name=name: order.append(name) for name in "ab"}, 4)
    assert {name: len(each) for name, each in taken.items()} == {"a": 4, "b": 4}
    assert order[:2] == ["a", "b"]
    found = ratio([1.0, 2.0, 3.0, 2.0, 2.0], [1.0] * 5)
    assert found.median == 2.0
    assert 1.0 <= found.low <= 2.0 <= found.high <= 3.0


def test_rows_measured_again_take_the_place_of_those_before(tmp_path):
    rows = [
        peers.Row("m", recipe, "p", "1", value, "", "", "", "", 5, "") for recipe, value in (("b", "1"), ("a", "2"))
    ]
    peers.write(rows, tmp_path / "peers.csv")
    peers.write([peers.Row("m", "a", "p", "1", "3", "", "", "", "", 5, "")], tmp_path / "peers.csv")
    with (tmp_path / "peers.csv").open(newline="") as file:
        assert [(row["recipe"], row["ratio"]) for row in csv.DictReader(file)] == [("a", "3"), ("b", "1")]


def table() -> list[dict[str, str]]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_table_names_methods_and_pairs_that_there_are():
    known = {(pair.name, pair.peer) for pair in PAIRS}
    assert table()
    for row in table():
        name = row["recipe"].partition("(")[0]
        assert parse_metric(row["recipe"]) if name in sightline.METRICS else parse(row["recipe"])
        assert (name, row["peer"]) in known
        assert row["model"] in peers.MODELS


def test_a_peer_that_is_faster_has_its_reason_beside_it():
    for row in table():
        if row["high"] and float(row["high"]) < peers.WANTED:
            assert row["reason"], f"{row['recipe']} beside {row['peer']} on {row['model']}"
