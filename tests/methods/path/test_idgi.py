"""IDGI: its formula in a loop, a closed form, and completeness with any number of steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline import errors
from sightline.methods.path.blur_ig import blur


def rise(model: nn.Module, images: Tensor, baseline: Tensor, target: int) -> Tensor:
    with torch.no_grad():
        difference: Tensor = model(images)[:, target] - model(baseline)[:, target]
    return difference


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("network", ["tiny_cnn", "tiny_vit"])
def test_is_complete_with_any_number_of_steps(network, steps, images, request) -> None:
    model = request.getfixturevalue(network)
    got = sightline.explain(model, images, f"idgi(steps={steps})", target=2).map.sum(dim=(1, 2))
    assert_close(got, rise(model, images, torch.zeros_like(images), 2))
    blurred = torch.stack([blur(image, 4.0) for image in images])
    got = sightline.explain(model, images, f"idgi(steps={steps}, variant='blur', sigma=4.0)", target=2).map
    assert_close(got.sum(dim=(1, 2)), rise(model, images, blurred, 2))


def test_is_the_formula_in_a_loop(tiny_cnn: nn.Module, images: Tensor) -> None:
    want = torch.zeros_like(images)
    for step in range(4):
        here = (images * step / 4).requires_grad_()
        score = tiny_cnn(here).softmax(dim=-1)[:, 3]
        (gradient,) = torch.autograd.grad(score.sum(), here)
        after = tiny_cnn(images * (step + 1) / 4).softmax(dim=-1)[:, 3]
        share = gradient.square() / gradient.square().flatten(1).sum(dim=1)[:, None, None, None]
        want += share * (after - score).detach()[:, None, None, None]
    got = sightline.explain(tiny_cnn, images, "idgi(steps=4, score='probability')", target=3).map
    assert_close(got, want.sum(dim=1), rtol=1e-10, atol=1e-14)


def test_a_linear_model_gives_its_squared_weights_as_shares() -> None:
    model, images = nn.Sequential(nn.Flatten(), nn.Linear(192, 3)).double().eval(), torch.randn(2, 3, 8, 8).double()
    square = model[1].weight[1].detach().view(3, 8, 8).square()
    want = square.sum(dim=0) / square.sum() * rise(model, images, torch.zeros_like(images), 1)[:, None, None]
    assert_close(sightline.explain(model, images, "idgi(steps=3)", target=1).map, want)


def test_no_steps_are_refused() -> None:
    with pytest.raises(errors.RecipeError, match="steps=0"):
        sightline.parse("idgi(steps=0)")
