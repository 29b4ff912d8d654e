"""Maximum sensitivity against captum: its stored numbers, and the library itself on our perturbations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.methods import reference_cnn
from torch.testing import assert_close

from sightline import adapt, explain
from sightline.errors import RecipeError
from sightline.metrics.case import Case
from sightline.metrics.robustness.max_sensitivity import MaxSensitivity, sensitivity
from sightline.recipe import parse
from sightline.types import Logit

captum = pytest.importorskip("captum.metrics")


def gradients(model, images, target=2):
    images = images.clone().requires_grad_()
    return torch.autograd.grad(model(images)[:, target].sum(), images)[0]


@pytest.mark.parametrize("kind", ["grad", "ixg"])
def test_stored_captum_numbers(kind):
    model, image = reference_cnn.network("tiny_cnn")
    numbers = np.load(reference_cnn.FOLDER / "metric_infidelity_sensitivity_tiny_cnn.npz")
    moved = image + 0.2 * torch.from_numpy(numbers["noise"]).double()

    def map_of(images):
        found = gradients(model, images)
        return found * images if kind == "ixg" else found

    got = sensitivity(map_of(image), map_of(moved)[:, None])
    assert got.item() == pytest.approx(numbers[f"sensitivity_max_{kind}"].item(), rel=1e-6)


def test_captum_itself_agrees_on_our_perturbations(tiny_cnn, images, parity):
    metric = MaxSensitivity(samples=4, radius=0.1)
    moved = torch.stack(metric.perturbed(images), dim=1).flatten(0, 1)

    def attribute(given, target):
        given = given[0] if isinstance(given, tuple) else given
        return (explain(tiny_cnn, given, "ixg", target=Logit(tuple(int(t) for t in target))).pixels(),)

    want = captum.sensitivity_max(
        attribute,
        images,
        perturb_func=lambda *_: moved,
        n_perturb_samples=4,
        max_examples_per_batch=8,
        target=torch.tensor([1, 3]),
    )
    maps = explain(tiny_cnn, images, "ixg", target=Logit((1, 3))).pixels()
    got = metric(Case(adapt(tiny_cnn), images, Logit((1, 3)), maps, method=parse("ixg"))).values
    assert_close(got, want.double(), rtol=1e-9, atol=1e-12)
    parity("max_sensitivity", "captum sensitivity_max", got, want, 1e-9)


def test_the_perturbations_stay_in_the_box_and_belong_to_the_image(images):
    metric = MaxSensitivity(samples=3, radius=0.05)
    found = torch.stack(metric.perturbed(images))
    offsets = found - images
    assert offsets.abs().max() <= 0.05
    assert offsets.abs().max() > 0.045
    assert offsets.mean().abs() < 0.005
    assert_close(torch.stack(metric.perturbed(images[1:])), found[:, 1:], rtol=0, atol=0)
    other = torch.stack(MaxSensitivity(samples=3, radius=0.05, seed=1).perturbed(images))
    assert not torch.equal(other, found)


def test_what_does_not_change_is_not_sensitive_and_more_samples_find_more(tiny_cnn, images):
    adapter = adapt(tiny_cnn)

    def score(recipe, **options):
        maps = explain(adapter, images, recipe, target=1).pixels()
        return MaxSensitivity(**options)(Case(adapter, images, Logit(1), maps, method=parse(recipe))).values

    assert_close(score("centre", samples=2), torch.zeros(2, dtype=torch.float64))
    assert (score("ixg", samples=6) >= score("ixg", samples=2)).all()
    assert (score("ixg", samples=2, radius=0.3) > score("ixg", samples=2, radius=0.003)).all()


def test_a_map_of_zeros_has_no_relative_change(tiny_cnn, images):
    case = Case(adapt(tiny_cnn), images, Logit(1), torch.zeros(2, 32, 32), method=parse("ixg"))
    found = MaxSensitivity(samples=1)(case)
    assert not torch.isfinite(found.values).any()
    assert found.flags == ("constant map; zero map",) * 2


@pytest.mark.parametrize("options", [{"samples": 0}, {"radius": 0.0}, {"radius": float("inf")}])
def test_wrong_options_are_refused(options):
    with pytest.raises(RecipeError, match=f"got {next(iter(options))}="):
        MaxSensitivity(**options)
