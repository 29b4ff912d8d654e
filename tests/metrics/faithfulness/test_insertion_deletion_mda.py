from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from sightline import adapt
from sightline.errors import RecipeError
from sightline.metrics.case import Case
from sightline.metrics.faithfulness.filled_curve import FilledCurve, blur_windows, fill_images, further_blurs
from sightline.metrics.faithfulness.insertion_deletion import Deletion, Insertion
from sightline.metrics.faithfulness.insertion_deletion_mda import DeletionMda, InsDelMda, InsertionMda, monotone
from sightline.metrics.faithfulness.mas import MasDeletion, MasInsertion
from sightline.metrics.judge import judge
from sightline.models.passes import counting
from sightline.perturb.endpoints import BLURS
from sightline.perturb.fill import Blur
from sightline.types import Custom, Logit

SIZE = (6, 7)
PIXELS = 42


def weighing(weights, least=0.1):
    """A model of two classes whose probability of class 0 is least + 0.8 Σ w x: its curves can be written down."""

    def logits(images):
        p = least + 0.8 * (images.mean(dim=1) * weights).sum(dim=(1, 2))
        return torch.stack([p.log(), (1 - p).log()], dim=1)

    return adapt(logits, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def white(count=1):
    return torch.ones(count, 3, *SIZE, dtype=torch.float64)


def shares(seed=0):
    weights = torch.rand(SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) ** 3 + 0.01
    return weights / weights.sum()


def chequered():
    """Squares of a pixel, bright and dark: any blur makes them grey."""
    return (torch.arange(64)[:, None] + torch.arange(64)).remainder(2).mul(2.0).sub(1).expand(3, 64, 64).double()


def contrasted():
    """A model that is sure of class 0 by how far pixels are from grey."""

    def logits(images):
        p = 0.001 + 0.9 * images.square().mean(dim=(1, 2, 3))
        return torch.stack([p.log(), (1 - p).log()], dim=1)

    return adapt(logits)


def test_a_curve_is_scaled_between_its_ends_and_never_turns_back():
    rising = torch.tensor([[0.2, 0.6, 0.1, 0.5, 1.2, 1.0]])
    assert_close(monotone(rising, "insert"), torch.tensor([[0.0, 0.5, 0.5, 0.5, 1.0, 1.0]]).double())
    falling = torch.tensor([[1.0, 1.2, 0.5, 0.6, 0.1, 0.2]])
    assert_close(monotone(falling, "delete"), torch.tensor([[1.0, 1.0, 0.375, 0.375, 0.0, 0.0]]).double())


@settings(max_examples=50, deadline=None)
@given(values=st.lists(st.floats(0, 1), min_size=2, max_size=12), scale=st.floats(0.1, 10), shift=st.floats(-1, 1))
def test_the_scale_of_the_response_does_not_matter(values, scale, shift):
    curve = torch.tensor([[0.0, *values, 1.0]], dtype=torch.float64)
    got = monotone(curve * scale + shift, "insert")
    assert_close(got, monotone(curve, "insert"), rtol=0, atol=1e-9)
    assert (got.diff(dim=1) >= 0).all()
    assert_close(monotone(curve.flip(1), "delete"), 1 - monotone(1 - curve.flip(1), "insert"), rtol=0, atol=1e-12)


def test_on_a_linear_model_it_is_the_area_scaled():
    model, maps = weighing(shares()), torch.rand(1, *SIZE)
    case = Case(model, white(), Logit(0), maps)
    p = Insertion(5, "zero")(case).values
    assert_close(InsertionMda(5, "zero")(case).values, (p - 0.1) / 0.8)
    p = Deletion(5)(case).values
    assert_close(DeletionMda(5, visible="keep")(case).values, (p - 0.1) / 0.8)


def test_a_perfect_map_beats_its_shuffle_beats_its_reverse():
    weights = shares()
    shuffled = weights.flatten()[torch.randperm(PIXELS)].view(SIZE)
    maps = torch.stack([weights, shuffled, weights.max() - weights])
    case = Case(weighing(weights), white(3), Logit(0), maps)
    best, middle, worst = InsertionMda(3, "zero")(case).values.tolist()
    assert best > middle > worst
    best, middle, worst = DeletionMda(3, visible="keep")(case).values.tolist()
    assert best < middle < worst


def test_negative_values_are_important_unless_pixels_go_by_value():
    weights = shares()
    case = Case(weighing(weights), white(2), Logit(0), torch.stack([weights, -weights]))
    first, second = DeletionMda(3, visible="keep")(case).values.tolist()
    assert first == second
    first, second = DeletionMda(3, by="value", visible="keep")(case).values.tolist()
    assert first < second


def test_an_image_fades_until_its_class_is_gone_and_one_that_does_not_is_left_out():
    images = torch.stack([chequered(), torch.ones(3, 64, 64).double()])
    case = Case(contrasted(), images, Logit(0), torch.rand(2, 64, 64))
    found = InsertionMda(step=512)(case)
    assert found.flags == ("", "class visible in every blur")
    assert found.values.isfinite().tolist() == [True, False]
    start = fill_images(case, "fade", 31, 5, 5.0)
    assert_close(start.images[0], Blur(15, 31)(case.model, images[:1])[0])
    assert_close(start.images[1], Blur(50, 101)(case.model, images[1:])[0])


def test_a_fade_from_one_pixel_takes_the_image_itself_where_the_class_was_never_there():
    images = torch.stack([chequered(), chequered() * 0.01])
    case = Case(contrasted(), images, Logit(0), torch.rand(2, 64, 64))
    with counting() as meter:
        start = fill_images(case, "fade", 1, 5, 5.0)
    assert_close(start.images[1], images[1])
    assert not torch.equal(start.images[0], images[0])
    assert not start.visible.any()
    narrowest = next(
        k for k in blur_windows(1) if Blur(k // 2, k)(case.model, images[:1]).square().mean() * 0.9 < 0.009
    )
    assert meter.passes.forward == 2 + (narrowest - 3) // 2 + 1


def test_image_and_filled_image_that_score_alike_give_no_number():
    model = adapt(lambda images: images.new_tensor([[1.0, 0.0]]).expand(len(images), -1))
    case = Case(model, white(), Logit(0), torch.rand(1, *SIZE))
    for metric in (InsertionMda(fill="zero"), DeletionMda(visible="keep")):
        found = metric(case)
        assert found.values.isnan().all()
        assert found.flags == ("image and filled image score alike",)


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 1e30])
def test_a_constant_map_has_a_score_and_a_flag(value):
    case = Case(weighing(shares()), white(), Logit(0), torch.full((1, *SIZE), value))
    for metric in (InsertionMda(5, "zero"), DeletionMda(5, visible="keep")):
        found = metric(case)
        assert found.values.isfinite().all()
        assert found.flags == ("constant map",)


