"""Simple insertion and deletion against one model call per mixed image."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline import Logit, Probability
from sightline.errors import RecipeError
from sightline.methods.patching.simple import CellMasks, SimpleDeletion, SimpleInsertion, patch_grid
from sightline.models.passes import counting
from sightline.types import Contrast, TokenGrid


def pasted(network: Any, images: Tensor, blank: Tensor, side: int, delete: bool) -> Tensor:
    """Paste the 3×3 patches around each patch of a 4×4 grid, one image at a time; return the logits."""
    logits = []
    for row in range(4):
        for column in range(4):
            inside, outside = (blank, images) if delete else (images, blank)
            mixed = outside.expand_as(images).clone()
            rows = slice(max(0, row - 1) * side, (row + 2) * side)
            columns = slice(max(0, column - 1) * side, (column + 2) * side)
            mixed[..., rows, columns] = inside.expand_as(images)[..., rows, columns]
            logits.append(network(mixed))
    return torch.stack(logits, dim=1)


@torch.no_grad()
def test_equal_one_call_per_pasted_image(tiny_vit: nn.Module, images: Tensor) -> None:
    model = sightline.adapt(tiny_vit)
    white = model.normalise(torch.ones_like(images[:1]))
    inserted = pasted(tiny_vit, images, white, 8, delete=False)
    deleted = pasted(tiny_vit, images, white, 8, delete=True)
    got = SimpleInsertion()(model, images, Logit(3)).map.flatten(1)
    assert_close(got, inserted.softmax(-1)[..., 3], rtol=1e-12, atol=1e-13)
    got = SimpleInsertion(score="logit")(model, images, Probability((3, 1))).map.flatten(1)
    assert_close(got, torch.stack([inserted[0, :, 3], inserted[1, :, 1]]), rtol=1e-12, atol=1e-13)
    got = SimpleDeletion()(model, images, Logit(3)).map.flatten(1)
    assert_close(got, tiny_vit(images).softmax(-1)[:, 3, None] - deleted.softmax(-1)[..., 3], rtol=1e-12, atol=1e-13)
    got = SimpleDeletion(score=None)(model, images, Contrast(0, 2)).map.flatten(1)
    whole = tiny_vit(images)
    assert_close(
        got, (whole[:, 0] - whole[:, 2])[:, None] - (deleted[..., 0] - deleted[..., 2]), rtol=1e-12, atol=1e-13
    )


@pytest.mark.parametrize("method", [SimpleInsertion(), SimpleDeletion()])
@torch.no_grad()
def test_targets_share_the_forwards(method: Any, tiny_cnn: nn.Module, images: Tensor) -> None:
    model = sightline.adapt(tiny_cnn)
    with counting() as meter:
        attributions = method.multi_target(model, images, [Logit(0), Logit(4)])
    assert meter.passes == method.cost(model) * 2
    assert attributions[0].map.shape == (2, 14, 14)
    assert torch.equal(attributions[1].values, method(model, images, Logit(4)).values)


@torch.no_grad()
def test_pasting_everything_and_nothing(tiny_vit: nn.Module, images: Tensor) -> None:
    model = sightline.adapt(tiny_vit)
    everything = SimpleInsertion(radius=9, score=None)(model, images, Logit(1)).map
    assert_close(everything, tiny_vit(images)[:, 1, None, None].expand_as(everything))
    white = model.normalise(torch.ones_like(images))
    assert_close(SimpleDeletion()(model, white, Logit(1)).map, torch.zeros(2, 4, 4).double())


def test_cells_divide_any_image() -> None:
    grid = TokenGrid(3, 2, image=(7, 5))
    masks = CellMasks.of(grid, 0, "box", torch.device("cpu"))[torch.arange(6)]
    assert torch.equal(masks.sum(dim=0), torch.ones(7, 5, dtype=torch.long))
    assert masks.flatten(1).any(dim=1).all()
    model = sightline.adapt(lambda x: x.mean((2, 3)))
    assert (patch_grid(model, (224, 300)).height, patch_grid(model, (9, 30)).height) == (14, 9)


def test_a_function_of_one_pixel_is_found() -> None:
    images = torch.zeros(1, 3, 28, 28)
    images[0, :, 12, 20] = 5.0
    attribution = sightline.explain(
        lambda x: x[:, :2, 12, 20], images, "simple_deletion(radius=0, score='logit')", target=0
    )
    assert attribution.map.abs().argmax() == 6 * 14 + 10
    assert (attribution.map != 0).sum() == 1


def test_wrong_options_are_refused() -> None:
    with pytest.raises(RecipeError, match="radius=-2"):
        SimpleInsertion(radius=-2)
    with pytest.raises(RecipeError, match="blank='grey'"):
        SimpleDeletion(blank="grey")  # type: ignore[arg-type]
