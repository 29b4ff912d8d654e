"""Sampling methods that leave out tokens: the definition written out, costs, refusals; and antithetic samples."""

from __future__ import annotations

import pytest
import torch
from tests import tiny
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline.errors import InputError, RecipeError, UnsupportedModel
from sightline.methods.sampling.dropped import patch_labels, whole_patches
from sightline.methods.sampling.lime import fit_ridge, proximity, random_coalitions
from sightline.methods.sampling.rise import Rise, hard_masks
from sightline.models.passes import counting
from sightline.perturb.segments import Segments, grid_segments
from sightline.perturb.tokens import run_on_tokens
from sightline.seeds import generators

RECIPES = (
    "rise(samples=24, cells=3, blank='dropped')",
    "rise(samples=24, cells=3, ratio=0.7, antithetic=True, blank='dropped')",
    "lime(samples=30, segments=('grid', 4), blank='dropped')",
    "lime(samples=31, segments=('grid', 4), blank='dropped', antithetic=True)",
    "kernel_shap(samples=20, segments=('grid', 4), blank='dropped')",
    "kernel_shap(samples=20, segments=((0, 0, 1), (2, 2, 1)), blank='dropped')",
    "hsic(samples=24, cells=3, blank='dropped')",
    "rise(samples=24, cells=3, design='orthogonal', blank='dropped')",
    "lime(samples=30, segments=('grid', 4), blank='dropped', design='orthogonal')",
    "hsic(samples=24, cells=3, blank='dropped', variant='orthogonal')",
)


