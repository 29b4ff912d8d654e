"""Maps with their scores: the order they are put in, and the curves they are scored by."""

import numpy as np
import torch

from sightline.audit.scored_map import ScoredMap, metric_step, ranked
from sightline.types import Passes


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
