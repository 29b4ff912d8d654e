"""RISE: the authors' masks and maps given their random numbers, laws of the masks, the evidence in shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.methods import reference_cnn
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline import Logit, Probability
from sightline.data.shapes import Shapes
from sightline.errors import RecipeError
from sightline.methods.sampling.rise import Rise, soft_masks, weighted_masks
from sightline.types import Contrast


def drawn(numbers: np.lib.npyio.NpzFile) -> list[tuple[Tensor, Tensor]]:
    return [(torch.from_numpy(numbers["grid"]), torch.from_numpy(numbers["shifts"]))]


def test_masks_and_map_match_the_authors_given_their_random_numbers() -> None:
    model, image = reference_cnn.network("tiny_cnn")
    numbers = reference_cnn.numbers("rise_tiny_cnn")
    grids, shifts = drawn(numbers)[0]
    assert_close(soft_masks(grids[:4], shifts[:4], image[0]), torch.from_numpy(numbers["masks"]).double())
    sums = weighted_masks(sightline.adapt(model), image, torch.zeros_like(image), drawn(numbers), [Probability(2)])
    reference_cnn.assert_same(sums[0, 0] / (40 * 0.5), torch.from_numpy(numbers["pixels"]), 1e-7)


def test_the_authors_seed_gives_their_map() -> None:
    model, image = reference_cnn.network("tiny_cnn")
    numbers = reference_cnn.numbers("rise_tiny_cnn")
    method = Rise(samples=40, seed=123, variant="authors")
    grids, shifts = method._draw((64, 64), torch.Generator())
    assert torch.equal(grids, torch.from_numpy(numbers["grid"]).bool())
    assert torch.equal(shifts, torch.from_numpy(numbers["shifts"]).long())
    got = sightline.explain(model, image, "rise(samples=40, seed=123, variant='authors')", target=2).map[0]
    reference_cnn.assert_same(got, torch.from_numpy(numbers["pixels"]), 1e-7)


@pytest.mark.shared
@pytest.mark.slow
def test_map_matches_the_authors_on_a_photograph(shared: Path) -> None:
    numbers = np.load(shared / "golden" / "cnn_photo" / "rise_lite0.npz")
    image, model = reference_cnn.photograph(shared), sightline.load("package/efficientnet_lite0")
    sums = weighted_masks(model, image, torch.zeros_like(image), drawn(numbers), [Probability(155)])
    reference_cnn.assert_same(sums[0, 0].double() / (96 * 0.5), torch.from_numpy(numbers["pixels"]).double(), 1e-4)


def test_the_map_is_the_formula_written_out(tiny_cnn: nn.Module, images: Tensor) -> None:
    method = Rise(samples=9, cells=3, ratio=0.3)
    got = sightline.explain(tiny_cnn, images, method, target=(1, 4)).map
    for row, target in enumerate((1, 4)):
        grids, shifts = method._draw((32, 32), sightline.seeds.generators(0, images)[row])
        total = torch.zeros(32, 32, dtype=torch.float64)
        for mask in soft_masks(grids, shifts, images[0]):
            total += tiny_cnn(images[row : row + 1] * mask).softmax(dim=-1)[0, target].detach() * mask
        assert_close(got[row], total / (9 * 0.3))


def test_masks_have_the_same_expectation_everywhere_and_stay_between_0_and_1() -> None:
    image = torch.zeros(3, 20, 33)
    grids, shifts = Rise(samples=20_000, cells=4, ratio=0.3)._draw((20, 33), torch.Generator().manual_seed(0))
    masks = soft_masks(grids, shifts, image)
    assert masks.min() >= 0
    assert masks.max() <= 1 + 1e-12
    assert (masks.mean(dim=0) - 0.3).abs().max() < 0.02


def test_there_are_no_more_cells_than_pixels(tiny_cnn: nn.Module, images: Tensor) -> None:
    many, all_of_them = (
        sightline.explain(tiny_cnn, images[..., :20], f"rise(samples=5, cells={cells})", target=1).map
        for cells in (10**6, 32)
    )
    assert torch.equal(many, all_of_them)
    grids, shifts = Rise(samples=5, cells=100)._draw((20, 32), torch.Generator())
    assert grids.shape == (5, 20, 32)
    assert not shifts.any()


def test_a_constant_score_gives_the_mean_mask() -> None:
    images = torch.randn(1, 3, 16, 16)
    got = sightline.explain(lambda x: torch.ones(len(x), 2), images, "rise(samples=4000, score='logit')", target=0)
    assert (got.map - 1).abs().max() < 0.1


def test_what_is_seen_behind_the_mask_is_the_blank() -> None:
    images = torch.full((1, 3, 16, 16), 0.7)
    model = sightline.adapt(lambda x: x.mean(dim=(2, 3)))
    white = Rise(samples=50, blank="white", score=None)(model, images, Logit(0)).map
    grids, shifts = Rise(samples=50)._draw((16, 16), sightline.seeds.generators(0, images)[0])
    masks = soft_masks(grids, shifts, images[0])
    scores = 1 + (0.7 - 1) * masks.mean(dim=(1, 2))
    assert_close(white[0].double(), torch.einsum("m,mhw->hw", scores, masks) / 25, rtol=1e-5, atol=1e-5)


def test_targets_share_the_passes_and_need_no_class(tiny_cnn: nn.Module, images: Tensor) -> None:
    model, method = sightline.adapt(tiny_cnn), Rise(samples=6, score=None)
    targets = [Logit(0), Contrast(1, 2)]
    with sightline.models.passes.counting() as meter:
        attributions = method.multi_target(model, images, targets)
    assert meter.passes.forward == 12
    assert_close(attributions[1].values, method(model, images, targets[1]).values)
    other = Rise(samples=6, score=None, seed=1)(model, images, Logit(0)).values
    assert not torch.allclose(attributions[0].values, other)


@pytest.mark.parametrize("model", ["bundled/shapes-cnn", "bundled/shapes-vit"])
def test_the_evidence_comes_first_on_shapes(model: str) -> None:
    adapter, batch = sightline.load(model), Shapes(seed=77).draw(6)
    adapter.batch = 64
    images, evidence = adapter.normalise(batch.images), batch.evidence
    maps = sightline.explain(adapter, images, "rise(samples=250)", target=batch.labels).map
    chance = sightline.explain(adapter, images, "random", target=batch.labels).pixels()
    inside, outside = (torch.stack([m[e].mean() for m, e in zip(maps, x, strict=True)]) for x in (evidence, ~evidence))
    assert (inside > outside).sum() >= 5
    hits = torch.stack([e.flatten()[m.argmax()] for m, e in zip(maps, evidence, strict=True)])
    lucky = torch.stack([e.flatten()[m.argmax()] for m, e in zip(chance, evidence, strict=True)])
    assert hits.sum() >= 4
    assert hits.sum() > lucky.sum()


@pytest.mark.parametrize(
    "options",
    [
        "samples=0",
        "cells=0",
        "ratio=0.0",
        "ratio=1.5",
        "blank='segment'",
        "blank='grey'",
        "score='loss'",
        "blank=1e400",
        "variant='mine'",
        "variant='authors', seed=-1",
    ],
)
def test_options_that_make_no_sense_are_refused(options: str) -> None:
    with pytest.raises(RecipeError, match="got "):
        sightline.recipe.parse(f"rise({options})")
