from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import auc
from torch.testing import assert_close

from sightline import adapt
from sightline.errors import InputError, RecipeError
from sightline.metrics.case import Case
from sightline.metrics.faithfulness.positive_negative import (
    TENTHS,
    Negative,
    Positive,
    ProbabilityNegative,
    ProbabilityPositive,
)
from sightline.metrics.judge import judge
from sightline.types import Contrast, Logit

SIZE = (5, 8)  # forty pixels: a tenth is four
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.1)
ALL = (Positive, Negative, ProbabilityPositive, ProbabilityNegative)


def counting_white():
    """Probability of class 0: 0.02 and 0.024 for every pixel that is white in raw space; class 1 gets the rest."""
    mean, std = (torch.tensor(x, dtype=torch.float64)[:, None, None] for x in (MEAN, STD))

    def logits(images):
        p = 0.02 + 0.96 * (images * std + mean).mean(dim=(1, 2, 3))
        return torch.stack([p.log(), (1 - p).log()], dim=1)

    return adapt(logits, mean=MEAN, std=STD)


def white(count=1):
    return counting_white().normalise(torch.ones(count, 3, *SIZE, dtype=torch.float64))


def left_half():
    """A picture whose left half is white and whose right half is black; class 0 has a probability of one half."""
    raw = torch.zeros(1, 3, *SIZE, dtype=torch.float64)
    raw[..., :4] = 1
    return counting_white().normalise(raw)


def test_pixels_go_black_in_raw_space_and_fractions_are_cut_down():
    case = Case(counting_white(), white(), Logit(0), torch.rand(1, *SIZE))
    found = ProbabilityPositive()(case)
    kept = 1 - torch.tensor([0.0, *TENTHS]).double()
    assert_close(found.curve[0], 0.02 + 0.96 * kept)
    assert_close(ProbabilityNegative()(case).curve, found.curve)  # all pixels are alike
    odd = ProbabilityPositive(fractions=(0.11, 0.99))(case)
    assert_close(odd.curve[0], 0.02 + 0.96 * torch.tensor([1, 36 / 40, 1 / 40]).double())


def test_accuracy_is_one_until_the_other_class_wins():
    case = Case(counting_white(), white(), Logit(0), torch.rand(1, *SIZE))
    found = Positive()(case)
    want = (1 - torch.tensor(TENTHS).double() > 0.5).double()
    assert_close(found.curve[0, :4], want[:4])
    assert_close(found.curve[0, 5:], want[5:])


def test_positive_takes_the_important_pixels_and_negative_the_others():
    maps = torch.zeros(1, *SIZE)
    maps[..., :4] = torch.rand(5, 4) + 1  # what is white is important
    case = Case(counting_white(), left_half(), Logit(0), maps)
    falls = ProbabilityPositive()(case).curve[0]
    stays = ProbabilityNegative()(case).curve[0]
    assert_close(falls[5:], torch.full((5,), 0.02).double())
    assert_close(stays[:6], torch.full((6,), 0.5).double())
    assert (falls.diff() <= 0).all()
    assert falls.sum() < stays.sum()


@pytest.mark.parametrize("metric", ALL)
def test_a_map_and_its_negative_change_places(metric):
    opposite = {
        Positive: Negative,
        Negative: Positive,
        ProbabilityPositive: ProbabilityNegative,
        ProbabilityNegative: ProbabilityPositive,
    }[metric]
    images, maps = torch.randn(2, 3, *SIZE, dtype=torch.float64), torch.randn(2, *SIZE)
    model = counting_white()
    first = metric()(Case(model, images, Logit(0), maps)).curve
    assert_close(first, opposite()(Case(model, images, Logit(0), -maps)).curve, equal_nan=True)


@pytest.mark.parametrize(("zero", "places"), [(False, TENTHS), (True, (0.0, *TENTHS))])
def test_areas_are_plain_trapezoids_raw_or_divided_by_the_width(zero, places):
    case = Case(counting_white(), white(2), Logit(0), torch.rand(2, *SIZE))
    for metric in ALL:
        raw, mean = (metric(include_zero=zero, area=area)(case) for area in ("raw", "mean"))
        want = [auc(places, curve.numpy()) for curve in raw.curve]
        assert raw.values.tolist() == pytest.approx(want, abs=1e-12)
        assert mean.values.tolist() == pytest.approx([w / (places[-1] - places[0]) for w in want], abs=1e-12)
        assert raw.curve.shape == (2, len(places))


