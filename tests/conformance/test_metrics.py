"""Every metric in the registry: what it must survive, and what it must say of a map that is right."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import tiny
from tests.models.fingerprint import fingerprint
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline.errors import InputError
from sightline.metrics.case import Case
from sightline.metrics.judge import judge
from sightline.recipe import parse, parse_metric, text
from sightline.registry import METRICS
from sightline.types import Logit

SIDE = 16
# Steps and samples that suit images of 16 pixels; the options are those of the metric, only smaller.
FAST = {
    "insertion": "insertion(step=16)",
    "deletion": "deletion(step=16)",
    "ins_del": "ins_del(step=16)",
    "infidelity": "infidelity(samples=8)",
    "mu_fidelity": "mu_fidelity(samples=16)",
    "sensitivity_n": "sensitivity_n(samples=4)",
    "faithfulness_correlation": "faithfulness_correlation(size=32, samples=16)",
    "faithfulness_estimate": "faithfulness_estimate(step=16)",
    "monotonicity_nguyen": "monotonicity_nguyen(step=32)",
    "smooth_mprt": "smooth_mprt(stages=2, samples=2)",
    "non_sensitivity": "non_sensitivity(grid=(4, 4), samples=1)",
}
# Metrics that rank or weigh the pixels of one map: a right map must score better than its shuffle, and so on.
# Monotonicity is not among them: on a model that adds up a shuffle rises as steadily, and the right map is sooner done.
ORDERED = [
    *("insertion(step=16)", "deletion(step=16)", "ins_del(step=16)"),
    *("positive", "negative", "probability_positive", "probability_negative"),
    *("average_drop", "road"),
    *("deletion_accuracy", "insertion_accuracy", "deletion_aopc", "insertion_aopc"),
    *("insertion_mda(step=16, by='value')", "deletion_mda(step=16, by='value')", "ins_del_mda(step=16, by='value')"),
    *("mas_insertion(step=16, by='value')", "mas_deletion(step=16, by='value')", "mas_ins_del(step=16, by='value')"),
    *("pixel_accuracy", "mean_iou", "mean_ap", "mean_f1", "average_precision", "aupr1", "aupr0", "pointing_game"),
    *("energy_pointing_game", "region_attribution(window=1)", "iou(window=1)", "f1(window=1)", "precision(window=1)"),
    *("recall(window=1)", "grid_pointing", "focus", "auc_roc", "top_k_intersection(k=40)"),
    *("relevance_mass_accuracy", "relevance_rank_accuracy", "single_deletion", "saco"),
    *("faithfulness_correlation(size=32)", "faithfulness_estimate(step=16)", "sensitivity_n", "mu_fidelity"),
    *("region_perturbation(patch=4)", "selectivity(patch=4)", "pixel_flipping(step=16)"),
    *("f_fidelity_plus(score='probability')", "f_fidelity_minus(score='probability')"),
]
# Metrics that see the order of the values alone, or values scaled to 0..1: scale and shift mean nothing to them.
AFFINE = [
    *("insertion(step=16)", "deletion(step=16)", "ins_del(step=16)", "road"),
    *("positive", "negative", "probability_positive", "probability_negative", "sic", "aic"),
    *("deletion_accuracy", "insertion_accuracy", "deletion_aopc", "insertion_aopc", "irof"),
    *("average_drop", "increase_in_confidence"),
    *("pixel_accuracy", "mean_iou", "mean_ap", "mean_f1", "average_precision", "aupr1", "aupr0", "pointing_game"),
    *("auc_roc", "relevance_rank_accuracy", "top_k_intersection", "saco", "single_deletion", "coherency", "adcc"),
    *("faithfulness_correlation", "faithfulness_estimate(step=16)", "sensitivity_n", "region_perturbation(patch=8)"),
    *("selectivity", "pixel_flipping(step=16)", "monotonicity_arya(step=16)", "f_fidelity_plus", "f_fidelity_minus"),
]
# Metrics whose score does not change when the map is multiplied by a positive number, though a shift may change it.
SCALED = [
    *("sparseness", "complexity", "energy_pointing_game", "grid_pointing", "region_attribution", "iou(window=1)"),
    *("insertion_mda(step=16)", "deletion_mda(step=16)", "mas_insertion(step=16)", "mas_deletion(step=16)"),
    *("monotonicity(step=16)", "mas_ins_del(step=16)", "ins_del_mda(step=16)", "focus", "relevance_mass_accuracy"),
    *("mu_fidelity", "monotonicity_nguyen(step=16)", "effective_complexity", "non_sensitivity", "soundness"),
]


class Evidence:
    """A model that adds up one corner and takes a little off for the rest: what matters, and how much, is known."""

    def __init__(self) -> None:
        weights = -0.01 * torch.rand(SIDE, SIDE, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
        corner = torch.linspace(1, 1.1, SIDE * SIDE // 4, dtype=torch.float64)
        weights[: SIDE // 2, : SIDE // 2] = corner.reshape(SIDE // 2, SIDE // 2)
        self.weights = weights / weights.sum()

    def __call__(self, images: Tensor) -> Tensor:
        seen = (images.mean(dim=1).double() * self.weights).sum(dim=(-1, -2))
        return torch.stack([40 * seen - 24, torch.zeros_like(seen)], dim=1)

    def maps(self, images: Tensor) -> Tensor:
        return images.mean(dim=1).double() * self.weights

    def masks(self, count: int) -> Tensor:
        return (self.weights > 0).long().expand(count, SIDE, SIDE)


def pictures(count: int = 4, seed: int = 0) -> Tensor:
    """Draw a bright, rough corner on dark ground."""
    random = torch.Generator().manual_seed(seed)
    found = 0.2 * torch.rand(count, 3, SIDE, SIDE, dtype=torch.float64, generator=random)
    found[..., : SIDE // 2, : SIDE // 2] += 0.7
    return found


class Net(nn.Module):
    """The model as a module, for metrics that look at its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(SIDE * SIDE, 2).double()
        with torch.no_grad():
            self.head.weight.copy_(torch.stack([40 * Evidence().weights.flatten(), torch.zeros(SIDE * SIDE)]))
            self.head.bias.copy_(torch.tensor([-24.0, 0.0]))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(images.mean(dim=1).double().flatten(1))


