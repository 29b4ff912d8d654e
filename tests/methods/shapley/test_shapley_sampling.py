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
from sightline.methods.shapley.shapley_sampling import ShapleySampling
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
