"""The gamma rule as a gradient: relevance propagation of a whole CNN, and a linear layer by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline import errors
from sightline.models.backward.gamma import GammaRule
from sightline.models.backward.lrp import Relevance
from sightline.models.backward.lrp_rules import Composite, gamma


def plain() -> nn.Sequential:
    layers = (nn.Conv2d(3, 6, 3, 2), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1352, 5))
    return nn.Sequential(*layers).double().eval()


def test_input_times_gradient_is_the_relevance_of_lrp(images: Tensor) -> None:
    model, pixels = plain(), images.clone().requires_grad_()
    bounds = (images[:1, :, :1, :1], images[:1, :, :1, :1])
    with Relevance(Composite(gamma, gamma, stabiliser=1e-8), bounds, images):
        logits = model(pixels)
    start = torch.zeros_like(logits).scatter(1, torch.tensor([[1], [1]]), logits[:, 1:2]).detach()
    (want,) = torch.autograd.grad((logits * start).sum(), pixels)
    got = sightline.explain(model, images, "libra(ixg, gamma=0.25)", target=1).map
    assert_close(got, want.sum(dim=1), rtol=1e-5, atol=1e-7)


def test_a_linear_layer_by_hand() -> None:
    x = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([[2.0, 1.0, -1.0], [-1.0, 1.0, 3.0]], dtype=torch.float64)  # outputs -0.5 and -1.5
    with GammaRule(0.0, 1.0):
        y = torch.nn.functional.linear(x, weight)
    (got,) = torch.autograd.grad(y[0, 0] + 0 * y[0, 1], x)
    # the output is negative: negative contributions, -2 and -.5, count twice
    share = -0.5 / (2.0 - 4.0 - 1.0)
    assert_close(got, torch.tensor([[2.0, 2.0, -2.0]], dtype=torch.float64) * share)
    assert_close((got * x).sum(), y[0, 0].detach())


def test_zero_changes_nothing_and_the_forward_pass_never_changes(tiny_vit: nn.Module, images: Tensor) -> None:
    zero = sightline.explain(tiny_vit, images, "libra(ixg, gamma=(0.25, 0.0))", target=1).map  # no convolution behind
    assert_close(zero, sightline.explain(tiny_vit, images, "libra(ixg)", target=1).map)
    with GammaRule(0.25, 0.05), torch.enable_grad():
        assert torch.equal(tiny_vit(images.clone().requires_grad_()), tiny_vit(images))


def test_a_small_gamma_is_close_to_libra_and_a_large_one_is_not(tiny_vit: nn.Module, images: Tensor) -> None:
    plain_map = sightline.explain(tiny_vit, images, "libra(ixg(at='pixels'))", target=1).map
    small, large = (
        sightline.explain(tiny_vit, images, f"libra(ixg(at='pixels'), gamma={value})", target=1).map
        for value in (1e-9, 1.0)
    )
    assert_close(small, plain_map, rtol=1e-5, atol=1e-6)
    assert (large - plain_map).abs().max() > 0.1 * plain_map.abs().max()


def test_a_negative_gamma_is_refused() -> None:
    with pytest.raises(errors.RecipeError, match=r"gamma=-1\.0"):
        sightline.parse("libra(ixg, gamma=-1.0)")
    assert sightline.parse("libra(ixg, gamma=(100.0, 0.05))").gamma == (100.0, 0.05)
