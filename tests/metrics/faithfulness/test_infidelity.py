"""Infidelity against captum: its stored numbers, and the library itself on our perturbations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.methods import reference_cnn
from torch.testing import assert_close

from sightline import adapt, explain
from sightline.errors import RecipeError
from sightline.metrics.case import Case
from sightline.metrics.faithfulness.infidelity import Infidelity, infidelity
from sightline.metrics.judge import judge
from sightline.models.passes import counting
from sightline.types import Logit, Probability

captum = pytest.importorskip("captum.metrics")


@pytest.mark.parametrize(("attribution", "normalise"), [("grad", False), ("grad", True), ("ixg", False)])
def test_stored_captum_numbers(attribution, normalise):
    model, image = reference_cnn.network("tiny_cnn")
    numbers = np.load(reference_cnn.FOLDER / "metric_infidelity_sensitivity_tiny_cnn.npz")
    noise = torch.from_numpy(numbers["noise"]).double()
    given = torch.from_numpy(numbers["attribution_grad"]).double()
    given = given * image[0] if attribution == "ixg" else given
    with torch.no_grad():
        changes = model(image)[:, 2] - model(image - noise)[:, 2]
    got = infidelity((noise * given).sum(dim=(1, 2, 3))[:, None], changes[:, None], normalise=normalise)
    want = numbers["infidelity_grad_normalized" if normalise else f"infidelity_{attribution}"]
    assert got.item() == pytest.approx(want.item(), rel=1e-6)


def theirs(metric, model, images, maps, target):
    """Let captum compute the same, on the perturbations of the metric."""
    drawn = list(metric.perturbed(adapt(model), images))
    weights = torch.stack([one[0] for one in drawn], dim=1).flatten(0, 1)  # captum repeats each image n times in a row
    moved = torch.stack([one[1] for one in drawn], dim=1).flatten(0, 1)
    three = maps[:, None].expand_as(images) / 3  # our maps are sums over channels

    def perturb(_images, *_):
        return weights[:, None].expand_as(moved), moved

    return captum.infidelity(
        model,
        perturb,
        images,
        three,
        target=target,
        n_perturb_samples=metric.samples,
        max_examples_per_batch=len(moved),
        normalize=metric.normalise,
    )


@pytest.mark.parametrize("perturbation", ["squares", "noise"])
@pytest.mark.parametrize("normalise", [False, True])
def test_captum_itself_agrees_on_our_perturbations(perturbation, normalise, tiny_cnn, images, parity):
    metric = Infidelity(samples=7, perturbation=perturbation, normalise=normalise, window=9)
    maps = explain(tiny_cnn, images, "ixg", target=[1, 3]).pixels()
    got = metric(Case(adapt(tiny_cnn), images, Logit((1, 3)), maps)).values
    assert_close(got, theirs(metric, tiny_cnn, images, maps, [1, 3]).double(), rtol=1e-9, atol=1e-12)
    parity("infidelity", "captum infidelity", got, theirs(metric, tiny_cnn, images, maps, [1, 3]), 1e-9)


class Linear(torch.nn.Module):
    def __init__(self, shape=(3, 12, 10)):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(shape, dtype=torch.float64))

    def forward(self, images):
        score = (images * self.weight).sum(dim=(1, 2, 3))
        return torch.stack([score, -score], dim=1)


def test_on_a_linear_model_the_right_maps_have_no_infidelity():
    model, images = Linear(), torch.randn(2, 3, 12, 10, dtype=torch.float64)
    exact = (model.weight * images).sum(dim=1).detach()
    case = Case(adapt(model), images, Logit(0), exact)
    assert_close(Infidelity(samples=9, normalise=False)(case).values, torch.zeros(2, dtype=torch.float64))
    gradient = model.weight.sum(dim=0).expand(2, -1, -1).detach()
    case = Case(adapt(model), images, Logit(0), gradient)
    metric = Infidelity(samples=9, normalise=False, perturbation="noise")
    assert_close(metric(case).values, torch.zeros(2, dtype=torch.float64))


def test_a_good_map_beats_its_shuffle_and_the_unit_does_not_matter():
    model, images = Linear(), torch.randn(2, 3, 12, 10, dtype=torch.float64)
    exact = (model.weight * images).sum(dim=1).detach()
    shuffled = exact.flatten(1)[:, torch.randperm(120)].view_as(exact)
    adapter = adapt(model)

    def score(maps, **options):
        return Infidelity(samples=30, **options)(Case(adapter, images, Logit(0), maps)).values

    assert (score(exact) < score(shuffled)).all()
    assert_close(score(shuffled * -250), score(shuffled))
    assert (score(exact * 2, normalise=False) > score(exact, normalise=False)).all()


def test_zero_maps_score_the_mean_squared_change(tiny_cnn, images):
    adapter = adapt(tiny_cnn)
    case = Case(adapter, images, Probability(1), torch.zeros(2, 32, 32))
    metric = Infidelity(samples=4)
    changes = [
        Probability(1)(case.clean) - Probability(1)(adapter.predict(moved))
        for _, moved in metric.perturbed(adapter, images)
    ]
    found = metric(case)
    assert_close(found.values, torch.stack(changes).square().mean(dim=0))
    assert found.flags == ("constant map",) * 2
    assert torch.isfinite(found.values).all()


def test_an_image_is_judged_alike_alone_and_in_a_batch_and_the_cost_is_as_said(tiny_cnn, images):
    maps = torch.randn(2, 32, 32)
    adapter = adapt(tiny_cnn)
    adapter.batch = 3
    metric = Infidelity(samples=5, perturbation="noise")
    with counting() as meter:
        both = metric(Case(adapter, images, Logit((1, 3)), maps)).values
    assert meter.passes.forward == 2 * metric.cost(adapter).forward
    alone = metric(Case(adapter, images[1:], Logit(3), maps[1:])).values
    assert_close(both[1:], alone, rtol=0, atol=1e-9)


def test_squares_lie_inside_and_have_their_side(tiny_cnn):
    images = torch.randn(3, 3, 12, 20)
    metric = Infidelity(samples=30, window=5)
    for weights, moved in metric.perturbed(adapt(tiny_cnn), images):
        assert_close(weights.sum(dim=(1, 2)), torch.full((3,), 25.0, dtype=torch.float64))
        assert torch.equal(moved, images.masked_fill(weights.bool()[:, None], 0))
    (whole, _), *_ = Infidelity(samples=1, window=99).perturbed(adapt(tiny_cnn), images)
    assert whole.sum().item() == 3 * 12 * 12


@pytest.mark.parametrize(
    "options", [{"samples": 0}, {"sigma": 0.0}, {"window": 0}, {"perturbation": "salt"}, {"fill": "pink"}]
)
def test_wrong_options_are_refused(options):
    with pytest.raises(RecipeError, match="got "):
        Infidelity(**options)


def test_it_is_judged_by_name(tiny_cnn, images):
    case = Case(adapt(tiny_cnn), images, Logit(1), torch.randn(2, 32, 32))
    assert torch.isfinite(judge(case, "infidelity(samples=2)")["infidelity(samples=2)"]).all()
