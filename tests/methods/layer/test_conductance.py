"""Layer conductance and internal influence: captum in the same process, and completeness."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from captum.attr import InternalInfluence, LayerConductance
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline import errors


def layer_of(model: Any) -> tuple[nn.Module, str]:
    if hasattr(model, "blocks"):
        return model.blocks[1].norm1, "block.1.norm1"
    model.relu.inplace = False
    return model.norm2, "norm2"


def shown(model: Any, values: Tensor) -> Tensor:
    """Sum the channels of what captum returns, patches alone; its nodes and weights are in float32."""
    if values.ndim == 3:
        return values.sum(dim=-1)[:, 1:].unflatten(1, (4, 4)).detach()
    return values.sum(dim=1).detach()


@pytest.mark.parametrize("batch", [16, 2])
@pytest.mark.parametrize("network", ["tiny_cnn", "tiny_vit"])
def test_conductance_matches_captum(network: str, batch: int, images: Tensor, request, parity) -> None:
    model = request.getfixturevalue(network)
    layer, name = layer_of(model)
    want = LayerConductance(model, layer).attribute(images, target=1, n_steps=5, method="riemann_trapezoid")
    adapter = sightline.adapt(model, batch=batch)
    got = sightline.explain(adapter, images, f"conductance(steps=5, layer='{name}')", target=1).map
    assert_close(got, shown(model, want), rtol=1e-5, atol=1e-8)
    parity("conductance", "captum LayerConductance", got, shown(model, want), 1e-5)


@pytest.mark.parametrize(("rule", "method"), [("gauss_legendre", "gausslegendre"), ("right", "riemann_right")])
@pytest.mark.parametrize("network", ["tiny_cnn", "tiny_vit"])
def test_internal_influence_matches_captum(
    network: str, rule: str, method: str, images: Tensor, request, parity
) -> None:
    model = request.getfixturevalue(network)
    layer, name = layer_of(model)
    want = InternalInfluence(model, layer).attribute(images, target=1, n_steps=5, method=method)
    recipe = f"internal_influence(steps=5, layer='{name}', rule='{rule}')"
    got = sightline.explain(model, images, recipe, target=1).map
    assert_close(got, shown(model, want), rtol=1e-5, atol=1e-8)
    parity("internal_influence", "captum InternalInfluence", got, shown(model, want), 1e-5)


def test_conductance_is_complete(tiny_cnn: nn.Module, images: Tensor) -> None:
    got = sightline.explain(tiny_cnn, images, "conductance(steps=400)", target=1).map.sum(dim=(1, 2))
    with torch.no_grad():
        rise = tiny_cnn(images)[:, 1] - tiny_cnn(torch.zeros_like(images))[:, 1]
    assert_close(got, rise, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["conductance", "internal_influence"])
def test_no_steps_are_refused(name: str) -> None:
    with pytest.raises(errors.RecipeError, match="steps=0"):
        sightline.parse(f"{name}(steps=0)")
