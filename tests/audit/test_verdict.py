"""The verdict on an image's ranking: which map to believe, if any, and why."""

import numpy as np

from sightline.audit.scored_map import ScoredMap
from sightline.audit.verdict import verdict
from sightline.types import Passes


def scored(recipe: str, rank: int | None, ins_del: float = 0.5, control: bool = False) -> ScoredMap:
    return ScoredMap(recipe, np.zeros((1, 1)), ins_del, 0.0, {}, Passes(), 0.0, control, False, rank=rank)


def test_a_control_that_comes_first_is_no_one_to_believe():
    reached = verdict([scored("gae", 2, 0.3), scored("centre", 1, 0.6, control=True)])
    assert reached.headline == "No method beat the controls on this image"
    assert "The best method, gae, comes in place 2." in reached.reason
    assert reached.best is None


def test_the_first_method_is_believed_with_its_lead():
    reached = verdict([scored("gae", 1, 0.6), scored("centre", 2, 0.25, control=True)])
    assert reached.best == "gae"
    assert "It leads the best of them by 0.35." in reached.reason
    assert reached.sentence.startswith("gae is the most faithful map here. Judged by")


def test_the_verdict_says_what_is_missing():
    assert "No control was run" in verdict([scored("gae", 1)]).reason
    assert "trust none" in verdict([scored("gae", 1, -0.1)]).reason
    assert verdict([scored("gae", 1, -0.1)]).best is None
    assert "trust none" not in verdict([scored("gae", 1, 0.1)]).reason
    assert verdict([scored("gae", None)]).headline == "These maps were not scored"
    assert verdict([]).badge == ""
