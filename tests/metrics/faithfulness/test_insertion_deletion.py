from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from sightline import adapt
from sightline.metrics.case import Case, area
from sightline.metrics.faithfulness.insertion_deletion import Deletion, InsDel, Insertion
from sightline.metrics.judge import judge
from sightline.perturb.fill import Blur, Zero
from sightline.types import Contrast, Logit

SIZE = (6, 7)
PIXELS = 42


def weighing(weights):
    """A model of two classes whose probability of class 0 is 0.1 + 0.8 Σ w x: every curve of it can be written down."""

    def logits(images):
        p = 0.1 + 0.8 * (images.mean(dim=1) * weights).sum(dim=(1, 2))
        return torch.stack([p.log(), (1 - p).log()], dim=1)

    return adapt(logits, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def white(count=1):
    return torch.ones(count, 3, *SIZE, dtype=torch.float64)


def shares(seed=0):
    """Positive weights that sum to one: what each pixel of a white image is worth."""
    weights = torch.rand(SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) ** 3 + 0.01
    return weights / weights.sum()


def values(metric, model, images, maps, target=None):
    return metric(Case(model, images, target or Logit(0), maps)).values


def curve_by_hand(weights, maps, step):
    """The probability once the first k · step pixels of a white image have gone black."""
    order = np.argsort(-maps.flatten().numpy(), kind="stable")
    gone = np.concatenate([[0], np.cumsum(weights.flatten().numpy()[order])])
    counts = [*range(0, PIXELS, step), PIXELS]
    return 0.1 + 0.8 * (1 - gone[counts])


@pytest.mark.parametrize("step", [1, 6, 10, 42, 100])
def test_on_a_linear_model_the_curves_and_areas_can_be_written_down(step):
    weights = shares()
    maps = torch.randn(1, *SIZE, generator=torch.Generator().manual_seed(4))
    deleted = curve_by_hand(weights, maps, step)
    inserted = 1.0 - deleted  # the same pixels enter: 0.1 + 0.8 (1 - rest)
    case = Case(weighing(weights), white(), Logit(0), maps)

    def by_hand(curve):
        return (curve.sum() - curve[0] / 2 - curve[-1] / 2) / (len(curve) - 1)

    got = Deletion(step=step)(case)
    assert_close(got.curve[0].numpy(), deleted)
    assert got.values.item() == pytest.approx(by_hand(deleted), abs=1e-12)
    got = Insertion(step=step, fill="zero")(case)
    assert_close(got.curve[0].numpy(), inserted)
    assert got.values.item() == pytest.approx(by_hand(inserted), abs=1e-12)
    got = InsDel(step=step, fill=("zero", "zero"))(case)
    assert_close(got.curve[0].numpy(), inserted - deleted)
    assert got.values.item() == pytest.approx(by_hand(inserted - deleted), abs=1e-12)


def test_the_area_is_the_normalised_trapezoid():
    curve = torch.rand(3, 9)
    want = (curve.double().sum(dim=1) - curve[:, 0].double() / 2 - curve[:, -1].double() / 2) / 8
    assert_close(area(curve), want)
    assert area(torch.tensor([1.0, 0.0])).item() == 0.5


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), step=st.integers(1, 12))
def test_a_perfect_map_beats_its_shuffle_beats_its_negation(seed, step):
    weights = shares(seed)
    model = weighing(weights)
    generator = torch.Generator().manual_seed(seed)
    shuffled = weights.flatten()[torch.randperm(PIXELS, generator=generator)].view(SIZE)
    maps = torch.stack([weights, shuffled, -weights])
    perfect, shuffle, negation = values(Insertion(step, "zero"), model, white(3), maps).tolist()
    assert perfect >= shuffle >= negation
    assert perfect > negation
    perfect, shuffle, negation = values(Deletion(step), model, white(3), maps).tolist()
    assert perfect <= shuffle <= negation
    assert perfect < negation


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000))
def test_no_map_beats_the_perfect_one_and_none_falls_below_its_negation(seed):
    weights = shares()
    maps = torch.stack([weights, torch.rand(SIZE, generator=torch.Generator().manual_seed(seed)).double(), -weights])
    best, other, worst = values(InsDel(6, ("zero", "zero")), weighing(weights), white(3), maps).tolist()
    assert best >= other >= worst
    assert best == pytest.approx(-worst)  # the curves of a map and its negation mirror each other, as the step divides


