from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import tiny
from tests.models.families_vit import FAMILIES
from tests.models.families_vit import images as images_for
from torch.nn import functional as F
from torch.testing import assert_close

from sightline import adapt, evaluate, explain
from sightline.errors import InputError, RecipeError
from sightline.metrics.case import Case
from sightline.metrics.faithfulness.token_masking import DeletionAopc, InsertionAccuracy
from sightline.metrics.judge import judge
from sightline.perturb.patch_values import patch_values
from sightline.recipe import parse_metric, text
from sightline.types import Contrast, Logit, TokenGrid

NAMES = ["deletion_accuracy", "insertion_accuracy", "deletion_aopc", "insertion_aopc"]
GRID = TokenGrid(4, 4, 1, (32, 32))


@pytest.fixture
def model(tiny_vit):
    return adapt(tiny_vit)


def enlarged(cells, size=(32, 32)):
    return F.interpolate(cells[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]


def random_maps(count=2, seed=0, dtype=torch.float64):
    return torch.rand(count, 4, 4, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def case(model, images, maps, target=1, labels=None):
    return Case(model, images, Logit(target), maps, labels=labels)


# ---- values --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_it_is_the_model_on_what_is_left_of_the_sequence(model, images):
    cells = random_maps()
    scores = judge(case(model, images, enlarged(cells)), NAMES)
    for row, order in enumerate((-cells.flatten(1)).argsort(dim=1)):
        tokens = model.start(images[row : row + 1])

        def logits(keep, tokens=tokens):
            sequence = [0, *sorted(1 + int(patch) for patch in keep)]
            return model.finish(model.run(tokens[:, sequence]))[0]

        whole = [16 * step // 10 for step in range(11)]
        removed = [logits(order[count:]) for count in whole[:10]]
        shown = [logits(order[:count]) for count in whole[1:]]
        for name, curve in (("deletion", removed), ("insertion", shown)):
            right = [float(one.argmax() == 1) for one in curve]
            fallen = [(model(images[row : row + 1])[0].softmax(0) - one.softmax(0))[1].item() for one in curve]
            assert scores[f"{name}_accuracy"][row].item() == pytest.approx(np.trapezoid(right, dx=1 / 9))
            assert scores[f"{name}_aopc"][row].item() == pytest.approx(np.trapezoid(fallen, dx=1 / 9))
            assert_close(scores.curves[f"{name}_aopc"][row], torch.tensor(fallen, dtype=torch.float64))


def test_log_odds(model, images):
    maps = enlarged(random_maps())
    found = judge(case(model, images, maps), "deletion_aopc(score='log_probability')")
    plain = judge(case(model, images, maps), "deletion_aopc")
    clean = model.predict(images).log_softmax(1)[:, 1:2]
    (logs,), (falls,) = found.curves.values(), plain.curves.values()
    assert_close((clean - logs).exp(), clean.exp() - falls)


def test_the_label_is_followed_where_there_is_one(model, images):
    maps = enlarged(random_maps())
    labelled = judge(case(model, images, maps, target=1, labels=(3, 0)), NAMES)
    for row, label in enumerate((3, 0)):
        plain = judge(case(model, images, maps, target=label), NAMES)
        for name in NAMES:
            assert_close(labelled[name][row], plain[name][row])


def test_a_target_without_a_class_needs_labels(model, images):
    contrast = Case(model, images, Contrast(1, 2), enlarged(random_maps()))
    with pytest.raises(InputError, match="give labels"):
        judge(contrast, "deletion_aopc")


# ---- one value per patch -------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 5),
    columns=st.integers(1, 5),
    patch=st.sampled_from([(1, 1), (2, 3), (8, 8), (7, 16)]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_an_enlarged_map_gives_its_own_values_back_in_their_order(seed, rows, columns, patch, dtype):
    generator = torch.Generator().manual_seed(seed)
    cells = torch.randint(-3, 4, (2, rows, columns), generator=generator).to(dtype)  # many ties
    size = (rows * patch[0], columns * patch[1])
    found = patch_values(enlarged(cells, size), TokenGrid(rows, columns, image=size))
    assert_close(found, cells.double(), rtol=0, atol=1e-5)
    assert torch.equal(
        found.flatten(1).sort(descending=True, stable=True).indices,
        cells.flatten(1).sort(descending=True, stable=True).indices,
    )


def test_any_other_map_gives_the_means():
    maps = torch.rand(2, 32, 32, dtype=torch.float64)
    assert_close(patch_values(maps, GRID), F.avg_pool2d(maps, 8))
    nearest = random_maps().repeat_interleave(8, dim=1).repeat_interleave(8, dim=2)
    assert_close(patch_values(nearest, GRID), random_maps())


def test_the_mean_of_an_enlarged_map_would_change_the_order():
    cells = torch.zeros(1, 4, 4, dtype=torch.float64)
    cells[0, 0] = torch.tensor([0.0, 1.0, 0.9, 1.0])
    means = F.avg_pool2d(enlarged(cells), 8)
    assert means[0, 0, 2] > means[0, 0, 1]
    assert_close(patch_values(enlarged(cells), GRID), cells)


def test_an_attribution_is_judged_by_its_own_tokens(tiny_vit, images):
    found = explain(tiny_vit, images, "ixg", target=1)
    assert_close(patch_values(found.pixels(), found.grid), found.map)


# ---- cost ----------------------------------------------------------------------------------------------------------


def test_all_four_share_eighteen_shortened_passes(model, images):
    maps = enlarged(random_maps())
    together = judge(case(model, images, maps), NAMES)
    kept = [16 * step // 10 for step in range(1, 10)]
    shortened = sum((1 + count) / 17 + (17 - count) / 17 for count in kept)
    assert together.passes.forward == pytest.approx(2 * (1 + shortened))
    for name in NAMES:
        alone = judge(case(model, images, maps), name)
        assert_close(alone[name], together[name])
        assert alone.passes.forward == pytest.approx(2 * parse_metric(name).cost(model).forward)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name.split("/")[0] in ("timm", "torchvision")])
def test_every_transformer_drops_tokens(family):
    _check_family(family)


@pytest.mark.slow
@pytest.mark.parametrize("family", [name for name in FAMILIES if name.split("/")[0] not in ("timm", "torchvision")])
def test_every_other_transformer_drops_tokens(family):
    _check_family(family)


def _check_family(name):
    family = FAMILIES[name]
    model, batch = adapt(family.build(), output="softmax"), images_for(family)  # accuracy needs classes
    assert model.output_size  # may take a pass, once for a model
    grid = model.grid_of(batch)
    cells = torch.rand(len(batch), grid.height, grid.width, generator=torch.Generator().manual_seed(0))
    scores = judge(case(model, batch, enlarged(cells, batch.shape[-2:]), target=0), NAMES)
    assert all(torch.isfinite(values).all() for values in scores.values())
    assert scores.flags == dict.fromkeys(NAMES, ("",) * len(batch))
    if model.input_size is not None:
        costs = [parse_metric(name).cost(model).forward for name in NAMES[:2]]
        assert scores.passes.forward == pytest.approx(len(batch) * (sum(costs) - 1))
        assert scores.passes.forward < len(batch) * 12.5


# ---- models without tokens -----------------------------------------------------------------------------------------


def additive(images):
    """The first class's probability is linear in the pixels."""
    p = 0.05 + 0.9 * images.mean(dim=(1, 2, 3))
    return torch.stack([p.log(), (1 - p).log()], dim=1)


def test_a_model_without_tokens_is_filled_and_says_so():
    images = torch.rand(2, 3, 10, 10, dtype=torch.float64)
    maps = images.mean(dim=1)
    scores = judge(Case(adapt(additive), images, Logit(0), maps), NAMES)
    assert set(scores.flags["deletion_aopc"]) == {"no tokens to drop: pixels filled (zero)"}
    assert scores.passes.forward == 2 * 19
    for row in range(2):
        falling = maps[row].flatten().sort(descending=True).values
        gone = [0.9 * falling[:count].sum().item() / 100 for count in range(0, 100, 10)]
        assert_close(scores.curves["deletion_aopc"][row], torch.tensor(gone, dtype=torch.float64))
        left = [0.9 * falling[count:].sum().item() / 100 for count in range(10, 101, 10)]
        assert_close(scores.curves["insertion_aopc"][row], torch.tensor(left, dtype=torch.float64))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_true_map_beats_its_shuffle_beats_its_negative(seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(1, 3, 8, 8, dtype=torch.float64, generator=generator)
    true = images.mean(dim=1)
    shuffled = true.flatten()[torch.randperm(64, generator=generator)].reshape(1, 8, 8)
    deleted, inserted = (
        [judge(Case(adapt(additive), images, Logit(0), maps), name)[name].item() for maps in (true, shuffled, -true)]
        for name in ("deletion_aopc", "insertion_aopc")
    )
    assert deleted[0] > deleted[1] > deleted[2]
    assert inserted[0] < inserted[1] < inserted[2]


# ---- laws and edges ------------------------------------------------------------------------------------------------


def test_a_positive_affine_change_of_the_map_changes_nothing(model, images):
    maps = enlarged(random_maps())
    before, after = (judge(case(model, images, each), NAMES) for each in (maps, 64 * maps - 3))
    for name in NAMES:
        assert_close(before[name], after[name], rtol=0, atol=0)


def test_a_batch_equals_its_images_one_by_one(model):
    images, maps = torch.randn(5, 3, 32, 32, dtype=torch.float64), enlarged(random_maps(5))
    model.batch = 2
    together = judge(case(model, images, maps), NAMES)
    for row in range(5):
        alone = judge(case(model, images[row : row + 1], maps[row : row + 1]), NAMES)
        for name in NAMES:
            assert_close(together[name][row], alone[name][0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("value", [0.0, 7.0, -1e300])
def test_a_constant_map_is_judged_by_its_ties_and_flagged(model, images, value):
    scores = judge(case(model, images, torch.full((2, 32, 32), value, dtype=torch.float64)), NAMES)
    ordered = judge(case(model, images, enlarged(-torch.arange(16.0).reshape(1, 4, 4).expand(2, -1, -1))), NAMES)
    for name in NAMES:
        assert_close(scores[name], ordered[name])
        assert scores.flags[name] == ("constant map", "constant map")


def test_random_ties_differ_and_repeat(model, images):
    maps = torch.zeros(2, 32, 32)
    first, again, other = (
        judge(case(model, images, maps), f"deletion_aopc(seed={seed}, tie='random')") for seed in (1, 1, 2)
    )
    (a,), (b,), (c,) = first.values(), again.values(), other.values()
    assert torch.equal(a, b)
    assert not torch.allclose(a, c)


def test_a_classifier_of_patches_keeps_one():
    model = adapt(tiny.vit(img_size=16, class_token=False, global_pool="avg").double())  # four patches
    images = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    scores = judge(case(model, images, torch.rand(1, 16, 16)), NAMES)
    assert all(torch.isfinite(values).all() for values in scores.values())
    total = sum(parse_metric(name).cost(model).forward for name in NAMES[:2]) - 1
    assert scores.passes.forward == pytest.approx(total)


def test_more_steps_make_a_finer_curve(tiny_vit, images):
    maps = explain(tiny_vit, images, "ixg", target=0)
    scores = evaluate(tiny_vit, images, maps, ["deletion_aopc(steps=4)", "insertion_accuracy(steps=16)"], target=0)
    assert [curve.shape for curve in scores.curves.values()] == [(2, 4), (2, 16)]


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ("deletion_accuracy(steps=1)", "2 or more"),
        ("insertion_aopc(tie='last')", "tie='last'"),
        ("insertion_accuracy(fill='noise')", "fill='noise'"),
        ("deletion_aopc(score='accuracy')", "score='accuracy'"),
    ],
)
def test_wrong_options_are_refused_at_once(recipe, said):
    with pytest.raises(RecipeError, match=said):
        parse_metric(recipe)


def test_recipes_come_back_as_they_were():
    assert text(DeletionAopc(steps=5, score="log_probability")) == "deletion_aopc(steps=5, score='log_probability')"
    assert parse_metric("insertion_accuracy(fill='mean')") == InsertionAccuracy(fill="mean")