def test_curves_are_shared_with_the_metrics_of_others():
    model = weighing(shares())
    case = Case(model, white(), Logit(0), torch.rand(1, *SIZE))
    points = 10
    got = judge(case, ["insertion(step=5)", "insertion_mda(step=5, fill='blur')"])
    assert got.passes.forward == points
    keeping = ["deletion_mda(step=5, visible='keep')", "mas_deletion(step=5, visible='keep')"]
    got = judge(case, ["deletion(step=5)", *keeping])
    assert got.passes.forward == points - 1  # the image was seen


def test_the_blur_is_searched_once_for_all_that_start_from_it():
    case = Case(contrasted(), chequered()[None], Logit(0), torch.rand(1, 64, 64))
    recipes = ["insertion_mda(step=512)", "mas_insertion(step=512)", "monotonicity(unit='pixel', window=31, step=512)"]
    assert judge(case, recipes).passes.forward == 9


def test_the_cost_allows_for_every_blur():
    model = adapt(lambda images: images.mean(dim=(2, 3)), input_size=(224, 224))
    assert InsertionMda().cost(model).forward == 225 + len(BLURS) - 1
    assert InsertionMda(fill="zero").cost(model).forward == 225
    assert DeletionMda(step=448, visible="keep").cost(model).forward == 113
    assert DeletionMda(step=448).cost(model).forward == 113 + len(BLURS)
    assert InsDelMda(step=448).cost(model).forward == 2 * 112 + len(BLURS)  # one of the blurs is an end of the curve
    assert further_blurs("fade", 1) == 49


@pytest.mark.parametrize(
    "options",
    [
        {"step": 0},
        {"fill": "green"},
        {"window": 30},
        {"window": 103},
        {"fill": "zero", "window": 33},
        {"radius": 7},
        {"by": "size"},
        {"tie": "no"},
    ],
)
def test_wrong_options_are_refused(options):
    with pytest.raises(RecipeError, match="got"):
        FilledCurve(**options)


@pytest.mark.shared
@pytest.mark.timeout(900)  # 225 forward passes: seconds on an idle core, minutes on a crowded machine
@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("random", "ins"),
        *(
            pytest.param(name, short, marks=pytest.mark.slow)
            for name, short in [("random", "del"), *product(("gae", "rollout"), ("ins", "del"))]
        ),
    ],
)
def test_curves_areas_and_blur_are_those_of_the_authors_on_a_photograph(name, short, shared, real_vit):
    golden = np.load(shared / "golden" / "photo" / "metric_mas_A.npz")
    photograph = torch.from_numpy(np.load(shared / "golden" / "photo" / "inputs_A.npz")["input"])
    maps = torch.from_numpy(golden[f"map_{name}"])[None]
    case = Case(adapt(real_vit), photograph, Logit(int(golden["target"])), maps)
    recipe = {"ins": "insertion", "del": "deletion"}[short]
    scores = judge(case, [f"{recipe}_mda", f"mas_{recipe}"])
    # insertion starts from the blurred image; deletion looks whether the class can be seen in it
    assert scores.passes.forward == {"ins": 225, "del": 226}[short]
    for kind, metric in (("response", f"{recipe}_mda"), ("score", f"mas_{recipe}")):
        want = torch.from_numpy(golden[f"{short}_{kind}_{name}"])
        assert_close(scores.curves[metric][0].float(), want, rtol=0, atol=1e-4)
    assert scores[f"{recipe}_mda"].item() == pytest.approx(golden[f"{short}_rise_auc_{name}_f64"], abs=1e-4)
    assert scores[f"mas_{recipe}"].item() == pytest.approx(golden[f"{short}_mas_auc_{name}_f64"], abs=1e-4)
    if short == "ins":
        assert fill_images(case, "fade", 31, 5, 5.0).scores.item() == pytest.approx(float(golden["blur_p"]), abs=1e-5)


