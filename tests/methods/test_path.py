"""Integrated gradients: completeness, closed forms, captum."""

from __future__ import annotations

import pytest
import torch
from captum.attr import IntegratedGradients
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline.methods.quadrature import quadrature


@pytest.mark.parametrize(("rule", "peer"), [("gauss_legendre", "gausslegendre"), ("right", "riemann_right")])
@pytest.mark.parametrize("network", ["tiny_vit", "tiny_cnn"])
def test_matches_captum(rule, peer, network, images, request) -> None:
    model = request.getfixturevalue(network)
    want = IntegratedGradients(model).attribute(images.clone(), target=1, n_steps=7, method=peer).sum(dim=1)
    got = sightline.explain(model, images, f"ig(steps=7, rule='{rule}')", target=1).map
    assert_close(got, want, rtol=0, atol=1e-5 * want.abs().max().item())


@pytest.mark.parametrize("at", ["pixels", "tokens"])
def test_sums_to_the_difference_of_the_two_ends(at: str, tiny_vit: nn.Module, images: Tensor) -> None:
    adapter = sightline.adapt(tiny_vit)
    method = sightline.parse(f"ig(steps=250, at='{at}', blank='white')")
    white = adapter.normalise(torch.ones_like(images))
    want = (tiny_vit(images) - tiny_vit(white))[:, 3].detach()
    # the class token is the same for both images, so nothing of the difference falls on it
    assert_close(method(adapter, images, sightline.Logit(3)).map.sum(dim=(1, 2)), want, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("rule", ["right", "gauss_legendre", "trapezoid"])
@pytest.mark.parametrize("steps", [1, 2, 9])
def test_weights_sum_to_one_and_nodes_lie_on_the_path(rule: str, steps: int) -> None:
    nodes, weights = quadrature(rule, steps)  # type: ignore[arg-type]
    assert_close(weights.sum(), torch.tensor(1.0, dtype=torch.float64))
    assert nodes.min() >= 0
    assert nodes.max() <= 1
    assert len(nodes) == steps


def test_gauss_legendre_is_exact_for_polynomials() -> None:
    nodes, weights = quadrature("gauss_legendre", 4)
    assert_close((weights * nodes**7).sum(), torch.tensor(1 / 8, dtype=torch.float64))


def test_trapezoid_is_exact_for_lines_and_not_for_parabolas() -> None:
    nodes, weights = quadrature("trapezoid", 5)
    assert_close((weights * nodes).sum(), torch.tensor(0.5, dtype=torch.float64))
    assert (weights * nodes**2).sum() > 1 / 3


def test_one_step_to_the_right_is_input_times_gradient(tiny_cnn: nn.Module, images: Tensor) -> None:
    got = sightline.explain(tiny_cnn, images, "ig(steps=1, rule='right')", target=0).map
    assert_close(got, sightline.explain(tiny_cnn, images, "ixg", target=0).map)


def test_no_steps_are_refused() -> None:
    with pytest.raises(sightline.errors.RecipeError, match="got steps=0; at least one step is needed"):
        sightline.parse("ig(steps=0)")
