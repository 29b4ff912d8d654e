"""FORGrad: waves below the cutoff stay, waves above it go."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline import errors
from sightline.operators.forgrad import low_pass


@pytest.mark.parametrize(("height", "width"), [(32, 32), (31, 24)])
def test_keeps_slow_waves_and_removes_fast_ones(height: int, width: int) -> None:
    rows = torch.arange(height, dtype=torch.float64)[:, None] * 2 * math.pi / height
    columns = torch.arange(width, dtype=torch.float64) * 2 * math.pi / width
    slow = 3 + torch.cos(3 * rows + 0.4) + torch.sin(2 * rows - 3 * columns)  # 3 and √13 cycles
    fast = torch.cos(4 * rows + 0.1) + torch.sin(3 * rows + 3 * columns)  # 4 and √18 cycles
    assert_close(low_pass((slow + fast)[None], 3.9)[0], slow)


def test_a_cutoff_above_all_frequencies_changes_nothing(tiny_cnn: nn.Module, images: Tensor) -> None:
    plain = sightline.explain(tiny_cnn, images, "ixg", target=1).map
    assert_close(sightline.explain(tiny_cnn, images, "forgrad(ixg, sigma=23.0)", target=1).map, plain)
    once = sightline.explain(tiny_cnn, images, "forgrad(ixg, sigma=4.0)", target=1).map
    assert not torch.allclose(once, plain)
    assert_close(sightline.explain(tiny_cnn, images, "forgrad(forgrad(ixg, sigma=4.0), sigma=4.0)", target=1).map, once)
    assert_close(once.sum(dim=(1, 2)), plain.sum(dim=(1, 2)))


def test_no_frequencies_are_refused() -> None:
    with pytest.raises(errors.RecipeError, match=r"sigma=0\.0"):
        sightline.parse("forgrad(ixg, sigma=0.0)")
