"""Integrated gradients: completeness, closed forms, captum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from captum.attr import IntegratedGradients
from tests.methods import reference_cnn
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline.methods.path.quadrature import quadrature


@pytest.mark.parametrize(("rule", "peer"), [("gauss_legendre", "gausslegendre"), ("right", "riemann_right")])
@pytest.mark.parametrize("network", ["tiny_vit", "tiny_cnn"])
def test_matches_captum(rule, peer, network, images, request, parity) -> None:
    model = request.getfixturevalue(network)
    want = IntegratedGradients(model).attribute(images.clone(), target=1, n_steps=7, method=peer).sum(dim=1)
    got = sightline.explain(model, images, f"ig(steps=7, rule='{rule}')", target=1).map
    assert_close(got, want, rtol=0, atol=1e-5 * want.abs().max().item())
    parity("ig", "captum IntegratedGradients", got, want, 1e-5)


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
    with pytest.raises(sightline.errors.RecipeError, match="got steps=0; steps is between 1 and 10000"):
        sightline.parse("ig(steps=0)")


def rounded(rule: str, steps: int) -> tuple[Tensor, Tensor]:
    """Return the nodes, and the weights in single precision, as captum has them whatever the model's."""
    nodes, weights = quadrature(rule, steps)  # type: ignore[arg-type]
    return nodes, weights.float().double()


def test_matches_captum_s_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    model, image = reference_cnn.network("tiny_cnn")
    want = reference_cnn.want("paths", "captum_ig_gl50_tiny_cnn")
    reference_cnn.assert_same(sightline.explain(model, image, "ig", target=2).map[0], want, 1e-8)
    monkeypatch.setattr("sightline.methods.path.ig.quadrature", rounded)
    reference_cnn.assert_same(sightline.explain(model, image, "ig", target=2).map[0], want, 1e-9)


def test_captum_s_trapezoids_are_ours_too_small() -> None:
    model, image = reference_cnn.network("tiny_cnn")
    want = reference_cnn.want("paths", "captum_ig_trapezoid20_tiny_cnn")
    want = want * 0.05 / torch.tensor(0.05).double()  # captum's weights are in single precision
    got = sightline.explain(model, image, "ig(steps=20, rule='trapezoid')", target=2).map[0]
    reference_cnn.assert_same(got * 19 / 20, want, 1e-9)  # they sum to 19/20


def test_trapezoids_match_captum_in_the_same_process(tiny_cnn: nn.Module, images: Tensor) -> None:
    want = IntegratedGradients(tiny_cnn).attribute(images.clone(), target=1, n_steps=7, method="riemann_trapezoid")
    got = sightline.explain(tiny_cnn, images, "ig(steps=7, rule='trapezoid')", target=1).map
    assert_close(got * 6 / 7, want.sum(dim=1), rtol=0, atol=1e-6 * want.abs().max().item())


def test_matches_pair_s_numbers_whose_ends_weigh_as_much_as_the_rest() -> None:
    model, image = reference_cnn.network("tiny_cnn")
    ours = sightline.explain(model, image, "ig(steps=25, rule='trapezoid')", target=2).map[0]
    start = torch.zeros_like(image).requires_grad_()
    (gradient,) = torch.autograd.grad(model(start)[0, 2], start)
    ends = sightline.explain(model, image, "ixg", target=2).map[0] + (gradient * image).sum(dim=1)[0]
    reference_cnn.assert_same((24 * ours + ends / 2) / 25, reference_cnn.want("paths", "pair_ig_tiny_cnn"), 1e-6)


def test_matches_captum_on_a_photograph(shared: Path) -> None:
    adapter, image = sightline.load("package/efficientnet_lite0"), reference_cnn.photograph(shared)
    for rule, peer in (("gauss_legendre", "gausslegendre"), ("right", "riemann_right")):
        want = IntegratedGradients(adapter.model).attribute(image.clone(), target=155, n_steps=4, method=peer)
        got = sightline.explain(adapter, image, f"ig(steps=4, rule='{rule}')", target=155).map
        reference_cnn.assert_same(got, want.sum(dim=1).detach(), 1e-5)


@pytest.mark.parametrize("option", ["rule", "blank", "at"])
def test_a_method_built_by_hand_is_checked_like_a_recipe(option: str) -> None:
    wrong: dict[str, Any] = {option: "x"}
    with pytest.raises(sightline.errors.RecipeError, match="='x'; "):
        sightline.methods.path.ig.IntegratedGradients(**wrong)


def test_an_unknown_rule_is_no_trapezoid() -> None:
    rule: Any = "simpson"
    with pytest.raises(sightline.errors.RecipeError, match="choose from right, gauss_legendre, trapezoid"):
        quadrature(rule, 5)
