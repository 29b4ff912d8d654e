"""Passes that methods share: the same maps and the same count of passes, fewer of them run."""

from __future__ import annotations

import pytest
import torch

import sightline
from sightline.models.passes import SharedPasses, counting, ready, shared, sharing

VIT = [
    "raw_attention", "rollout", "grad_rollout", "gae", "plus(gae)", "libra(gae)", "grad_sam", "att_ixg", "att_cat",
    "cat", "att_ig", "tam", "t_attn", "bi_attn", "grad_cam", "hires_cam", "layer_cam", "gradient", "ixg",
    "plus(libra(ixg))", "att_in", "globenc", "alti", "var(gae)",
]  # fmt: skip
CNN = ["grad_cam", "hires_cam", "xgrad_cam", "layer_cam", "gradient", "ixg", "libra(ixg)", "smooth_grad(samples=2)"]


@pytest.fixture(scope="module", params=["vit", "cnn"])
def case(request):
    model = sightline.load(f"bundled/shapes-{request.param}")
    images = model.normalise(torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0)))
    return model, images, VIT if request.param == "vit" else CNN


@pytest.mark.filterwarnings("ignore::sightline.errors.SightlineWarning")
def test_maps_and_counts_are_the_same_to_the_last_bit(case):
    model, images, recipes = case
    passes, target = SharedPasses(), torch.tensor([0, 1, 2])
    spent = 0.0
    for recipe in [*recipes, *recipes[:6]]:
        alone = sightline.explain(model, images, recipe, target=target)
        with sharing(images, passes):
            together = sightline.explain(model, images, recipe, target=target)
        assert torch.equal(alone.values, together.values), recipe
        assert alone.passes == together.passes, recipe
        spent += alone.passes.forward
    assert 0.2 * spent < passes.saved.forward < spent
    assert passes.seconds > 0


def double(model, images, factor=2.0):
    return model.predict(images) * factor


marked = shared(double)


def runs(model, images, *calls, passes=None):
    """Return how many of these calls ran the model."""
    passes = passes or SharedPasses()
    count = 0
    for of, *options in calls:
        before = passes.saved
        with ready(model), sharing(images, passes), counting() as meter:
            marked(model, of, *options)
        assert meter.passes.forward == len(of)
        count += passes.saved == before
    return count


def test_what_differs_is_computed_for_each(case):
    model, images, _ = case
    assert runs(model, images, (images,), (images, 2.0), (images[:2],), (images[:2],), (images, 3.0)) == 3
    assert runs(model, images, (images + 0,), (images + 0,), (images.clone(),)) == 3  # not the images themselves


def test_nothing_is_shared_outside_or_while_the_model_is_watched(case):
    model, images, _ = case
    passes = SharedPasses()
    site = next(iter(model.sites))
    with ready(model):
        marked(model, images)
        for _ in range(2):
            with sharing(images, passes), model.capture(site):
                marked(model, images)
    with sharing(images, passes):
        marked(model, images)
        marked(model, images)  # nobody notes changes here
    assert passes.saved.forward == 0


def test_images_that_were_changed_in_place_are_other_images(case):
    model, images, _ = case
    own, passes = images.clone(), SharedPasses()
    assert runs(model, own, (own,), passes=passes) == 1
    own.mul_(0.5)
    assert runs(model, own, (own,), passes=passes) == 1


def test_an_option_that_cannot_be_compared_is_no_error(case):
    model, images, _ = case
    assert runs(model, images, (images, torch.tensor(2.0)), (images, torch.tensor(2.0))) == 2


def test_memory_is_bounded_and_the_oldest_go_first(case):
    model, images, _ = case
    size = model.predict(images).nbytes
    passes = SharedPasses(limit=2 * size)
    calls = [(images, 1.0), (images, 2.0), (images, 3.0)]
    assert runs(model, images, *calls, (images, 3.0), (images, 2.0), (images, 1.0), passes=passes) == 4
