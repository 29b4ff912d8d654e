"""Cascading randomisation: Quantus' numbers, what controls and sound methods score, and the edges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tests.methods import reference_cnn
from torch.testing import assert_close

from sightline import adapt, evaluate, explain
from sightline.errors import InputError, RecipeError
from sightline.metrics.case import Case
from sightline.metrics.judge import judge
from sightline.metrics.sanity.randomisation import RandomisationSpearman, random_maps
from sightline.metrics.similarity import SIMILARITIES
from sightline.models.passes import counting
from sightline.models.randomise import Cascade, counts
from sightline.recipe import parse, parse_metric, text
from sightline.registry import METRICS
from sightline.types import Attribution, Logit, Passes, pixel_grid

FOUR = [f"randomisation_{name}" for name in SIMILARITIES]


def case_of(model, images, recipe="ixg", target=None):
    adapter, method, aim = adapt(model), parse(recipe), target or Logit((1, 3))
    maps = explain(adapter, images, method, target=aim).pixels()
    return Case(adapter, images, aim, maps, method=method)


# ---- Quantus -------------------------------------------------------------------------------------------------------


def test_quantus_scores_and_maps():
    model, image = reference_cnn.network("tiny_cnn")
    numbers = np.load(reference_cnn.FOLDER / "metric_quantus_tiny_cnn.npz")
    case = case_of(model, image, target=Logit(2))
    metric = RandomisationSpearman(stages=None, absolute=True, seed=42, variant="quantus")
    found = metric(case)
    assert_close(found.curve[0], torch.from_numpy(numbers["mprt_scores"]), rtol=0, atol=1e-5)
    assert found.values.item() == pytest.approx(numbers["mprt_scores"][1:].mean(), abs=1e-5)
    for stage, maps in enumerate(random_maps(case, None, 42, "quantus")):
        want = torch.from_numpy(numbers[f"mprt_expl{stage}"]).double()
        assert_close(maps[0], want, rtol=0, atol=1e-5 * float(want.abs().max()))


# ---- by hand -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SIMILARITIES)
@pytest.mark.parametrize("absolute", [False, True])
def test_the_curve_compares_with_the_method_on_a_randomised_copy(name, absolute, tiny_cnn, images):
    case = case_of(tiny_cnn, images)
    found = judge(case, f"randomisation_{name}(stages=2, absolute={absolute}, seed=5)")
    (measured,) = found.measurements.values()
    cascade = Cascade(case.model, images, seed=5)
    for stage, count in enumerate(counts(2, len(cascade)), 1):
        maps = explain(cascade.upto(count), images, "ixg", target=case.target).pixels()
        one, other = (values.abs() if absolute else values for values in (case.maps, maps))
        assert_close(measured.curve[:, stage], SIMILARITIES[name](one, other))
    assert_close(measured.curve[:, 0], torch.ones(2, dtype=torch.float64))
    assert_close(measured.values, measured.curve[:, 1:].mean(dim=1))


def test_the_four_share_their_maps(tiny_vit, images):
    case = case_of(tiny_vit, images)
    with counting() as meter:
        judge(case, [f"{name}(stages=2)" for name in FOUR])
    asked = case.explained_by().cost(case.model) * (2 * len(images))
    assert (meter.passes.forward, meter.passes.backward) == pytest.approx((asked.forward, asked.backward))


def test_the_seed_decides_and_nothing_else(tiny_cnn, images):
    first, again, other = (
        judge(case_of(tiny_cnn, images), f"randomisation_spearman(stages=2, seed={seed})").curves.popitem()[1]
        for seed in (1, 1, 2)
    )
    assert_close(first, again, rtol=0, atol=0)
    assert not torch.equal(first, other)


def test_the_batch_does_not_matter(tiny_cnn, images):
    both = RandomisationSpearman(stages=2)(case_of(tiny_cnn, images)).curve
    alone = RandomisationSpearman(stages=2)(case_of(tiny_cnn, images[1:], target=Logit(3))).curve
    assert_close(both[1:], alone, rtol=0, atol=1e-9)
    adapter = adapt(tiny_cnn)
    adapter.batch = 1
    case = Case(adapter, images, Logit((1, 3)), case_of(tiny_cnn, images).maps, method=parse("ixg"))
    assert_close(RandomisationSpearman(stages=2)(case).curve, both, rtol=0, atol=1e-9)


def test_evaluate_takes_the_method_from_the_attribution(tiny_vit, images):
    found = explain(tiny_vit, images, "ixg", target=1)
    scores = evaluate(tiny_vit, images, found, FOUR, target=1)
    assert all(torch.isfinite(scores[name]).all() for name in FOUR)
    with pytest.raises(InputError, match="runs the method again"):
        evaluate(tiny_vit, images, found.pixels(), FOUR, target=1)


# ---- what it is for ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["sobel", "centre", "random", "input_norm"])
def test_a_control_does_not_change_with_the_model(recipe, tiny_vit, images):
    scores = judge(case_of(tiny_vit, images, recipe), [f"{name}(stages=2)" for name in FOUR])
    for values in scores.values():
        assert_close(values, torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("recipe", ["ixg", "gae", "grad_cam"])
def test_a_method_that_looks_into_the_model_changes_with_it(recipe, tiny_vit, images):
    scores = judge(case_of(tiny_vit, images, recipe), "randomisation_spearman(stages=2)")
    assert (scores["randomisation_spearman(stages=2)"] < 0.8).all()


# ---- the edges -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Says:
    """A method whose map on the original is one thing, and on any other model another."""

    original: object
    other: float = 0.0

    def __call__(self, model, images, target):
        height, width = images.shape[-2:]
        ramp = torch.arange(height * width, dtype=images.dtype).reshape(height, width)
        values = ramp if model.model is self.original else torch.full_like(ramp, self.other)
        return Attribution(values.expand(1, len(images), height, width).clone(), pixel_grid(images))

    def cost(self, model):
        return Passes()


@pytest.mark.parametrize("other", [0.0, 3.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", FOUR)
def test_a_randomised_model_without_a_map_counts_as_no_similarity_and_is_flagged(name, other, tiny_cnn, images):
    method = Says(tiny_cnn, other)
    adapter = adapt(tiny_cnn)
    case = Case(adapter, images, Logit(0), method(adapter, images, Logit(0)).pixels(), method=method)
    (found,) = judge(case, f"{name}(stages=2)").measurements.values()
    assert_close(found.values, torch.zeros(2, dtype=torch.float64))
    assert found.flags == ("constant map of a randomised model",) * 2


def test_a_constant_map_cannot_be_judged(tiny_cnn, images):
    maps = torch.zeros(2, 32, 32)
    maps[1, 3, 4] = 1
    case = Case(adapt(tiny_cnn), images, Logit(0), maps, method=parse("ixg"))
    for name in FOUR:
        (found,) = judge(case, f"{name}(stages=1)").measurements.values()
        assert found.values.isnan().tolist() == [True, False]
        assert found.flags == ("constant map", "")


@pytest.mark.parametrize("options", ["stages=0", "stages=(1.0, 0.5)", "variant='other'", "statistics='drop'"])
def test_wrong_options_are_refused_when_the_metric_is_built(options):
    with pytest.raises(RecipeError, match="got "):
        parse_metric(f"randomisation_ssim({options})")


@pytest.mark.parametrize("name", FOUR)
def test_the_card_says_what_it_is(name):
    spec = METRICS[name]
    assert (spec.direction, spec.needs) == ("lower", {"method"})
    assert ".. math::" in spec.doc
    assert spec.parity
    built = parse_metric(f"{name}(stages=(0.25, 1.0), absolute=True)")
    assert parse_metric(text(built)) == built
    assert hash(built) == hash(parse_metric(text(built)))


def test_the_rivals_of_the_trained_model_stay(tiny_cnn, images):
    """On a randomised model `top2` chooses other classes, and the map changes for that alone."""
    case = case_of(tiny_cnn, images, "var(ixg, classes='top2')")
    chosen = explain(case.model, images, "var(ixg, classes='top2')", target=case.target).details.classes
    held, anew = (random_maps(case, 1, classes=classes) for classes in ("original", "randomised"))
    (random_model,) = (Cascade(case.model, images).upto(count) for count in counts(1, len(Cascade(case.model, images))))
    for row in range(2):
        recipe = f"var(ixg, classes={tuple(chosen[row].tolist())})"
        want = explain(random_model, images[row : row + 1], recipe, target=case.target.take([row]))
        assert_close(held[0][row], want.pixels()[0])
    assert not torch.equal(held[0], anew[0])
    plain = case_of(tiny_cnn, images)
    assert torch.equal(random_maps(plain, 1)[0], random_maps(plain, 1, classes="randomised")[0])
