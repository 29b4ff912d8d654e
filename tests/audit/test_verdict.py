"""The verdict under several fills: believed where they agree, withheld where they do not or leave no room."""

import numpy as np

from sightline.audit.fills import FillRoom, FillScores
from sightline.audit.panel import ScoredMap, ranked
from sightline.audit.verdict import verdict
from sightline.types import Passes

FILLS = ("blur", "strong_blur", "zero", "noise")


def scored(recipe, values, control=False, counted=FILLS):
    fills = FillScores({name: (value,) for name, value in zip(FILLS, values, strict=True)}, counted)
    return ScoredMap(recipe, np.zeros((1, 1)), 0.0, 0.0, {}, Passes(), 0.0, control, False, fills=fills)


def rooms(*filled):
    return [FillRoom(name, value, 0.9, value <= 0.45) for name, value in zip(FILLS, filled, strict=True)]


FULL = rooms(0.1, 0.1, 0.1, 0.1)


def test_a_map_above_the_best_control_of_every_fill_is_believed():
    maps = ranked([scored("gae", (0.5, 0.4, 0.3, 0.2)), scored("centre", (0.4, 0.0, 0.1, 0.1), control=True)])
    reached = verdict(maps, FULL)
    assert (reached.best, reached.withheld, maps[0].share) == ("gae", "", 1.0)
    assert "under 4 fills." in reached.reason
    assert "It leads the best of them by 0.20 and is above all of them under every fill." in reached.reason


def test_the_verdict_is_contested_where_another_control_wins_under_one_fill():
    controls = [
        scored("centre", (0.1, 0.1, 0.1, 0.1), control=True),
        scored("sobel", (0.0, 0.0, 0.6, 0.0), control=True),
    ]
    maps = ranked([scored("gae", (0.5, 0.5, 0.5, 0.5)), *controls])
    reached = verdict(maps, FULL)
    assert (reached.best, reached.withheld, maps[0].share) == (None, "contested", 0.75)
    assert reached.headline == "Contested: the fills disagree about gae"
    assert "beats the best control under 3 of 4 fills only, not under zero." in reached.reason


def test_the_order_is_that_of_the_mean_over_fills_and_not_of_one():
    maps = ranked([scored("norm", (-0.1, -0.1, 0.9, -0.1), control=True), scored("gae", (0.4, 0.4, 0.4, 0.4))])
    assert [each.recipe for each in maps] == ["gae", "norm"]
    assert verdict(maps, FULL).withheld == "contested"


def test_without_room_under_most_fills_nothing_is_believed():
    maps = ranked([scored("gae", (0.5, 0.5, 0.5, 0.5)), scored("centre", (0.1, 0.1, 0.1, 0.1), control=True)])
    reached = verdict(maps, rooms(0.83, 0.7, 0.6, 0.1))
    assert (reached.best, reached.withheld) == (None, "no room")
    assert reached.headline == "No room: the blurred image already gives the class .83"
    assert "Under 3 of 4 fills" in reached.reason


def test_a_fill_without_room_is_left_out_and_named():
    counted = FILLS[1:]
    maps = ranked(
        [
            scored("gae", (0.0, 0.5, 0.5, 0.5), counted=counted),
            scored("centre", (0.1, 0.1, 0.1, 0.1), control=True, counted=counted),
        ]
    )
    reached = verdict(maps, rooms(0.83, 0.1, 0.1, 0.1))
    assert (reached.best, maps[0].share, maps[0].score) == ("gae", 1.0, 0.5)
    assert (
        "under 3 fills. Left out, because the filled image still gives the class that much: blur .83." in reached.reason
    )


def test_without_a_control_the_fills_agree_where_all_scores_are_above_zero():
    assert verdict(ranked([scored("gae", (0.5, 0.1, 0.2, 0.2))]), FULL).best == "gae"
    contested = verdict(ranked([scored("gae", (0.5, -0.1, 0.2, 0.2))]), FULL)
    assert contested.withheld == "contested"
    assert "scores above zero under 3 of 4 fills only, not under strong blur." in contested.reason


def test_a_control_in_front_is_said_before_any_disagreement():
    maps = ranked([scored("gae", (0.1, 0.1, 0.1, 0.1)), scored("centre", (0.4, 0.4, 0.0, 0.4), control=True)])
    reached = verdict(maps, FULL)
    assert reached.headline == "No method beat the controls on this image"
    assert (reached.best, reached.withheld) == (None, "")
