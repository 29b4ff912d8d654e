"""VAR: laws of the contrast, the released code's numbers, and what it costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests import tiny
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline.errors import RecipeError, TargetError, UnsupportedMethod
from sightline.methods.gradient.gradient import InputTimesGradient
from sightline.models.held_classes import hold_classes
from sightline.operators.class_softmax import PRESETS, Rules, class_distribution, contrasted, share_and_excess
from sightline.operators.contrast import Var


def maps(count: int = 4, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return scale * torch.randn(count, 1, 2, 6, 5, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1.0, 1e3])
def test_the_classes_share_every_place_completely(preset: str, scale: float) -> None:
    rules = PRESETS[preset]  # type: ignore[index]
    share = class_distribution(maps(scale=scale), rules)
    assert_close(share.sum(dim=0), torch.ones(1, 2, 6, 5, dtype=torch.float64), rtol=0, atol=1e-12)
    own, excess = share_and_excess(maps(scale=scale), rules)
    assert_close(own, share[0], rtol=0, atol=1e-12)
    assert_close(excess, share[0] - 0.25, rtol=0, atol=1e-12)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("count", [2, 3, 7])
def test_equal_maps_give_zero(preset: str, count: int) -> None:
    same = maps(1).expand(count, -1, -1, -1, -1)
    got = contrasted(same, replace(PRESETS[preset], threshold=0.0))  # type: ignore[index]
    assert torch.equal(got, torch.zeros_like(got))


def test_the_formula_of_the_paper_written_out() -> None:
    given = maps(3)
    q = sum(torch.softmax(given / t, dim=0) for t in (1, 5, 100)) / 3
    want = given[0] * q[0] * (q[0] > 1 / 3)
    got = contrasted(given, PRESETS["text"])
    assert_close(class_distribution(given, PRESETS["text"]), q)
    assert_close(got, want)
    assert (got == 0).any()
    assert (got != 0).any()


def test_maps_far_smaller_than_a_temperature_are_still_told_apart() -> None:
    got = contrasted(maps(scale=1e-14), PRESETS["text"])
    want = contrasted(maps(scale=1e-6), PRESETS["text"])
    assert torch.equal(got != 0, want != 0)


def test_with_one_temperature_the_mask_is_where_the_class_beats_the_others_soft_maximum() -> None:
    given, t = maps(3), 2.0
    got = contrasted(given, Rules(temperatures=(t,)))
    beats = given[0] > t * torch.log(torch.exp(given / t).mean(dim=0))
    assert torch.equal(got != 0, beats)


def test_a_joint_maximum_makes_the_scale_irrelevant() -> None:
    unscaled = contrasted(maps(), PRESETS["recommended"])
    assert_close(contrasted(maps(scale=1000), PRESETS["recommended"]), 1000 * unscaled)


@pytest.mark.parametrize(
    ("key", "classes", "magnitude", "threshold"),
    [
        ("topk_tau0.01_abs1", (2, 3, 4), True, 0.01),
        ("topk_tau0.1_abs0", (2, 3, 4), False, 0.1),
        ("fixed_tau0.1_abs1", (2, 3, 5), True, 0.1),
        ("fixed_tau0_abs0", (2, 3, 5), False, 0.0),
        ("topk_target_third", (0, 2, 3), True, 0.01),
    ],
)
def test_the_released_code(key: str, classes: tuple[int, ...], magnitude: bool, threshold: float) -> None:
    numbers = np.load(tiny.GOLDEN / "var_released.npz")
    given = torch.from_numpy(numbers["class_maps"]).double()[list(classes)][:, None]
    rules = replace(PRESETS["released"], magnitude=magnitude, threshold=threshold)
    got = contrasted(given, rules)
    assert_close(got[0], torch.from_numpy(numbers[key]).double(), rtol=0, atol=1e-6)


def test_class_sets() -> None:
    ranked = [4, 2, 7, 0, 9, 1]
    top3 = Var(InputTimesGradient(), "top3")
    assert top3._ranked(4, ranked) == [4, 2, 7, 1]
    assert top3._ranked(7, ranked) == [7, 4, 2, 1]
    assert top3._ranked(9, ranked) == [9, 4, 2, 1]
    assert top3._ranked(1, ranked) == [1, 4, 2, 9]
    assert Var(InputTimesGradient(), "best_worst")._ranked(4, ranked) == [4, 1]
    released = Var(InputTimesGradient(), "top2", preset="released")
    assert released._ranked(2, ranked) == [2, 4, 1]
    assert released._ranked(0, ranked) == [0, 4, 2]
    assert top3._ranked(0, [0, 1]) == [0, 1]


def test_classes_are_chosen_per_image(tiny_vit: nn.Module, images: Tensor) -> None:
    got = sightline.explain(tiny_vit, images, "var(ixg, classes='top1', at='grid')")
    logits = tiny_vit(images)
    want = torch.stack([logits.argmax(dim=1), logits.argmin(dim=1)], dim=1)
    assert torch.equal(got.details.classes, want)
    for row, (best, worst) in enumerate(want.tolist()):
        alone = sightline.explain(tiny_vit, images[row : row + 1], f"var(ixg, classes=({best}, {worst}), at='grid')")
        assert_close(got.map[row], alone.map[0])


def test_the_distribution_is_returned_on_request(tiny_vit: nn.Module, images: Tensor) -> None:
    assert sightline.explain(tiny_vit, images, "var(ixg)", target=1).details.distribution is None
    got = sightline.explain(tiny_vit, images, "var(ixg, classes=(0, 1, 4), distribution=True)", target=1)
    assert got.details.distribution.shape == (3, 1, 2, 32, 32)
    assert_close(got.details.distribution.sum(dim=0), torch.ones(1, 2, 32, 32, dtype=torch.float64))
    assert got.details.classes.tolist() == [[1, 0, 4]] * 2


def test_maps_are_enlarged_before_they_compete(tiny_vit: nn.Module, images: Tensor) -> None:
    first, second = (sightline.explain(tiny_vit, images, "gae", target=t).pixels() for t in (1, 3))
    want = contrasted(torch.stack([first, second])[:, None], PRESETS["text"])
    assert_close(sightline.explain(tiny_vit, images, "var(gae, classes=(1, 3))", target=1).map, want[0])


@pytest.mark.parametrize(
    ("recipe", "forward", "backward"),
    [
        ("var(ixg, classes=(0, 1, 2, 3))", 1, 4),
        ("var(plus(libra(ixg)), classes=(0, 1, 2, 3))", 1, 4),
        ("var(ixg)", 2, 3),
        ("var(ig(steps=5), classes=(0, 1, 2))", 5, 15),
        ("var(rectify(gae), classes='best_worst')", 2, 2),
        ("against(ixg, other=2)", 1, 2),
        ("var(simple_deletion)", 18, 0),
    ],
)
def test_classes_share_the_forward_pass(
    recipe: str, forward: float, backward: float, tiny_vit: nn.Module, images: Tensor
) -> None:
    passes = sightline.explain(tiny_vit, images, recipe, target=1).passes
    assert (passes.forward, passes.backward) == (2 * forward, 2 * backward)


def test_a_target_beside_the_given_classes_joins_them(tiny_vit: nn.Module, images: Tensor) -> None:
    got = sightline.explain(tiny_vit, images, "var(ixg, classes=(0, 2))", target=1)
    assert got.details.classes.tolist() == [[1, 0, 2]] * 2
    partly = sightline.explain(tiny_vit, images, "var(ixg, classes=(0, 2), distribution=True)", target=[0, 1])
    assert partly.details.classes.tolist() == [[0, 2, -1], [1, 0, 2]]
    for row, target in enumerate((0, 1)):
        alone = sightline.explain(tiny_vit, images[row : row + 1], "var(ixg, classes=(0, 2))", target=target)
        assert_close(partly.map[row], alone.map[0])
    assert torch.equal(partly.details.distribution[2, :, 0], torch.zeros_like(partly.details.distribution[2, :, 0]))


RECIPE = "var(ixg, classes='picture', distribution=True)"


def test_the_classes_of_the_picture_compete_as_many_as_there_are(tiny_vit: nn.Module, images: Tensor) -> None:
    got = sightline.explain(tiny_vit, images, RECIPE, target=[0, 3], classes=[[3, 0], [1, 2, 3, 3]])
    assert got.details.classes.tolist() == [[0, 3, -1], [3, 1, 2]]
    for row, (target, given) in enumerate([(0, (0, 3)), (3, (1, 2, 3))]):
        alone = sightline.explain(
            tiny_vit, images[row : row + 1], f"var(ixg, classes={given}, distribution=True)", target=target
        )
        assert_close(got.map[row], alone.map[0])
        assert_close(got.details.distribution[: len(given), :, row], alone.details.distribution[:, :, 0])
    assert_close(got.details.distribution.sum(dim=0), torch.ones_like(got.details.distribution[0]))


def test_images_one_by_one_and_together_have_the_same_classes(tiny_vit: nn.Module, images: Tensor) -> None:
    options = {"target": [0, 3], "classes": [[3, 0], [1, 2, 3]]}
    whole, parts = (sightline.explain(tiny_vit, images, RECIPE, **options, batch_size=size) for size in (2, 1))
    assert_close(whole.map, parts.map)
    assert torch.equal(whole.details.classes, parts.details.classes)
    assert_close(whole.details.distribution, parts.details.distribution)
    batches = sightline.explain(tiny_vit, [images[:1], images[1:]], RECIPE, **options)
    assert_close(whole.map, batches.map)
    assert batches.target == whole.target == sightline.Logit((0, 3), classes=((3, 0), (1, 2, 3)))


def test_a_picture_without_another_class_keeps_its_map(tiny_vit: nn.Module, images: Tensor) -> None:
    got = sightline.explain(tiny_vit, images, RECIPE, target=1, classes=[[1], [1, 2]])
    alone = sightline.explain(tiny_vit, images, "ixg", target=1)
    assert_close(got.map[0], alone.pixels()[0])
    assert not torch.allclose(got.map[1], alone.pixels()[1])


def test_classes_are_named_by_their_labels() -> None:
    model = sightline.load("bundled/shapes-vit")
    picture = model.normalise(torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0)))
    want = sightline.explain(model, picture, "var(ixg, classes=(0, 4))", target=0)
    assert torch.equal(want.map, sightline.explain(model, picture, "var(ixg, classes=('star', 0))", target=0).map)
    shown = sightline.explain(model, picture, "var(ixg, classes='picture')", target="circle", classes=["star"])
    assert torch.equal(want.map, shown.map)


def test_classes_of_the_picture_that_make_no_sense_are_refused(tiny_vit: nn.Module, images: Tensor) -> None:
    with pytest.raises(TargetError, match="nobody says which classes"):
        sightline.explain(tiny_vit, images, RECIPE, target=0)
    for classes in ("cat", [], [[0], 1], [[0, 1]] * 3, [[0, 99]] * 2, [[0.5, 1]] * 2):
        with pytest.raises(TargetError):
            sightline.explain(tiny_vit, images, RECIPE, target=0, classes=classes)
    with pytest.raises(TargetError, match="not of one class"):
        sightline.explain(tiny_vit, images, "ixg", target=sightline.Contrast(0, 1), classes=[0, 1])


def test_the_forms_that_the_paper_rejects() -> None:
    given, rules = maps(3), PRESETS["text"]
    q = class_distribution(given, rules)
    assert_close(contrasted(given, rules, variant="minus_all"), given[0] - (q * given).sum(dim=0))
    assert_close(contrasted(given, rules, variant="minus_rivals"), given[0] - (q[1:] * given[1:]).sum(dim=0))
    sure = torch.tensor([2000.0, 0.0, 0.0], dtype=torch.float64).reshape(3, 1, 1, 1, 1)
    vanishing = contrasted(sure, Rules(temperatures=(1,)), variant="minus_all")
    assert_close(vanishing, torch.zeros_like(vanishing))  # the class dominates, and its evidence is gone
    assert_close(contrasted(sure, Rules(temperatures=(1,))), sure[0])


def test_rivals_that_the_model_chose_are_held(tiny_vit: nn.Module, images: Tensor) -> None:
    adapter, target = sightline.adapt(tiny_vit), sightline.Logit((0, 1))
    method = sightline.parse("skip_plus(var(ixg, classes='top3'))")
    held, known = hold_classes(method, adapter, images, target)
    assert sightline.recipe.text(held) == "skip_plus(var(ixg, classes='picture'))"
    want = sightline.explain(tiny_vit, images, method, target=target)
    assert_close(sightline.explain(tiny_vit, images, held, target=known).map, want.map)
    plain = sightline.parse("ixg")
    assert hold_classes(plain, adapter, images, target) == (plain, target)


def test_what_it_refuses(tiny_vit: nn.Module, images: Tensor) -> None:
    for recipe in ("var(ixg, classes=(3,))", "var(ixg, classes=(3, 3))", "var(ixg, classes='all')",
                   "var(ixg, temperatures=())", "var(ixg, temperatures=(0.0,))"):  # fmt: skip
        with pytest.raises(RecipeError):
            sightline.parse(recipe)
    with pytest.raises(UnsupportedMethod, match="rollout ignores the class"):
        sightline.parse("var(rollout)")
    with pytest.raises(TargetError, match="class 9"):
        sightline.explain(tiny_vit, images, "var(ixg, classes=(0, 9))", target=0)
    with pytest.raises(TargetError, match="one class"):
        sightline.explain(tiny_vit, images, "var(ixg)", target=sightline.Contrast(0, 1))


@pytest.mark.parametrize("method", ["caap", "caap(frozen=True)", "e_caap"])
def test_patching_pays_nothing_for_more_classes(method: str, tiny_vit: nn.Module, images: Tensor) -> None:
    alone = sightline.explain(tiny_vit, images, method, target=1)
    given = sightline.explain(tiny_vit, images, f"var({method}, classes=(0, 1, 4))", target=1)
    assert given.passes == alone.passes
    chosen = sightline.explain(tiny_vit, images, f"var({method}, classes='top2')", target=1)
    rest = sightline.parse(method).choosing_cost(sightline.adapt(tiny_vit))  # of the run that patching breaks off
    assert 0 < rest.forward < 1
    assert chosen.passes.forward == pytest.approx((alone.passes + rest * len(images)).forward)


def test_what_a_method_says_of_a_blank_is_subtracted_first(tiny_vit: nn.Module, images: Tensor) -> None:
    attributions = [sightline.explain(tiny_vit, images, "caap", target=t) for t in (1, 3)]
    lifted = torch.stack(
        [attribution.values - attribution.details.blank[:, None, None] for attribution in attributions]
    )
    want = contrasted(lifted, PRESETS["text"])
    got = sightline.explain(tiny_vit, images, "var(caap, classes=(1, 3), at='grid')", target=1)
    assert_close(got.values, want)
    raw = sightline.explain(tiny_vit, images, "var(caap, classes=(1, 3), at='grid', blank=False)", target=1)
    assert_close(
        raw.values, contrasted(torch.stack([attribution.values for attribution in attributions]), PRESETS["text"])
    )
    assert not torch.allclose(raw.values, got.values)


@pytest.mark.parametrize("classes", ["'top3'", "'best_worst'", "'picture'", "(0, 3)"])
@pytest.mark.parametrize("method", ["ixg", "gae", "grad_cam", "caap", "att_ixg"])
def test_q_of_all_classes_is_there_whatever_the_method(
    method: str, classes: str, tiny_vit: nn.Module, images: Tensor
) -> None:
    recipe = f"var({method}, classes={classes}, distribution=True)"
    got = sightline.explain(tiny_vit, images, recipe, target=1, classes=[[0, 1], [1, 2, 3]])
    q, shown = got.details.distribution, got.details.classes
    assert q.shape == (shown.shape[1], 1, 2, *got.map.shape[1:])
    assert_close(q.sum(dim=0), torch.ones_like(q[0]))
    assert (shown[:, 0] == 1).all()
    kept = got.map[0] != 0
    assert (q[0, 0, 0][kept] >= 1 / int((shown[0] >= 0).sum()) - 1e-12).all()
