from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from sightline import adapt, explain
from sightline.errors import RecipeError
from sightline.metrics.axioms.completeness import Completeness
from sightline.metrics.case import Case
from sightline.recipe import parse
from sightline.types import Attribution, Logit, Passes, pixel_grid

captum = pytest.importorskip("captum.attr")


def case_of(model, images, recipe, target=None):
    adapter, method, aim = adapt(model), parse(recipe), target or Logit((1, 3))
    return Case(adapter, images, aim, explain(adapter, images, method, target=aim).pixels(), method=method)


@pytest.mark.parametrize("network", ["tiny_vit", "tiny_cnn"])
def test_it_is_captums_convergence_delta(network, images, request, parity):
    model = request.getfixturevalue(network)
    peer = captum.IntegratedGradients(model)
    _, delta = peer.attribute(images, target=[1, 3], n_steps=7, method="gausslegendre", return_convergence_delta=True)
    maps = peer.attribute(images, target=[1, 3], n_steps=7, method="gausslegendre").sum(dim=1)
    method = Fixed(maps.detach())
    case = Case(adapt(model), images, Logit((1, 3)), maps.detach(), method=method)
    assert_close(Completeness()(case).values, delta.abs().detach(), rtol=0, atol=1e-9)
    parity("completeness", "captum compute_convergence_delta", Completeness()(case).values, delta.abs(), 1e-9)


@dataclass(frozen=True, eq=False)
class Fixed:
    """A method that says what it was told to say."""

    maps: Tensor

    def __call__(self, model, images, target):
        return Attribution(self.maps[None], pixel_grid(images))

    def cost(self, model):
        return Passes()


def test_integrated_gradients_come_near_and_gradient_times_input_need_not(tiny_cnn, images):
    few, many = (Completeness()(case_of(tiny_cnn, images, f"ig(steps={n})")).values for n in (3, 200))
    assert (many < 0.02).all()
    assert (few >= many).all()
    assert (Completeness()(case_of(tiny_cnn, images, "ixg")).values > 0.02).all()


def test_a_coarse_map_is_summed_on_its_own_grid(tiny_vit, images):
    case = case_of(tiny_vit, images, "grad_cam")
    found = explain(tiny_vit, images, "grad_cam", target=Logit((1, 3)))
    assert found.map.shape[-1] < images.shape[-1]
    zero = case.model.predict(torch.zeros_like(images))
    difference = case.target(case.clean) - case.target(zero)
    assert_close(Completeness()(case).values, (found.map.sum(dim=(1, 2)) - difference).abs())
    share = (found.map.sum(dim=(1, 2)) - difference).abs() / difference.abs()
    assert_close(Completeness(relative=True)(case).values, share)


def test_the_blank_is_a_choice(tiny_cnn, images):
    case = case_of(tiny_cnn, images, "ixg")
    total = explain(tiny_cnn, images, "ixg", target=Logit((1, 3))).map.sum(dim=(1, 2))
    white = case.model.predict(case.model.normalise(torch.ones_like(images)))
    want = (total - case.target(case.clean) + case.target(white)).abs()
    assert_close(Completeness(fill="white")(case).values, want)


def test_where_there_is_nothing_to_explain_the_relative_gap_is_flagged(tiny_cnn):
    images = torch.zeros(2, 3, 32, 32, dtype=torch.float64)
    images[1] = torch.randn(3, 32, 32)
    case = Case(adapt(tiny_cnn), images, Logit(1), torch.rand(2, 32, 32), method=parse("ixg"))
    found = Completeness(relative=True)(case)
    assert found.values.isnan().tolist() == [True, False]
    assert found.flags == ("no difference to explain", "")
    assert_close(Completeness()(case).values[0].item(), 0.0)


def test_an_unknown_fill_is_refused():
    with pytest.raises(RecipeError):
        Completeness(fill="pink")