def case_of(maps: Tensor, images: Tensor, masks: Tensor | None = None) -> Case:
    model, net = Evidence(), Net().eval()
    masks = model.masks(len(images)) if masks is None else masks
    return Case(sightline.adapt(net), images, Logit(0), maps, masks, method=parse("sobel"))


def shuffled(maps: Tensor, seed: int = 0) -> Tensor:
    flat = maps.flatten(1)
    return flat[:, torch.randperm(flat.shape[1], generator=torch.Generator().manual_seed(seed))].reshape(maps.shape)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("recipe", ORDERED)
def test_a_right_map_beats_its_shuffle_beats_its_negation(recipe: str) -> None:
    images = pictures()
    right = Evidence().maps(images)
    sign = 1 if METRICS[recipe.partition("(")[0]].direction == "higher" else -1
    maps = [right, shuffled(right), -right]
    best, middle, worst = (sign * judge(case_of(each, images), recipe)[recipe].nanmean() for each in maps)
    assert best >= middle - 1e-12
    assert middle >= worst - 1e-12
    assert best > worst + 1e-6


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("recipe", AFFINE)
@settings(max_examples=4, deadline=None)
@given(factor=st.sampled_from([0.125, 4.0, 1024.0]), shift=st.sampled_from([-2.0, 0.0, 8.0]))
def test_scale_and_shift_change_nothing_where_that_is_promised(recipe: str, factor: float, shift: float) -> None:
    images = pictures(2)
    maps = torch.randint(0, 64, (2, SIDE, SIDE), generator=torch.Generator().manual_seed(1)).double() / 64
    want = judge(case_of(maps, images), recipe)[recipe]
    assert_close(judge(case_of(factor * maps + shift, images), recipe)[recipe], want, equal_nan=True)


