"""Relevance accuracies, top-k intersection, ROC area and focus: Quantus and scikit-learn on the same maps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from tests.metrics.peer_quantus import plain, quantus
from torch.testing import assert_close

import sightline
from sightline.errors import RecipeError
from sightline.metrics.case import Case
from sightline.metrics.judge import judge
from sightline.recipe import parse_metric
from sightline.types import Logit

SIDE = 10
PEERS = {
    "relevance_mass_accuracy(part='magnitude')": lambda: quantus.RelevanceMassAccuracy(**plain()),
    "relevance_rank_accuracy": lambda: quantus.RelevanceRankAccuracy(**plain()),
    "top_k_intersection(k=7)": lambda: quantus.TopKIntersection(k=7, **plain()),
    "top_k_intersection(k=7, influence=True)": lambda: quantus.TopKIntersection(k=7, concept_influence=True, **plain()),
    "auc_roc": lambda: quantus.AUC(**plain()),
}


def score(recipe, maps, masks):
    model = sightline.adapt(lambda images: images.mean(dim=(2, 3)))
    return judge(Case(model, torch.zeros(len(maps), 3, *maps.shape[1:]), Logit(0), maps, masks), recipe)


def maps_and_masks(count=4):
    random = torch.Generator().manual_seed(1)
    maps = torch.rand(count, SIDE, SIDE, dtype=torch.float64, generator=random)
    masks = (torch.rand(count, SIDE, SIDE, generator=random) < 0.3).long()
    return maps, masks


@pytest.mark.parametrize("recipe", PEERS)
def test_it_is_that_of_quantus(recipe, parity):
    maps, masks = maps_and_masks()
    want = np.array(PEERS[recipe]().evaluate_batch(a_batch=maps[:, None].numpy(), s_batch=masks[:, None].numpy()))
    assert_close(score(recipe, maps, masks)[recipe], torch.from_numpy(want).double(), rtol=0, atol=1e-9)
    peer = f"quantus {type(PEERS[recipe]()).__name__}"
    parity(recipe.partition("(")[0], peer, score(recipe, maps, masks)[recipe], want, 1e-9)


def test_focus_is_that_of_quantus_on_mosaics(parity):
    maps, _ = maps_and_masks()
    maps = maps - 0.4
    shown = [(1, 0, 1, 0), (0, 1, 1, 0), (1, 1, 0, 0), (0, 0, 1, 1)]
    masks = torch.zeros(4, SIDE, SIDE, dtype=torch.long)
    half = SIDE // 2
    for row, cells in enumerate(shown):
        masks[row] = torch.tensor(cells).reshape(2, 2).repeat_interleave(half, 0).repeat_interleave(half, 1)
    metric = quantus.Focus(**plain())
    want = metric.evaluate_batch(a_batch=maps[:, None].numpy(), c_batch=np.array(shown))
    assert_close(score("focus", maps, masks)["focus"], torch.from_numpy(want), rtol=0, atol=1e-6)
    parity("focus", "quantus Focus", score("focus", maps, masks)["focus"], want, 1e-6)


def test_the_roc_area_is_that_of_scikit_learn_with_ties_and_ignored_pixels(parity):
    maps, masks = maps_and_masks()
    maps, masks = (maps * 4).round(), masks.clone()
    masks[:, 0] = -1
    want = [
        roc_auc_score(mask[mask >= 0].numpy(), each[mask >= 0].numpy()) for each, mask in zip(maps, masks, strict=True)
    ]
    assert score("auc_roc", maps, masks)["auc_roc"].tolist() == pytest.approx(want, abs=1e-12)
    parity("auc_roc", "scikit-learn roc_auc_score", score("auc_roc", maps, masks)["auc_roc"], want, 1e-9)


def test_by_hand():
    maps = torch.tensor([[[4.0, 3.0], [-2.0, 1.0]]])
    masks = torch.tensor([[[1, 0], [1, 0]]])
    for recipe, want in {
        "relevance_mass_accuracy": 4 / 8,
        "relevance_mass_accuracy(part='magnitude')": 6 / 10,
        "relevance_rank_accuracy": 1 / 2,
        "top_k_intersection(k=1)": 1.0,
        "top_k_intersection(k=3)": 1 / 3,
        "auc_roc": 2 / 4,
        "focus": 4 / 8,
    }.items():
        assert score(recipe, maps, masks)[recipe].item() == pytest.approx(want), recipe


def test_ignored_pixels_cannot_be_among_the_highest():
    maps, masks = torch.tensor([[[9.0, 1.0, 0.0]]]), torch.tensor([[[-1, 1, 0]]])
    scores = score(["relevance_rank_accuracy", "top_k_intersection(k=2)", "relevance_mass_accuracy"], maps, masks)
    assert [values.item() for values in scores.values()] == [1.0, 0.5, 1.0]


def test_fewer_pixels_than_k_and_no_background_are_flagged():
    maps, masks = maps_and_masks(1)
    assert score("top_k_intersection", maps, masks).flags["top_k_intersection"] == ("fewer pixels than k",)
    full = score("auc_roc", maps, torch.ones_like(masks))
    assert full.flags["auc_roc"] == ("no background",)
    assert full["auc_roc"].isnan().all()


def test_a_wrong_k_is_refused():
    with pytest.raises(RecipeError, match="got k=0"):
        parse_metric("top_k_intersection(k=0)")
