"""IBA: the divergence in closed form, one step by hand, and where the information goes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.testing import assert_close

import sightline
from sightline import errors
from sightline.methods.information.iba import OPEN, Bottleneck
from sightline.seeds import generators, normal


def test_the_information_is_a_divergence_of_normals() -> None:
    activation = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    bottleneck = Bottleneck.around(activation, None)
    gate = torch.rand_like(activation)
    mean = gate * activation + (1 - gate) * bottleneck.mean
    posterior = Normal(mean, (1 - gate) * bottleneck.deviation)
    prior = Normal(bottleneck.mean.expand_as(mean), bottleneck.deviation.expand_as(mean))
    assert_close(bottleneck.information(gate), kl_divergence(posterior, prior))


def test_smoothing_keeps_a_constant_gate() -> None:
    bottleneck = Bottleneck.around(torch.randn(1, 2, 6, 6, dtype=torch.float64), 1.0)
    alpha = torch.full((1, 2, 6, 6), 0.3, dtype=torch.float64)
    assert_close(bottleneck.gate(alpha), alpha.sigmoid())


def test_one_step_is_adam_on_the_loss(tiny_cnn: nn.Module, images: Tensor) -> None:
    recipe = "iba(layer='conv3.input', steps=1, samples=2, beta=3.0, sigma=None, rate=0.5)"
    got = sightline.explain(tiny_cnn, images, recipe, target=1).map
    adapter = sightline.adapt(tiny_cnn)
    with torch.no_grad():
        activation = adapter.trunk(images, "conv3.input")  # type: ignore[attr-defined]
    mean, deviation = activation.mean(dim=(2, 3), keepdim=True), activation.std(dim=(2, 3), keepdim=True)
    alpha = torch.full_like(activation, OPEN).requires_grad_()
    gate, random, loss = alpha.sigmoid(), generators(0, images), torch.zeros((), dtype=torch.float64)
    for _ in range(2):
        noise = torch.stack([normal(x, g) for x, g in zip(activation, random, strict=True)])
        z = gate * activation + (1 - gate) * (mean + deviation * noise)
        logits = tiny_cnn.head(tiny_cnn.relu(tiny_cnn.conv3(z)).mean(dim=(2, 3)))  # type: ignore[operator]
        loss = loss - logits.log_softmax(dim=-1)[:, 1].sum() / 2
    gain = gate * (activation - mean) / deviation
    spread = (1 - gate).square()
    information = 0.5 * (gain.square() + spread - 1 - spread.log())
    loss = loss + 3.0 * information.flatten(1).mean(dim=1).sum()
    (slope,) = torch.autograd.grad(loss, alpha)
    moved = (alpha - 0.5 * slope / (slope.abs() + 1e-8)).detach().sigmoid()
    gain, spread = moved * (activation - mean) / deviation, (1 - moved).square()
    want = (0.5 * (gain.square() + spread - 1 - spread.log())).sum(dim=1) / math.log(2)
    assert_close(got, want, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("network", ["tiny_cnn", "tiny_vit"])
def test_more_weight_on_the_information_leaves_less_of_it(network: str, images: Tensor, request) -> None:
    model = request.getfixturevalue(network)
    free, tight = (
        sightline.explain(model, images, f"iba(beta={beta}, samples=2)", target=1).map for beta in (0.0, 100.0)
    )
    assert tight.min() >= 0
    assert tight.sum() < 0.2 * free.sum()


@pytest.mark.parametrize("recipe", ["iba(steps=0)", "iba(samples=0)", "iba(beta=-1.0)", "iba(rate=0.0)"])
def test_what_cannot_be_optimised_is_refused(recipe: str) -> None:
    with pytest.raises(errors.RecipeError, match=r"=(0|-1)"):
        sightline.parse(recipe)