def test_the_mean_over_images_is_the_area_under_the_accuracy_of_the_set():
    images = torch.randn(6, 3, *SIZE, dtype=torch.float64) * 0.3
    case = Case(counting_white(), images, Logit(0), torch.rand(6, *SIZE), labels=(0, 1, 0, 1, 0, 1))
    found = Positive()(case)
    assert found.values.mean().item() == pytest.approx(auc(TENTHS, found.curve.mean(dim=0).numpy()))


def test_accuracy_asks_for_the_label_and_probability_for_what_was_explained():
    case = Case(counting_white(), white(2), Logit(0), torch.rand(2, *SIZE), labels=(0, 1))
    hits = Positive(include_zero=True)(case).curve
    assert_close(hits[0] + hits[1], torch.ones(10).double())
    p = ProbabilityPositive()(case).curve
    assert_close(p[0], p[1])


def test_a_contrast_is_followed_and_has_no_accuracy():
    case = Case(counting_white(), white(), Contrast(0, 1), torch.rand(1, *SIZE))
    assert ProbabilityPositive()(case).curve[0, 0].item() == pytest.approx(np.log(0.98 / 0.02))
    with pytest.raises(InputError, match="labels"):
        Positive()(case)


def test_another_fill_is_another_curve():
    case = Case(counting_white(), white(), Logit(0), torch.rand(1, *SIZE))
    end = ProbabilityPositive(fill="zero")(case).curve[0, -1].item()
    assert end == pytest.approx(0.02 + 0.96 * (0.1 + 0.9 * 0.5), abs=1e-9)


def test_metrics_of_the_same_masks_share_their_passes():
    case = Case(counting_white(), white(2), Logit(0), torch.rand(2, *SIZE))
    got = judge(case, ["positive", "probability_positive", "positive(include_zero=True, area='mean')"])
    assert got.passes.forward == 2 * 10
    assert judge(case, ["negative", "probability_negative"]).passes.forward == 2 * 9
    assert Positive().cost(case.model).forward == 9
    assert ProbabilityPositive().cost(case.model).forward == 10


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 1e30])
def test_a_constant_map_has_a_score_and_a_flag(value):
    case = Case(counting_white(), white(), Logit(0), torch.full((1, *SIZE), value))
    for metric in ALL:
        found = metric()(case)
        assert found.values.isfinite().all()
        assert found.flags == ("constant map",)


@pytest.mark.parametrize(
    "options",
    [
        {"fractions": (0.5,)},
        {"fractions": (0.5, 0.1)},
        {"fractions": (0.0, 0.5)},
        {"area": "half"},
        {"fill": "red"},
        {"tie": "x"},
    ],
)
def test_wrong_options_are_refused(options):
    with pytest.raises(RecipeError, match="got"):
        Positive(**options)


@pytest.mark.shared
@pytest.mark.timeout(900)
def test_hits_and_areas_are_those_of_the_authors_on_photographs(shared, real_vit):
    golden = np.load(shared / "golden" / "photo" / "metric_posneg_A.npz")
    images = (torch.from_numpy(golden["rgb_uint8"]).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5
    labels = tuple(int(label) for label in golden["labels"])
    target = Logit(tuple(int(label) for label in golden["predicted"]))
    case = Case(adapt(real_vit), images, target, torch.from_numpy(golden["vis"]), labels=labels)
    assert judge(case, ["positive", "negative"]).passes.forward == 8 * 18
    highest = case.clean.softmax(dim=-1).amax(dim=-1)
    for metric, short in ((Positive(), "pos"), (Negative(), "neg")):
        found = metric(case)
        assert_close(found.curve.T, torch.from_numpy(golden[f"{short}_hits"]).float(), rtol=0, atol=0)
        assert found.values.mean().item() == pytest.approx(float(golden[f"{short}_auc_trapz_f64"]), abs=1e-9)
        change = metric.logits(case).softmax(dim=-1).amax(dim=-1) - highest[:, None]
        assert_close(change.T, torch.from_numpy(golden[f"{short}_prob_diff"]), rtol=0, atol=1e-4)
