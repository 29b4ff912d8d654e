"""Designs: every three cells balanced, each mask as likely as before, exact where single cells and pairs count."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import sightline
from sightline.errors import RecipeError
from sightline.methods.sampling.hsic import Dependence, dependence, latin_masks
from sightline.methods.sampling.lime import Lime, fit_ridge, random_coalitions
from sightline.methods.sampling.rise import Rise, soft_masks
from sightline.perturb.designs import balanced_masks, orthogonal_masks
from sightline.seeds import generators


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("cells", "rows"), [(3, 8), (4, 8), (5, 16), (16, 32), (49, 128)])
def test_any_three_cells_are_kept_in_all_combinations_equally_often(cells: int, rows: int) -> None:
    masks = orthogonal_masks(2 * rows, cells, seeded(0)).long()
    assert masks.shape == (2 * rows, cells)
    for array in masks.split(rows):
        for three in itertools.islice(itertools.combinations(range(cells), 3), 300):
            codes = array[:, three] @ torch.tensor([4, 2, 1])
            assert codes.bincount(minlength=8).tolist() == [rows // 8] * 8
    assert torch.equal(masks[::2], 1 - masks[1::2])
    assert not torch.equal(masks[:rows], masks[rows:])


def test_any_number_of_masks_and_a_single_cell_are_served() -> None:
    for samples, cells in ((1, 1), (7, 1), (9, 5), (33, 16)):
        assert orthogonal_masks(samples, cells, seeded(0)).shape == (samples, cells)


def test_a_mean_over_masks_has_the_expectation_of_independent_ones() -> None:
    every = torch.tensor(list(itertools.product((0.0, 1.0), repeat=4)))
    random = torch.randn(16, generator=seeded(3))  # a score of any kind: one number for each coalition

    def means(masks: Tensor) -> Tensor:
        scores = random[(masks.long() @ torch.tensor([8, 4, 2, 1]))]
        return scores @ masks.float() / len(masks)

    estimates = torch.stack([means(orthogonal_masks(5, 4, seeded(seed))) for seed in range(2000)])  # 5 of 8 rows
    error = estimates.std(dim=0) / 2000**0.5
    assert ((estimates.mean(dim=0) - random @ every / 16).abs() < 4 * error).all()


def linear(weights: Tensor, constant: float) -> sightline.models.adapter.Adapter:
    """A model whose only logit is linear in the pixels of the first channel."""
    return sightline.adapt(lambda images: constant + (images[:, 0] * weights).sum(dim=(1, 2))[:, None])


def test_rise_is_exact_on_a_linear_score() -> None:
    side, image = 8, torch.ones(1, 3, 8, 8, dtype=torch.float64)
    weights = torch.randn(side, side, generator=seeded(1), dtype=torch.float64)
    units = torch.eye(64, dtype=torch.float64).view(64, side, side)
    shares = soft_masks(units, torch.zeros(64, 2, dtype=torch.long), image[0]).flatten(1)  # of a pixel in each cell
    effects = shares @ weights.flatten()
    both = 0.25 + 0.25 * torch.eye(64, dtype=torch.float64)  # how often two cells are on together
    want = ((0.5 * 3.0 + both @ effects) @ shares / 0.5).view(side, side)
    orthogonal, plain = (
        Rise(samples=256, cells=side, design=design, score=None)(linear(weights, 3.0), image, sightline.Logit(0)).map[0]
        for design in ("orthogonal", "independent")
    )
    assert_close(orthogonal, want, rtol=1e-9, atol=1e-9)
    assert (plain - want).abs().max() > 0.1


def test_a_regression_is_exact_where_cells_interact_by_twos() -> None:
    cells = 12
    single, pairs = torch.randn(cells, generator=seeded(1)), torch.randn(cells, cells, generator=seeded(2)).triu(1)
    want = single + (pairs + pairs.T).sum(dim=1) / 2  # the other cell of a pair is there every second time

    def fitted(masks: Tensor) -> Tensor:
        z = masks.float()
        scores = z @ single + torch.einsum("ni,ij,nj->n", z, pairs, z)
        return fit_ridge(masks, torch.ones(len(masks)), scores[None], 1e-9)[0][0]

    assert_close(fitted(orthogonal_masks(64, cells, seeded(0))).float(), want, rtol=1e-4, atol=1e-4)
    assert (fitted(random_coalitions(64, cells, seeded(0))).float() - want).abs().max() > 0.1


def test_hsic_finds_nothing_where_a_score_does_not_depend_on_a_cell() -> None:
    orthogonal, latin = orthogonal_masks(64, 12, seeded(0)), latin_masks(64, 12, seeded(0))
    found = [
        dependence(masks, torch.where(masks[:, 0] & masks[:, 1], 3.0, 1.0)[None])[0] for masks in (orthogonal, latin)
    ]
    assert found[0][:2].min() > 0.1
    assert found[0][2:].abs().max() < 1e-6 < found[1][2:].abs().max()


def test_lime_and_hsic_draw_them_for_each_image() -> None:
    image = torch.randn(1, 3, 16, 16, generator=seeded(5))
    drawn = Lime(samples=33, design="orthogonal", seed=2)._draw(9, generators(2, image)[0])
    assert drawn[0].all()
    assert torch.equal(drawn[1:], orthogonal_masks(32, 9, generators(2, image)[0]))
    (masks,) = Dependence(samples=32, variant="orthogonal", seed=2)._masks(image, 9)
    assert torch.equal(masks, orthogonal_masks(32, 9, generators(2, image)[0]))
    grids, shifts = Rise(samples=31, cells=3, design="orthogonal")._draw((16, 16), seeded(0))
    assert torch.equal(grids.flatten(1), orthogonal_masks(31, 9, seeded(0)))
    assert torch.equal(shifts[0:30:2], shifts[1:30:2])


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        ("rise(design='orthogonal', antithetic=True)", "in such pairs already"),
        ("lime(design='orthogonal', antithetic=True)", "in such pairs already"),
        ("rise(design='orthogonal', variant='authors')", "draws all masks itself"),
        ("lime(design='orthogonal', variant='package')", "draws all masks itself"),
        ("rise(design='orthogonal', ratio=0.1)", "give ratio=0.5"),
        ("rise(design='x')", "independent"),
    ],
)
def test_what_cannot_be_combined_is_refused(recipe: str, told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        sightline.parse(recipe)


def subsets(cells: int, sizes: list[int], generator: torch.Generator) -> Tensor:
    """Draw one mask for each size."""
    return (
        torch.rand(len(sizes), cells, generator=generator).argsort(dim=1).argsort(dim=1) < torch.tensor(sizes)[:, None]
    )


def moments(masks: Tensor, weights: Tensor) -> Tensor:
    """Eigenvalues of the matrix that a regression inverts, without that of a constant."""
    centred = masks.double() - masks.double().mean(dim=1, keepdim=True)
    return torch.linalg.eigvalsh((centred * weights[:, None]).T @ centred)[1:]


def test_exchanges_leave_sizes_and_bring_the_regression_near_its_expectation() -> None:
    sizes, weights = [2, 3, 4, 5, 6, 7] * 4, torch.linspace(1, 2, 24, dtype=torch.float64)
    for seed in range(5):
        drawn = subsets(12, sizes, seeded(seed))
        got = balanced_masks(drawn, weights, seeded(seed))
        assert torch.equal(got.sum(dim=1), drawn.sum(dim=1))
        before, after = moments(drawn, weights), moments(got, weights)
        assert_close(after.sum(), before.sum())
        assert after.var() < 0.2 * before.var()
        assert (1 / after).mean() * after.mean() < 1.1


def test_no_exchange_makes_a_mask_another_or_its_complement() -> None:
    pairs = torch.tensor([[a in two for a in range(6)] for two in itertools.combinations(range(6), 2)])
    weights = torch.ones(15, dtype=torch.float64)
    threes = torch.tensor([[a in (0, *two) for a in range(6)] for two in itertools.combinations(range(1, 6), 2)])
    for masks in (pairs, pairs[:14], threes, threes[:9]):
        got = balanced_masks(masks, weights[: len(masks)], seeded(0))
        rows = {tuple(row) for both in (got, ~got) for row in both.tolist()}
        assert len(rows) == 2 * len(masks)
    assert balanced_masks(torch.zeros(0, 1, dtype=torch.bool), weights[:0], seeded(0)).shape == (0, 1)


def test_all_masks_of_a_size_are_equally_likely_after_exchanges() -> None:
    weights = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64)
    drawn = torch.stack(
        [balanced_masks(subsets(5, [1, 2, 2], seeded(seed)), weights, seeded(seed)) for seed in range(4000)]
    )
    for row, masks in ((0, 5), (1, 10), (2, 10)):
        codes = (drawn[:, row].long() @ (2 ** torch.arange(5))).unique(return_counts=True)[1]
        assert len(codes) == masks
        assert ((codes - 4000 / masks).abs() < 4.5 * (4000 / masks) ** 0.5).all()
