"""The default panel: every recipe runs on its model, controls are recognised, seeds reach what draws."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from sightline.audit.panel import (
    CONTROLS,
    CONVOLUTIONAL,
    TRANSFORMER,
    ScoredMap,
    choose,
    is_agnostic,
    is_control,
    metric_step,
    ranked,
    reseed,
    short,
    verdict,
)
from sightline.models import adapt
from sightline.recipe import parse, text
from sightline.types import Passes


def test_every_recipe_of_the_panel_runs_on_its_model(tiny_vit, tiny_cnn, images):
    from sightline import api

    for model in (adapt(tiny_vit), adapt(tiny_cnn)):
        chosen = choose(model)
        assert chosen[-len(CONTROLS) :] == list(CONTROLS)
        assert len(chosen) >= 7
        for recipe in chosen:
            assert api.explain(model, images, recipe, target=1).recipe == recipe
        assert set(short(model)) <= set(chosen) - set(CONTROLS)


MEASURED = Path(__file__).parents[2] / "docs" / "measured"


@pytest.mark.parametrize(("kind", "panel"), [("vit", TRANSFORMER), ("cnn", CONVOLUTIONAL)])
def test_the_panel_of_classifiers_is_the_one_that_was_chosen_by_measurement(kind, panel):
    with (MEASURED / f"default-panel-{kind}.csv").open(encoding="utf-8", newline="") as file:
        notes = {row["recipe"]: row["note"] for row in csv.DictReader(file)}
    assert set(panel) == {recipe for recipe, note in notes.items() if note.startswith("chosen")}
    assert notes[panel[0]].startswith("chosen first")


def test_what_was_not_measured_gets_recipes_of_many_families(tiny_cnn):
    values = [recipe for recipe in choose(adapt(tiny_cnn, output="value")) if recipe not in CONTROLS]
    assert values == ["ixg", "grad_cam", "iia2", "smooth_grad(samples=10)", "ig(steps=20)"]
    assert short(adapt(tiny_cnn, output="value")) == values[:3]


def test_a_black_box_is_asked_about_patches():
    model = adapt(lambda images: torch.from_numpy(images.detach().numpy().mean(axis=(2, 3))))
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


def scored(recipe, insertion, deletion=0.0, control=False, flags=()):
    return ScoredMap(recipe, np.zeros((1, 1)), insertion, deletion, {}, Passes(), 0.0, control, False, flags)


def test_the_most_faithful_map_comes_first_and_silent_ones_last_without_a_rank():
    order = ranked(
        [
            scored("low", 0.1),
            scored("flat", 0.9, flags=("constant map",)),
            scored("high", 0.8, 0.2),
            scored("nan", float("nan")),
        ]
    )
    assert [(each.recipe, each.rank) for each in order] == [("high", 1), ("low", 2), ("flat", None), ("nan", None)]


def test_a_method_that_only_equals_a_control_does_not_stand_before_it():
    assert [each.recipe for each in ranked([scored("method", 0.5), scored("control", 0.5, control=True)])] == [
        "control",
        "method",
    ]


def test_the_curves_have_twenty_eight_steps_unless_told_otherwise():
    assert metric_step(torch.zeros(1, 3, 224, 224)) == 1792
    assert metric_step(torch.zeros(1, 3, 2, 2)) == 1


def placed(recipe: str, rank: int | None, ins_del: float = 0.5, control: bool = False) -> ScoredMap:
    return ScoredMap(recipe, np.zeros((1, 1)), ins_del, 0.0, {}, Passes(), 0.0, control, False, rank=rank)


def test_a_control_that_comes_first_is_no_one_to_believe():
    reached = verdict([placed("gae", 2, 0.3), placed("centre", 1, 0.6, control=True)])
    assert reached.headline == "No method beat the controls on this image"
    assert "The best method, gae, comes in place 2." in reached.reason
    assert reached.best is None


def test_the_first_method_is_believed_with_its_lead():
    reached = verdict([placed("gae", 1, 0.6), placed("centre", 2, 0.25, control=True)])
    assert reached.best == "gae"
    assert "It leads the best of them by 0.35." in reached.reason
    assert reached.sentence.startswith("gae is the most faithful map here. Judged by")


def test_the_verdict_says_what_is_missing():
    assert "No control was run" in verdict([placed("gae", 1)]).reason
    assert "trust none" in verdict([placed("gae", 1, -0.1)]).reason
    assert verdict([placed("gae", 1, -0.1)]).best is None
    assert "trust none" not in verdict([placed("gae", 1, 0.1)]).reason
    assert verdict([placed("gae", None)]).headline == "These maps were not scored"
    assert verdict([]).badge == ""