@pytest.mark.parametrize("recipe", SCALED)
def test_a_positive_factor_changes_nothing_where_that_is_promised(recipe: str) -> None:
    images = pictures(2)
    maps = torch.randn(2, SIDE, SIDE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert_close(
        judge(case_of(512 * maps, images), recipe)[recipe], judge(case_of(maps, images), recipe)[recipe], equal_nan=True
    )


def degenerate_maps() -> dict[str, Tensor]:
    whole = torch.zeros(2, SIDE, SIDE, dtype=torch.float64)
    single = whole.clone()
    single[:, 3, 4] = 1
    noise = torch.rand(whole.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return {
        "zero": whole,
        "constant": whole + 3,
        "constant and negative": whole - 3,
        "negative": -noise - 0.1,
        "single pixel": single,
        "huge": noise * 1e300,
        "huge and of both signs": (noise - 0.5) * 1e300,
        "tiny": noise * 1e-300,
        "whole numbers": (noise * 10).long(),
        "half precision": noise.half(),
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("kind", degenerate_maps())
def test_no_map_is_too_odd_to_be_judged(name: str, kind: str) -> None:
    recipe = FAST.get(name, name)
    scores = judge(case_of(degenerate_maps()[kind], pictures(2)), recipe)
    values, flags = scores[recipe], scores.flags[recipe]
    low, high = METRICS[name].build.range
    for value, flag in zip(values.tolist(), flags, strict=True):
        if value != value:
            assert flag, "a score that is not a number says why"
        else:
            assert low - 1e-9 <= value <= high + 1e-9
    if kind in ("zero", "constant", "constant and negative"):
        assert all(flags), "a constant map is flagged"


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_a_map_with_nan_or_infinity_is_refused_in_one_sentence(name: str, wrong: float) -> None:
    maps = torch.rand(2, SIDE, SIDE)
    maps[1, 2, 3] = wrong
    with pytest.raises(InputError, match="the map of image 1 holds NaN or infinite values"):
        judge(case_of(maps, pictures(2)), FAST.get(name, name))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in METRICS if "masks" in METRICS[name].needs])
@pytest.mark.parametrize("kind", ["one pixel", "empty", "full", "ignored"])
def test_no_mask_is_too_odd_to_compare_with(name: str, kind: str) -> None:
    masks = torch.full((2, SIDE, SIDE), {"one pixel": 0, "empty": 0, "full": 1, "ignored": -1}[kind])
    if kind == "one pixel":
        masks[:, 5, 6] = 1
    images = pictures(2)
    scores = judge(case_of(Evidence().maps(images), images, masks), name)
    for value, flag in zip(scores[name].tolist(), scores.flags[name], strict=True):
        assert flag or value == value
        assert kind != "empty" or flag, "without evidence there is a flag"
        assert kind != "ignored" or (flag and value != value), "nothing labelled is nothing judged"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", METRICS)
def test_leaves_the_model_as_it_was_and_answers_the_same_twice(name: str) -> None:
    model = tiny.vit().double()
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    before = fingerprint(model)
    maps, masks = images.mean(dim=1), (images[:, 0] > 0).long()
    recipe = FAST.get(name, name)
    found = [
        judge(Case(sightline.adapt(model), images, Logit(1), maps, masks, method=parse("ixg")), recipe)[recipe]
        for _ in range(2)
    ]
    assert fingerprint(model) == before
    assert torch.equal(found[0].nan_to_num(7), found[1].nan_to_num(7))


@pytest.mark.parametrize("name", METRICS)
def test_is_frozen_hashable_picklable_and_rebuilt_from_its_text(name: str) -> None:
    metric = METRICS[name].build()
    assert pickle.loads(pickle.dumps(metric)) == metric
    assert parse_metric(text(metric)) == metric
    if fields(metric):
        with pytest.raises(FrozenInstanceError):
            setattr(metric, fields(metric)[0].name, None)


@pytest.mark.parametrize("name", METRICS)
def test_the_card_has_formula_options_and_edge_cases(name: str) -> None:
    doc = METRICS[name].doc
    assert ".. math::" in doc
    assert "Edge cases:" in doc
    for option in fields(METRICS[name].build):
        assert f"    {option.name}: " in doc, f"the option {option.name} is not told"
