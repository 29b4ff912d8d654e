"""Trust in metrics: a perfect one agrees, a blind one does not, and the cards say what was measured."""

from __future__ import annotations

import json

import numpy as np
import pytest

import sightline
from sightline.audit.evidence.metric_trust import Trust, metric_trust, order_agreement, shuffle_wins
from sightline.catalogue import trust
from sightline.errors import InputError
from sightline.registry import METRICS


def test_the_agreement_is_that_of_the_orders_of_the_means():
    truth = np.array([[0.9, 0.7], [0.5, 0.5], [0.0, 0.2]])
    assert order_agreement(truth, 3 * truth + 1) == pytest.approx(1)
    assert order_agreement(truth, -truth) == pytest.approx(-1)
    assert order_agreement(truth, truth * 0) == 0
    assert order_agreement(truth, np.array([[2.0, np.nan], [3.0, 3.0], [1.0, 0.0]])) == pytest.approx(0.5)


def test_ties_and_what_is_not_defined_win_half():
    maps, others = np.array([1.0, 2.0, 3.0, np.nan]), np.array([0.0, 2.0, 4.0, 1.0])
    assert shuffle_wins(maps, others).tolist() == [1.0, 0.5, 0.0, 0.5]


def test_a_metric_that_sees_the_evidence_tells_maps_from_their_shuffles_and_one_that_counts_does_not():
    model = sightline.load("bundled/shapes-cnn")
    metrics = ["average_precision", "sparseness", "effective_complexity", "average_sensitivity(samples=1)"]
    methods = ["grad_cam", "ixg", "centre", "random"]
    seeing, *blind, own = metric_trust(model, metrics, methods, count=8, seed=3, resamples=100)
    assert seeing.tells
    assert seeing.wins > 0.9
    assert seeing.low <= seeing.agreement <= seeing.high
    for each in blind:
        assert each.tells is False
        assert each.wins == 0.5
    assert own.tells is None
    again = metric_trust(model, metrics[:1], methods, count=8, seed=3, resamples=100)
    assert again == [seeing]


def test_too_few_methods_make_no_order():
    with pytest.raises(InputError, match="an order needs three methods"):
        metric_trust(sightline.load("bundled/shapes-cnn"), ["saco"], ["ixg"])


def test_the_figures_are_of_metrics_that_exist_and_every_card_says_them():
    found = trust.measured_trust()["metrics"]
    names = {recipe.partition("(")[0] for recipe in found}
    assert names <= set(METRICS)
    for recipe, figures in found.items():
        assert -1 <= figures["low"] <= figures["high"] <= 1
        assert figures["tells"] == Trust(**{k: v for k, v in figures.items() if k != "tells"}).tells
        assert f"{figures['agreement']:.2f}" in sightline.card(recipe).trust
    blind = [recipe for recipe, figures in found.items() if figures["tells"] is False and figures["wins"] == 0.5]
    assert {"sparseness", "complexity", "effective_complexity"} <= set(blind)
    assert "cannot tell a map from its shuffle" in sightline.card("sparseness").trust
    assert sightline.card("ixg").trust == ""


def test_a_metric_that_prefers_the_shuffle_is_said_to():
    figures = {"agreement": 0.0, "low": -0.1, "high": 0.1, "wins": 0.1, "wins_low": 0.0, "wins_high": 0.2}
    assert "it prefers the shuffle to the map" in trust.sentence(figures)
    assert "of cases" not in trust.sentence(figures | {"wins": None})


def test_the_file_is_what_the_experiment_writes():
    text = trust.FILE.read_text(encoding="utf-8")
    assert json.dumps(json.loads(text), indent=1) + "\n" == text
