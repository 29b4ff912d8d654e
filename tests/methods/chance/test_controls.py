"""Controls: maps that do not depend on the model."""

from __future__ import annotations

import pytest
import torch
from scipy import ndimage
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline.methods.chance.controls import CONTROLS
from sightline.registry import METHODS


@pytest.mark.parametrize("name", CONTROLS)
def test_costs_nothing_and_ignores_model_and_class(name: str, tiny_vit: nn.Module, images: Tensor) -> None:
    got = sightline.explain(tiny_vit, images, name, target=0)
    assert (got.passes.forward, got.passes.backward) == (0, 0)
    with torch.no_grad():
        for parameter in tiny_vit.parameters():
            parameter.normal_()
    assert_close(sightline.explain(tiny_vit, images, name, target=4).values, got.values, rtol=0, atol=0)


def test_random_is_uniform_and_follows_its_seed(tiny_vit: nn.Module) -> None:
    images = torch.randn(200, 3, 32, 32, dtype=torch.float64)
    values = sightline.explain(tiny_vit, images, "random", target=0).values
    assert abs(values.mean() - 0.5) < 0.02
    assert abs(values.var() - 1 / 12) < 0.01
    assert not torch.equal(values, sightline.explain(tiny_vit, images, "random(seed=1)", target=0).values)
    assert len(values[0].unique()) > 0.99 * values[0].numel()


def test_centre_falls_off_evenly_in_all_directions(tiny_cnn: nn.Module, images: Tensor) -> None:
    bump = sightline.explain(tiny_cnn, images, "centre", target=0).map[0]
    assert_close(bump, bump.T)
    assert_close(bump, bump.flip(0))
    assert bump[16, 16] == bump.max()
    assert bump[0, 0] == bump.min()


def test_sobel_matches_scipy(tiny_cnn: nn.Module, images: Tensor) -> None:
    grey = images[0].mean(dim=0).numpy()
    want = torch.from_numpy(
        (ndimage.sobel(grey, 0, mode="nearest") ** 2 + ndimage.sobel(grey, 1, mode="nearest") ** 2) ** 0.5
    )
    assert_close(sightline.explain(tiny_cnn, images, "sobel", target=0).map[0], want)


def test_input_norm_is_the_length_of_the_colour(tiny_cnn: nn.Module, images: Tensor) -> None:
    got = sightline.explain(tiny_cnn, images, "input_norm", target=0).map
    assert_close(got, (images[:, 0] ** 2 + images[:, 1] ** 2 + images[:, 2] ** 2).sqrt())


def test_the_controls_are_the_family_chance() -> None:
    assert set(CONTROLS) == {name for name in METHODS if METHODS[name].family == "chance"}
    assert len(CONTROLS) == 4