def one_by_one(model: nn.Module, image: Tensor, masks: Tensor, target: int) -> Tensor:
    """The probability of a class with only the patches of each mask."""
    adapter = sightline.adapt(model)
    with torch.no_grad():
        tokens = adapter.start(image)
        logits = [run_on_tokens(adapter, tokens, mask.nonzero().T) for mask in masks]
    return torch.cat(logits).softmax(dim=1)[:, target]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_batch_equals_its_images_and_the_answer_is_the_same_twice(
    recipe: str, tiny_vit: nn.Module, images: Tensor
) -> None:
    got = sightline.explain(tiny_vit, images, recipe, target=1)
    assert torch.isfinite(got.values).all()
    assert got.values.std() > 0
    assert torch.equal(got.values, sightline.explain(tiny_vit, images, recipe, target=1).values)
    for row, image in enumerate(images):
        alone = sightline.explain(tiny_vit, image[None], recipe, target=1)
        assert_close(alone.values[:, 0], got.values[:, row], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("recipe", RECIPES)
def test_it_costs_about_what_it_declares_and_less_than_with_a_fill(
    recipe: str, tiny_vit: nn.Module, images: Tensor
) -> None:
    adapter, method = sightline.adapt(tiny_vit), sightline.parse(recipe)
    with torch.no_grad(), counting() as meter:
        method(adapter, images, sightline.Logit(1))
    declared = method.cost(adapter).forward * len(images)
    filled = sightline.parse(recipe.replace("'dropped'", "'mean'")).cost(adapter).forward * len(images)
    assert meter.passes.forward == pytest.approx(declared, rel=0.12)  # how many patches stay is drawn
    assert meter.passes.forward < 0.8 * filled
    assert meter.passes.backward == 0


def test_kernel_shap_declares_its_cost_exactly(tiny_vit: nn.Module, images: Tensor) -> None:
    adapter, method = sightline.adapt(tiny_vit), sightline.parse(RECIPES[4])
    with torch.no_grad(), counting() as meter:
        method(adapter, images, sightline.Logit(1))
    assert meter.passes.forward == pytest.approx(method.cost(adapter).forward * len(images), abs=1e-9)


def test_rise_is_the_formula_written_out(tiny_vit: nn.Module, images: Tensor) -> None:
    method = sightline.parse(RECIPES[0])
    assert isinstance(method, Rise)
    image = images[:1]
    grids, shifts = method._draw((32, 32), generators(method.seed, image)[0])
    where = torch.arange(4) * 8 + 4
    masks = hard_masks(grids, shifts, (where, where), image[0]).flatten(1)
    scores = one_by_one(tiny_vit, image, masks, 2)
    want = (scores[:, None] * masks).sum(dim=0) / (24 * 0.5)
    got = sightline.explain(tiny_vit, image, method, target=2)
    assert_close(got.map[0].flatten(), want, rtol=1e-9, atol=1e-12)


def test_lime_is_the_regression_written_out(tiny_vit: nn.Module, images: Tensor) -> None:
    image, recipe = images[:1], RECIPES[2]
    coalitions = random_coalitions(30, 16, generators(0, image)[0])
    scores = one_by_one(tiny_vit, image, coalitions, 3)
    want = fit_ridge(coalitions, proximity(coalitions, 0.25), scores[None], 1.0)[0]
    assert_close(sightline.explain(tiny_vit, image, recipe, target=3).map.flatten()[None], want, rtol=1e-9, atol=1e-12)


def test_shapley_values_of_dropped_patches_add_up(tiny_vit: nn.Module, images: Tensor) -> None:
    recipe = "kernel_shap(segments=('grid', 2), blank='dropped', score='probability')"
    got = sightline.explain(tiny_vit, images[:1], recipe, target=1).map
    nothing, everything = one_by_one(tiny_vit, images[:1], torch.tensor([[False], [True]]).expand(2, 16), 1)
    assert got.sum().item() == pytest.approx(float(everything - nothing))


@pytest.mark.parametrize("recipe", RECIPES)
def test_models_without_tokens_are_refused_in_a_sentence(recipe: str, tiny_cnn: nn.Module, images: Tensor) -> None:
    with pytest.raises(UnsupportedModel, match=r"no tokens to drop; give a fill, such as blank='mean'"):
        sightline.explain(tiny_cnn, images, recipe, target=0)
    with pytest.raises(UnsupportedModel, match="no tokens to drop"):
        sightline.parse(recipe).cost(sightline.adapt(tiny_cnn))


def test_more_cells_than_patches_and_methods_without_it_are_refused(tiny_vit: nn.Module, images: Tensor) -> None:
    for recipe in ("hsic(samples=8, cells=5, blank='dropped')", "lime(segments=('grid', 5), blank='dropped')"):
        with pytest.raises(RecipeError, match=r"5 × 5 cells with blank='dropped'.* has 4 × 4 patches"):
            sightline.explain(tiny_vit, images, recipe, target=0)
    with pytest.raises(RecipeError):
        sightline.parse("occlusion(blank='dropped')")


def test_a_classifier_that_reads_the_patches_cannot_do_without_any(images: Tensor) -> None:
    model = tiny.vit(class_token=False, global_pool="avg").double()
    with pytest.raises(InputError, match="leave one at least"):
        sightline.explain(model, images, RECIPES[4], target=0)


def test_segments_become_whole_patches(tiny_vit: nn.Module, images: Tensor) -> None:
    adapter = sightline.adapt(tiny_vit)
    labels = torch.zeros(32, 32, dtype=torch.long)
    labels[:, 11:] = 2  # centres of patches are at 4, 12, 20 and 28
    labels[0, 0] = 1  # no centre: gone
    (rounded,) = whole_patches(adapter, images, [Segments(labels)])
    assert torch.equal(rounded.labels, (torch.arange(32) >= 8).long().expand(32, 32))
    assert patch_labels(adapter, images, grid_segments((32, 32), (3, 3))).tolist() == [
        *(0, 1, 1, 2, 3, 4, 4, 5, 3, 4, 4, 5, 6, 7, 7, 8)
    ]


def test_antithetic_masks_are_complements_at_the_same_shift() -> None:
    grids, shifts = Rise(samples=9, antithetic=True)._draw((32, 32), torch.Generator().manual_seed(0))
    assert len(grids) == len(shifts) == 9
    assert torch.equal(grids[1:8:2], ~grids[0:8:2])
    assert torch.equal(shifts[1:8:2], shifts[0:8:2])
    few, _ = Rise(samples=400, ratio=0.1, antithetic=True)._draw((32, 32), torch.Generator().manual_seed(0))
    assert few.double().mean().item() == pytest.approx(0.1, abs=0.01)
    assert not (few[::2] & few[1::2]).any()
    pairs = random_coalitions(9, 5, torch.Generator().manual_seed(0), antithetic=True)
    assert len(pairs) == 9
    assert pairs[0].all()
    assert torch.equal(pairs[1::2], ~pairs[2::2])


def test_with_a_constant_score_antithetic_masks_leave_no_noise() -> None:
    flat = sightline.adapt(lambda images: torch.ones(len(images), 2))
    image = torch.zeros(1, 3, 32, 32)
    even, noisy = (
        Rise(samples=40, cells=4, antithetic=pairs)(flat, image, sightline.Logit(0)).values.std()
        for pairs in (True, False)
    )
    assert even < 1e-6 < noisy


def test_antithetic_samples_exclude_other_programs_random_numbers() -> None:
    for recipe in ("rise(antithetic=True, variant='authors')", "lime(antithetic=True, variant='package')"):
        with pytest.raises(RecipeError, match="antithetic"):
            sightline.parse(recipe)