@settings(max_examples=20, deadline=None)
@given(factor=st.sampled_from([0.25, 0.5, 2.0, 1024.0]), shift=st.integers(-8, 8), step=st.integers(1, 12))
def test_scaling_and_shifting_a_map_changes_nothing(factor, shift, step):
    maps = torch.randint(-9, 9, (2, *SIZE), generator=torch.Generator().manual_seed(1)).float()
    model = weighing(shares())
    for metric in (Insertion(step, "zero"), Deletion(step), InsDel(step, ("mean", "zero"))):
        want = values(metric, model, white(2), maps)
        assert_close(values(metric, model, white(2), maps * factor + shift), want, rtol=0, atol=0)


def test_ties_are_taken_in_row_major_order():
    weights = shares()
    rows = torch.arange(PIXELS, 0, -1).view(1, *SIZE).float()
    tied = torch.zeros(1, *SIZE)
    assert_close(
        values(Deletion(5), weighing(weights), white(), tied), values(Deletion(5), weighing(weights), white(), rows)
    )


def test_random_ties_are_repeatable_and_differ_from_row_major_ones():
    model, tied = weighing(shares()), torch.zeros(1, *SIZE)
    first, again, other, plain = (
        values(metric, model, white(), tied).item()
        for metric in (
            Deletion(5, tie="random"),
            Deletion(5, tie="random"),
            Deletion(5, tie="random", seed=1),
            Deletion(5),
        )
    )
    assert first == again
    assert len({first, other, plain}) == 3


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 1e30])
def test_a_constant_map_has_a_score_and_a_flag(value):
    maps = torch.stack([torch.full(SIZE, value), torch.rand(SIZE)])
    for metric in (Insertion(), Deletion(), InsDel()):
        found = metric(Case(weighing(shares()), white(2), Logit(0), maps))
        assert torch.isfinite(found.values).all()
        assert found.flags == ("constant map", "")


def test_huge_negative_and_sparse_maps_are_judged():
    one = torch.zeros(SIZE)
    one[3, 3] = 1.0
    maps = torch.stack([torch.rand(SIZE) * 3e38, -torch.rand(SIZE), one])
    for metric in (Insertion(5), Deletion(5), InsDel(5)):
        found = metric(Case(weighing(shares()), white(3), Logit(0), maps))
        assert torch.isfinite(found.values).all()
        assert found.flags == ("", "", "")


def test_an_image_of_one_pixel_leaves_the_two_ends():
    model = adapt(lambda images: torch.cat([images.mean(dim=(2, 3))], dim=1))
    case = Case(model, torch.rand(1, 3, 1, 1), Logit(0), torch.rand(1, 1, 1))
    found = Deletion()(case)
    assert found.curve.shape == (1, 2)
    assert_close(found.values, found.curve.double().mean(dim=1))


def test_a_step_as_large_as_the_image_sees_no_map():
    maps = torch.rand(2, *SIZE)
    first, second = values(Deletion(), weighing(shares()), white(2), maps).tolist()
    assert first == second


def test_another_score_follows_another_number():
    model, maps = weighing(shares()), torch.rand(1, *SIZE)
    case = Case(model, white(), Logit(0), maps)
    p = Deletion(5)(case).curve
    assert_close(Deletion(5, score="log_probability")(case).curve, p.log())
    assert_close(Deletion(5, score="logit")(case).curve, p.log())  # the logits of this model are log probabilities
    assert_close(Deletion(5, score="accuracy")(case).curve, (p > 0.5).double())


