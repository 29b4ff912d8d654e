"""Concept attribution: importance of planted components under a linear head."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.testing import assert_close

import sightline


class Planted(nn.Module):
    """A network whose feature map is the image's channels, and whose head reads their means linearly."""

    def __init__(self) -> None:
        super().__init__()
        self.same = nn.Conv2d(3, 3, 1, bias=False)
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(3, 2)
        with torch.no_grad():
            self.same.weight.copy_(torch.eye(3)[:, :, None, None])
            self.head.weight.copy_(torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 1.0]]))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.pool(self.same(images)).flatten(1))
        return logits


def planted() -> Tensor:
    """An image with one channel in each of three corners, 4, 2 and 8 cells large."""
    image = torch.zeros(1, 3, 8, 8, dtype=torch.float64)
    image[0, 0, :2, :2], image[0, 1, :1, 6:], image[0, 2, 6:, 4:] = 1.0, 1.0, 1.0
    return image


def test_importance_is_the_squared_share_of_a_linear_score() -> None:
    model, image = Planted().double().eval(), planted()
    recipe = "craft(components=3, samples=512, layer='same')"
    got = sightline.explain(model, image, recipe, target=0)
    # the score adds 4·1 for the first channel and 2·2 for the second: half of the variance each
    found = got.details.vectors[0].argmax(dim=1)
    assert sorted(found.tolist()) == [0, 1, 2]
    want = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)[found]
    assert_close(got.details.importance[0], want, atol=0.02, rtol=0)
    map_ = got.map[0]
    assert map_[6:, 4:].max() < 0.02 < 0.4 < map_[0, 0]
    other = sightline.explain(model, image, recipe, target=1).map[0]
    assert_close(other[7, 7], torch.tensor(1.0, dtype=torch.float64), atol=0.03, rtol=0)
    assert other[0, 0] < 0.02


def test_runs_from_a_block_of_a_transformer(tiny_vit: nn.Module, images: Tensor) -> None:
    got = sightline.explain(tiny_vit, images, "craft(components=3, samples=4, layer=1)", target=1)
    assert got.map.shape == (2, 4, 4)
    assert got.passes.forward == 2 * (1 / 3 + 16 * 2 / 3)
