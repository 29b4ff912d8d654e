"""Numbers that torchmetrics computes too, on the same maps and masks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sightline import adapt
from sightline.metrics.case import Case
from sightline.metrics.judge import judge
from sightline.metrics.similarity import spearman
from sightline.torchvision_repair import repair_torchvision
from sightline.types import Logit

repair_torchvision()  # which torchmetrics imports
torchmetrics = pytest.importorskip("torchmetrics.functional")
classification = pytest.importorskip("torchmetrics.functional.classification")


def drawn(seed: int, levels: int | None = None) -> tuple[Tensor, Tensor]:
    """Draw signed maps, with ties where there are levels, and masks of a third of the pixels."""
    random = torch.Generator().manual_seed(seed)
    maps = torch.randn(4, 12, 16, generator=random, dtype=torch.float64)
    maps = maps if levels is None else (maps * levels).round() / levels
    return maps, (torch.rand(maps.shape, generator=random) < 1 / 3).long()


def scores(maps: Tensor, masks: Tensor, recipe: str) -> Tensor:
    images = torch.zeros(len(maps), 3, *maps.shape[1:], dtype=torch.float64)
    return judge(Case(adapt(lambda x: x.mean(dim=(2, 3))), images, Logit(0), maps, masks), recipe)[recipe]


@pytest.mark.parametrize("levels", [None, 3])
@pytest.mark.parametrize("recipe", ["average_precision", "aupr1"])
def test_average_precision(recipe: str, levels: int | None, parity) -> None:
    maps, masks = drawn(1, levels)
    # the sigmoid that torchmetrics puts on numbers outside 0..1 would merge large ones; ranks say the same
    unit = (maps - maps.amin()) / (maps.amax() - maps.amin())
    want = [classification.binary_average_precision(*pair) for pair in zip(unit, masks, strict=True)]
    torch.testing.assert_close(scores(maps, masks, recipe), torch.stack(want).double(), rtol=0, atol=1e-6)
    parity(recipe, "torchmetrics binary_average_precision", scores(maps, masks, recipe), torch.stack(want), 1e-6)


@pytest.mark.parametrize(
    ("recipe", "peer"),
    [
        ("iou(window=1)", "binary_jaccard_index"),
        ("f1(window=1)", "binary_f1_score"),
        ("precision(window=1)", "binary_precision"),
        ("recall(window=1)", "binary_recall"),
    ],
)
def test_overlap_of_the_positive_pixels(recipe: str, peer: str, parity) -> None:
    maps, masks = drawn(2)
    want = [getattr(classification, peer)(*pair) for pair in zip((maps > 0).long(), masks, strict=True)]
    torch.testing.assert_close(scores(maps, masks, recipe), torch.stack(want).double(), rtol=0, atol=1e-6)
    parity(recipe.partition("(")[0], f"torchmetrics {peer}", scores(maps, masks, recipe), torch.stack(want), 1e-6)


@pytest.mark.parametrize("levels", [None, 3])
def test_rank_correlation(levels: int | None) -> None:
    first, second = drawn(3, levels)[0].flatten(1), drawn(4, levels)[0].flatten(1)
    want = torchmetrics.spearman_corrcoef(first.T, second.T).double()
    torch.testing.assert_close(spearman(first, second), want, rtol=0, atol=1e-6)