def test_a_contrast_is_followed_itself():
    model, maps = weighing(shares()), torch.rand(1, *SIZE)
    p = values(Deletion(PIXELS), model, white(), maps)
    assert p.item() == pytest.approx(0.5)
    found = Deletion(PIXELS)(Case(model, white(), Contrast(0, 1), maps)).curve[0]
    assert_close(found, torch.tensor([9.0, 1 / 9], dtype=torch.float64).log())


def test_options_choose_the_curve():
    assert Insertion().curve.fill == Blur(5, 5.0)
    assert Insertion(radius=15, sigma=31.0).curve.fill == Blur(15, 31.0)
    assert Deletion().curve.fill == Zero()
    insert, delete = InsDel(step=9, radius=15, sigma=31.0).curves
    assert insert == Insertion(step=9, radius=15, sigma=31.0).curve
    assert delete == Deletion(step=9).curve


@pytest.mark.parametrize(
    ("metric", "size", "forward"),
    [
        (Insertion(), (224, 224), 225),
        (Deletion(), None, 225),
        (InsDel(), (224, 224), 449),
        (InsDel(fill=("zero", "zero")), (224, 224), 448),
        (Deletion(step=50), (12, 10), 4),
    ],
)
def test_the_cost_is_counted_from_the_steps(metric, size, forward):
    model = adapt(lambda images: images.mean(dim=(2, 3)), input_size=size)
    assert metric.cost(model).forward == forward
    assert metric.cost(model).backward == 0


@pytest.fixture
def golden(shared):
    return np.load(shared / "golden" / "photo" / "metric_rise_A.npz")


@pytest.fixture
def photograph(shared):
    return torch.from_numpy(np.load(shared / "golden" / "photo" / "inputs_A.npz")["input"])


@pytest.mark.shared
@pytest.mark.timeout(900)  # 449 forward passes: seconds on an idle core, minutes on a crowded machine
@pytest.mark.parametrize(
    "name", ["gae", *(pytest.param(name, marks=pytest.mark.slow) for name in ("rollout", "random"))]
)
def test_curves_and_areas_are_those_of_the_authors_on_a_photograph(name, golden, photograph, real_vit):
    maps = torch.from_numpy(golden[f"map_{name}"])[None]
    scores = judge(
        Case(adapt(real_vit), photograph, Logit(int(golden["target"])), maps), ["insertion", "deletion", "ins_del"]
    )
    inserted, deleted = golden[f"ins_auc_{name}_f64"], golden[f"del_auc_{name}_f64"]
    assert_close(scores.curves["insertion"][0], torch.from_numpy(golden[f"ins_curve_{name}"]), rtol=0, atol=1e-4)
    assert_close(scores.curves["deletion"][0], torch.from_numpy(golden[f"del_curve_{name}"]), rtol=0, atol=1e-4)
    assert scores["insertion"].item() == pytest.approx(inserted, abs=1e-4)
    assert scores["deletion"].item() == pytest.approx(deleted, abs=1e-4)
    assert scores["ins_del"].item() == pytest.approx(inserted - deleted, abs=1e-4)
    assert scores.passes.forward == 449


@pytest.mark.shared
def test_larger_steps_meet_the_authors_curves_where_they_touch_them(golden, photograph, real_vit):
    names = ["gae", "rollout", "random"]
    maps = torch.stack([torch.from_numpy(golden[f"map_{name}"]) for name in names])
    case = Case(adapt(real_vit), photograph.expand(3, -1, -1, -1), Logit(int(golden["target"])), maps)
    for metric, short in ((Insertion(step=224 * 16), "ins"), (Deletion(step=224 * 16), "del")):
        want = np.stack([golden[f"{short}_curve_{name}"][::16] for name in names])
        assert_close(metric(case).curve, torch.from_numpy(want), rtol=0, atol=1e-4)
