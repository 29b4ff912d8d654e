"""CAAP on networks of feature maps: mixed activations against a loop, and what must come out at the ends."""

from __future__ import annotations

import pytest
import torch
from tests.models import families_cnn
from tests.models.families_cnn import FAMILIES
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline import Logit, Probability
from sightline.errors import RecipeError
from sightline.methods.patching.caap import Caap
from sightline.models.cnn.adapter import Convolutional
from sightline.models.passes import counting

SOME = ["timm resnet", "torchvision vgg", "torchvision densenet", "timm swin"]


def same(got: Tensor, expected: Tensor) -> None:
    assert_close(got, expected, rtol=1e-9, atol=1e-11)


def adapted(name: str) -> tuple[Convolutional, Tensor]:
    model = sightline.adapt(FAMILIES[name].build().double())
    assert isinstance(model, Convolutional)
    return model, families_cnn.images().double()


def cell_by_cell(model: Convolutional, images: Tensor, unit: int, target: int, radius: int = 1) -> Tensor:
    """Mix the activation position by position, one cell at a time, in exact fractions of the image."""
    site = model.units[unit - 1]
    source, blank = model.trunk(images, site), model.trunk(model.normalise(torch.ones_like(images)), site)
    height, width = source.shape[-2:]
    scores = torch.empty(len(images), 14, 14, dtype=images.dtype)
    for row in range(14):
        for column in range(14):
            mixed = blank.clone()
            for u in range(height):
                for w in range(width):
                    down = (u + 1) * 14 > (row - radius) * height and u * 14 < (row + radius + 1) * height
                    across = (w + 1) * 14 > (column - radius) * width and w * 14 < (column + radius + 1) * width
                    if down and across:
                        mixed[..., u, w] = source[..., u, w]
            scores[:, row, column] = model.tail(mixed, site)[:, target]
    return scores


@pytest.mark.parametrize("name", SOME)
@torch.no_grad()
def test_equals_the_loop_and_costs_what_it_says(name: str) -> None:
    model, images = adapted(name)
    unit = -(-2 * len(model.units) // 3)
    with counting() as meter:
        got = Caap()(model, images, Logit(3))
    assert got.map.shape == (2, 14, 14)
    assert meter.passes.forward == pytest.approx(Caap().cost(model).forward * 2)
    same(got.map[:1], cell_by_cell(model, images[:1], unit, 3))


@pytest.mark.parametrize("name", SOME[:3])
@torch.no_grad()
def test_patching_everything_gives_the_image_itself(name: str) -> None:
    model, images = adapted(name)
    got = Caap(radius=14)(model, images, Logit(2))
    same(got.map, model(images)[:, 2, None, None].expand_as(got.map))
    blank = model.normalise(torch.ones_like(images))
    same(got.details.blank, model(blank)[:, 2])
    nothing = Caap()(model, blank, Logit(2))
    same(nothing.map, got.details.blank[:, None, None].expand_as(nothing.map))


@torch.no_grad()
def test_last_is_a_unit_and_frozen_the_last_of_them() -> None:
    model, images = adapted(SOME[0])
    last = len(model.units)
    frozen = Caap(frozen=True)(model, images, Logit(1)).values
    assert torch.equal(frozen, Caap(last=last)(model, images, Logit(1)).values)
    same(Caap(last=1)(model, images, Logit(1)).map, cell_by_cell(model, images, 1, 1))
    with pytest.raises(RecipeError, match=f"last={last + 1}"):
        Caap(last=last + 1)(model, images, Logit(1))


@torch.no_grad()
def test_targets_share_the_tails(tiny_cnn: nn.Module, images: Tensor) -> None:
    model = sightline.adapt(tiny_cnn)
    with counting() as meter:
        attributions = Caap().multi_target(model, images, [Logit(1), Probability(2)])
    assert meter.passes.forward == pytest.approx(Caap().cost(model).forward * 2)
    assert torch.equal(attributions[0].values, Caap()(model, images, Logit(1)).values)
    assert torch.equal(attributions[1].values, Caap(score="probability")(model, images, Logit(2)).values)