# ---- both at once, images left out, and the score of the text --------------------------------------------------------


def visible_and_hidden():
    """Two images, one of which no blur hides: bright grey all over, beside squares that any blur makes grey."""

    def logits(images):
        p = 0.001 + 0.9 * images.square().mean(dim=(1, 2, 3)).clamp(max=1)
        return torch.stack([p.log(), (1 - p).log()], dim=1)

    images = torch.stack([chequered(), torch.full_like(chequered(), 0.9)])
    maps = torch.rand(2, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return Case(adapt(logits), images, Logit(0), maps)


def test_an_image_that_no_blur_hides_is_left_out_of_insertion_and_deletion_alike():
    case = visible_and_hidden()
    kept = DeletionMda(512, visible="keep")(case)
    for metric in (InsertionMda(512), DeletionMda(512), InsDelMda(512), MasInsertion(512), MasDeletion(512)):
        found = metric(case)
        assert found.values.isnan().tolist() == [False, True]
        assert found.flags == ("", "class visible in every blur")
    assert_close(DeletionMda(512)(case).values[0], kept.values[0])
    assert kept.values.isfinite().all()
    assert kept.flags == ("", "")


def test_both_at_once_are_their_difference_and_share_the_curves():
    case = visible_and_hidden()
    with counting() as meter:
        found = InsDelMda(512)(case)
    alone = InsertionMda(512)(case), DeletionMda(512)(case)
    assert_close(found.values, alone[0].values - alone[1].values, equal_nan=True)
    assert_close(found.curve, alone[0].curve - alone[1].curve)
    assert "gradient" in case.model.offers  # a function is tried once
    with counting() as more:
        judge(case, [InsDelMda(512), InsertionMda(512), DeletionMda(512)])
    assert more.passes.forward == 0
    assert meter.passes.forward <= 2 * InsDelMda(512).cost(case.model).forward
    black = InsDelMda(512, fill=("fade", "black"))(case)
    assert_close(black.values, alone[0].values - DeletionMda(512, fill="black")(case).values, equal_nan=True)


def test_the_score_of_the_text_is_the_mean_of_raw_probabilities():
    weights = shares()
    case = Case(weighing(weights), white(), Logit(0), weights[None])
    p = case.read(case.followed("probability"), case.clean)
    curve = Deletion(5)(case).curve
    text = DeletionMda(5, visible="keep", variant="text")(case)
    assert_close(text.curve, curve.double())
    assert_close(text.values, curve.double().mean(dim=1))
    assert float(text.curve[0, 0]) == pytest.approx(float(p[0]))
    inserted = InsertionMda(5, "zero", variant="text")(case)
    assert_close(inserted.values, Insertion(5, "zero")(case).curve.double().mean(dim=1))
    both = InsDelMda(5, ("zero", "zero"), variant="text")(case)
    assert_close(both.values, inserted.values - text.values)


def test_a_blur_of_the_text_leaves_less_than_a_hundredth():
    def logits(images):  # a blurred image scores one per cent to the last digit
        p = torch.where(images.square().mean(dim=(1, 2, 3)) > 0.5, 0.8, 0.01).double()
        return torch.stack([p.log(), (1 - p).log()], dim=1)

    class Exact:
        """A target that reads the probability itself, without a logarithm between."""

        def __call__(self, values):
            return values[:, 0].exp().mul(100).round().div(100)

    maps = torch.rand(1, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    case = Case(adapt(logits), chequered()[None], Custom(Exact()), maps)
    assert InsertionMda(512)(case).values.isfinite().all()
    assert InsertionMda(512, variant="text")(case).flags == ("class visible in every blur",)


@pytest.mark.parametrize("build", [
    lambda: InsertionMda(variant="paper"), lambda: DeletionMda(variant="paper"), lambda: InsDelMda(variant="paper"),
    lambda: DeletionMda(visible="no"), lambda: MasDeletion(visible="no"), lambda: InsDelMda(step=0),
])  # fmt: skip
def test_what_has_no_meaning_is_refused(build):
    with pytest.raises(RecipeError, match=r"got (variant|visible|step)="):
        build()
