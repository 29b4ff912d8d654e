"""Expected gradients: captum on the same draws, completeness, and what a pool may be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from captum.attr import GradientShap as Peer
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline import errors
from sightline.methods.path.gradient_shap import GradientShap, stratified
from sightline.methods.path.ig import IntegratedGradients


@pytest.mark.parametrize("network", ["tiny_cnn", "tiny_vit"])
def test_matches_captum_on_the_same_baselines_and_points(network, images, request, monkeypatch, parity) -> None:
    model, pool = request.getfixturevalue(network), torch.randn(3, 3, 32, 32, dtype=torch.float64)
    method = GradientShap(samples=6, pool=pool)
    got = sightline.explain(model, images, method, target=[2, 0]).map
    order = torch.arange(3).repeat(2).repeat(2)  # twice through the pool, for each of two images
    points = stratified(images, 6, 0).flatten().numpy()
    monkeypatch.setattr(np.random, "choice", lambda size, count: order[:count].numpy())
    monkeypatch.setattr(np.random, "uniform", lambda low, high, count: points)
    want = Peer(model).attribute(images, pool, n_samples=6, target=torch.tensor([2, 0])).sum(dim=1)
    assert_close(got, want.detach(), rtol=1e-9, atol=1e-12)
    parity("gradient_shap", "captum GradientShap", got, want, 1e-9)


def test_a_linear_model_gives_the_weight_times_the_distance_from_the_mean_of_the_pool() -> None:
    model, images = nn.Sequential(nn.Flatten(), nn.Linear(192, 3)).double().eval(), torch.randn(2, 3, 8, 8).double()
    pool = torch.randn(4, 3, 8, 8).double()
    got = sightline.explain(model, images, GradientShap(samples=8, pool=pool), target=1).map
    weight = model[1].weight[1].detach().view(3, 8, 8)
    assert_close(got, ((images - pool.mean(dim=0)) * weight).sum(dim=1))


def test_without_noise_it_approaches_integrated_gradients(tiny_cnn: nn.Module, images: Tensor) -> None:
    exact = sightline.explain(tiny_cnn, images, IntegratedGradients(steps=200), target=1).map
    few, many = (
        sightline.explain(tiny_cnn, images, f"gradient_shap(noise=0.0, samples={n})", target=1).map for n in (4, 200)
    )
    assert (many - exact).abs().max() < 0.1 * (few - exact).abs().max()


def test_points_lie_one_in_each_part_and_follow_the_image(images: Tensor) -> None:
    points = stratified(images, 10, 3)
    assert torch.equal(points.sort().values.mul(10).floor(), torch.arange(10.0, dtype=points.dtype).expand(2, 10))
    assert torch.equal(points[1:], stratified(images[1:], 10, 3))


def test_what_cannot_be_a_pool_is_refused(tiny_cnn: nn.Module, images: Tensor) -> None:
    with pytest.raises(errors.RecipeError, match="give normalised images"):
        GradientShap(pool=torch.zeros(3, 8, 8))
    with pytest.raises(errors.ShapeError, match="bring both to one size"):
        sightline.explain(tiny_cnn, images, GradientShap(pool=torch.zeros(2, 3, 8, 8)), target=0)
    with pytest.raises(errors.RecipeError, match="samples=0"):
        sightline.parse("gradient_shap(samples=0)")
    with pytest.raises(errors.RecipeError, match=r"noise=-1\.0"):
        sightline.parse("gradient_shap(noise=-1.0)")
