"""Shapley value sampling: captum on the same permutations, exact values, completeness."""

from __future__ import annotations

import itertools

import pytest
import torch
from captum.attr import ShapleyValueSampling
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline import errors
from sightline.methods.shapley.shapley_sampling import ShapleySampling, permutations
from sightline.perturb.segments import grid_segments
from sightline.seeds import generators


def test_matches_captum_on_the_same_permutations(tiny_cnn: nn.Module, images: Tensor, parity) -> None:
    labels = grid_segments((32, 32), (2, 3)).labels
    image = images[:1]
    got = sightline.explain(tiny_cnn, image, "shapley_sampling(samples=4, segments=('grid', 2, 3))", target=2).map
    orders = torch.rand(4, 6, generator=generators(0, image)[0]).argsort(dim=1)
    peer = ShapleyValueSampling(tiny_cnn)
    peer.permutation_generator = lambda features, samples: iter(orders.tolist())
    want = peer.attribute(image, target=2, n_samples=4, feature_mask=labels.repeat(1, 3, 1, 1))
    corners = want[0, 0, [0, 0, 0, 31, 31, 31], [0, 15, 31, 0, 15, 31]].detach()  # captum computes in float32
    assert_close(got[0].flatten(), corners.double(), rtol=1e-5, atol=1e-7)
    parity("shapley_sampling", "captum ShapleyValueSampling", got[0].flatten(), corners, 1e-5)


def test_approaches_the_exact_values(tiny_cnn: nn.Module, images: Tensor) -> None:
    exact = torch.zeros(4, dtype=torch.float64)
    labels = grid_segments((32, 32), (2, 2)).labels

    def score(kept: set[int]) -> float:
        mask = torch.isin(labels, torch.tensor(sorted(kept)))
        with torch.no_grad():
            return float(tiny_cnn(torch.where(mask, images[:1], 0.0))[0, 1])

    for order in itertools.permutations(range(4)):
        for place, segment in enumerate(order):
            exact[segment] += (score(set(order[: place + 1])) - score(set(order[:place]))) / 24
    got = sightline.explain(tiny_cnn, images[:1], "kernel_shap(segments=('grid', 2))", target=1).map.flatten()
    assert_close(got, exact)
    few, many = (
        sightline.explain(
            tiny_cnn, images[:1], ShapleySampling(samples=n, segments=("grid", 2)), target=1
        ).map.flatten()
        for n in (1, 500)
    )
    assert (many - exact).abs().max() < 0.2 * (few - exact).abs().max()


def test_is_complete_with_one_permutation(tiny_cnn: nn.Module, images: Tensor) -> None:
    got = sightline.explain(tiny_cnn, images, "shapley_sampling(samples=1)", target=1).map.sum(dim=(1, 2))
    with torch.no_grad():
        assert_close(got, tiny_cnn(images)[:, 1] - tiny_cnn(torch.zeros_like(images))[:, 1])


def test_no_permutations_are_refused() -> None:
    with pytest.raises(errors.RecipeError, match="samples=0"):
        sightline.parse("shapley_sampling(samples=0)")


def test_a_permutation_and_its_reverse_are_exact_where_segments_interact_by_twos(images: Tensor) -> None:
    """Each pair of segments is met in both orders, so its interaction is halved, as in the Shapley value."""
    labels = grid_segments((32, 32), (2, 2)).labels
    own = torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=torch.float64)
    pairs = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).triu(1)

    def game(batch: Tensor) -> Tensor:
        kept = torch.stack([(batch[:, 0] != 0)[:, labels == label].any(dim=1) for label in range(4)], dim=1).double()
        return (kept @ own + torch.einsum("bi,ij,bj->b", kept, pairs, kept))[:, None]

    image, want = images[:1].double().abs() + 1, own + (pairs + pairs.T).sum(dim=1) / 2
    recipe = "shapley_sampling(samples=2, segments=('grid', 2){})"
    got, cyclic, plain = (
        sightline.explain(game, image, recipe.format(way), target=0).map.flatten()
        for way in (", antithetic=True", ", design='cyclic'", "")
    )
    assert_close(got, want)
    assert_close(cyclic, want)
    assert (plain - want).abs().max() > 0.01


def test_antithetic_permutations_are_uniform_and_reverse_each_other() -> None:
    ranks = permutations(5001, 3, torch.Generator().manual_seed(0), antithetic=True)
    assert ranks.shape == (5001, 3)
    assert torch.equal(ranks[1:-1:2], 2 - ranks[:-1:2])
    counts = torch.stack(
        [(ranks == torch.tensor(order)).all(dim=1).sum() for order in itertools.permutations(range(3))]
    )
    assert_close(counts / 5001, torch.full((6,), 1 / 6), rtol=0, atol=0.03)


def test_cyclic_permutations_are_uniform_and_visit_all_quarters() -> None:
    ranks = permutations(2403, 12, torch.Generator().manual_seed(0), design="cyclic")
    assert ranks.shape == (2403, 12)
    assert torch.equal(ranks.sort(dim=1).values, torch.arange(12).expand(2403, 12))
    whole = ranks[:2400].view(300, 4, 2, 12)
    assert torch.equal(whole[:, :, 1], 11 - whole[:, :, 0])
    quarters = (whole // 3).view(300, 8, 12)
    for quarter in range(4):
        assert (
            (quarters == quarter).sum(dim=1).eq(2).all()
        )  # also of any four: a permutation, its shift by a half, reverses
        assert (quarters[:, :4] == quarter).sum(dim=1).eq(1).all()
    few = permutations(8000, 3, torch.Generator().manual_seed(0), design="cyclic")
    counts = torch.stack([(few == torch.tensor(order)).all(dim=1).sum() for order in itertools.permutations(range(3))])
    assert_close(counts / 8000, torch.full((6,), 1 / 6), rtol=0, atol=0.03)


def test_half_as_many_cyclic_permutations_have_less_variance_and_no_bias(tiny_cnn: nn.Module, images: Tensor) -> None:
    model, image = sightline.adapt(tiny_cnn), images[:1]

    def estimates(recipe: str, seeds: int) -> Tensor:
        recipes = [f"shapley_sampling(segments=('grid', 3), seed={seed}, {recipe})" for seed in range(seeds)]
        return torch.stack([sightline.explain(model, image, each, target=1).map.flatten() for each in recipes])

    exact = sightline.explain(model, image, "kernel_shap(segments=('grid', 3))", target=1).map.flatten()
    cyclic, plain = estimates("samples=4, design='cyclic'", 100), estimates("samples=8", 50)
    assert (cyclic.mean(dim=0) - exact).abs().max() < 4 * (cyclic.var(dim=0) / 100).sqrt().max()
    assert cyclic.var(dim=0).mean() < plain.var(dim=0).mean()
    whole = sightline.explain(model, images, "shapley_sampling(samples=5, design='cyclic')", target=1).map
    alone = sightline.explain(model, images.flip(0), "shapley_sampling(samples=5, design='cyclic')", target=1).map
    assert_close(whole, alone.flip(0))


def test_cyclic_permutations_are_not_reversed_twice() -> None:
    with pytest.raises(errors.RecipeError, match="comes in such pairs already"):
        sightline.parse("shapley_sampling(design='cyclic', antithetic=True)")
