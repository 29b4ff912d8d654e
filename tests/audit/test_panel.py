"""The default panel: every recipe runs on its model, controls are recognised, seeds reach what draws."""

import pytest
import torch

from sightline.audit.panel import CONTROLS, choose, is_agnostic, is_control, reseed, short
from sightline.models import adapt
from sightline.recipe import parse, text


def test_every_recipe_of_the_panel_runs_on_its_model(tiny_vit, tiny_cnn, images):
    from sightline import api

    for model in (adapt(tiny_vit), adapt(tiny_cnn)):
        chosen = choose(model)
        assert chosen[-len(CONTROLS) :] == list(CONTROLS)
        assert len(chosen) >= 7
        for recipe in chosen:
            assert api.explain(model, images, recipe, target=1).recipe == recipe
        assert set(short(model)) < set(chosen) - set(CONTROLS)


def test_a_black_box_is_asked_about_patches():
    model = adapt(lambda images: images.mean(dim=(2, 3)))
    assert choose(model) == ["simple_insertion", "simple_deletion", *CONTROLS]


def test_a_module_nobody_knows_gets_gradients_at_the_pixels():
    model = adapt(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2)))
    assert [recipe for recipe in choose(model) if recipe not in CONTROLS] == [
        "ixg",
        "smooth_grad(samples=10)",
        "ig(steps=20)",
    ]


@pytest.mark.parametrize(
    ("recipe", "control", "agnostic"),
    [("random", True, True), ("rectify(sobel)", True, True), ("rollout", False, True), ("smooth(ixg)", False, False)],
)
def test_controls_and_class_agnostic_maps_are_recognised_through_operators(recipe, control, agnostic):
    assert (is_control(parse(recipe)), is_agnostic(parse(recipe))) == (control, agnostic)


def test_a_seed_reaches_methods_inside_operators():
    assert [text(method) for method in reseed(["smooth(random)", "smooth(random(seed=2))", "ixg"], 7)] == [
        "smooth(random(seed=7), seed=7)",
        "smooth(random(seed=2), seed=7)",
        "ixg",
    ]
    assert [text(method) for method in reseed(["random"], None)] == ["random"]
