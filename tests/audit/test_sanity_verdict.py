"""The rule behind the verdicts of a sanity check."""

from math import nan

import pytest

from sightline.audit.sanity_verdict import DOUBTFUL, FAILS, NO_VERDICT, PASSES, SanityScores, sanity_verdict


def scores(curve=(1.0, 0.3, 0.1), absolute=0.1, other_class=0.2, other_image=0.0):
    return SanityScores(curve, absolute, 0.0, 0.0, 0.0, other_class, other_image)


@pytest.mark.parametrize(
    ("found", "agnostic", "word", "said"),
    [
        (scores(), False, PASSES, "Changes with the model"),
        (scores(other_class=1.0), True, PASSES, "by design not with the class"),
        (scores(other_class=1.0), False, DOUBTFUL, "hardly depends on the class"),
        (scores(curve=(1.0, 0.9, 0.2)), False, DOUBTFUL, "later layers"),
        (scores(curve=(1.0, 0.1, 0.9)), False, FAILS, "not depend on the model"),
        (scores(absolute=0.97), False, FAILS, "Spearman of sizes 0.970"),
        (scores(other_image=1.0), False, FAILS, "not depend on the image"),
        (scores(other_image=nan, other_class=nan), False, PASSES, "Changes"),
        (scores(curve=(nan, nan, nan)), False, NO_VERDICT, "constant maps"),
    ],
)
def test_the_verdict_follows_from_the_numbers(found, agnostic, word, said):
    reached = sanity_verdict(found, agnostic=agnostic)
    assert reached.word == word
    assert said.lower() in reached.sentence.lower()
