"""FEM: grad-cam in the same process, and a map that can be counted by hand."""

from __future__ import annotations

import pytest
import torch
from tests.methods.peer_cam import as_the_peer_shows, peer_map
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline import errors
from sightline.methods.cam.fem import FeatureExplanation


def test_matches_grad_cam_on_a_cnn(tiny_cnn: nn.Module, images: Tensor, parity) -> None:
    tiny_cnn.relu.inplace = False  # type: ignore[union-attr]
    got = sightline.explain(tiny_cnn, images, "fem(layer='norm2')", target=1)
    want = peer_map("FEM", tiny_cnn, tiny_cnn.norm2, images, 1)
    assert_close(as_the_peer_shows(got).float(), want.float(), atol=1e-5, rtol=0)
    parity("fem", "grad-cam FEM", as_the_peer_shows(got), want, 1e-5)


def test_matches_grad_cam_on_a_transformer(tiny_vit: nn.Module, images: Tensor, parity) -> None:
    got = sightline.explain(tiny_vit, images, "fem", target=1)
    want = peer_map("FEM", tiny_vit, tiny_vit.blocks[-1].norm1, images, 1)  # type: ignore[index,union-attr]
    assert_close(as_the_peer_shows(got).float(), want.float(), atol=1e-5, rtol=0)
    parity("fem", "grad-cam FEM", as_the_peer_shows(got), want, 1e-5)


def test_counts_the_cells_that_stand_out() -> None:
    peak = torch.zeros(1, 2, 3, 4)
    peak[0, 0, 1, 2] = 12.0  # mean 1, standard deviation about 3.3: one cell of twelve stands out
    peak[0, 1] = 5.0  # and nothing in a constant channel
    assert_close(FeatureExplanation().map_of(peak)[0], peak[0, 0] / 12)


def test_negative_deviations_are_refused() -> None:
    with pytest.raises(errors.RecipeError, match=r"deviations=-1\.0"):
        sightline.parse("fem(deviations=-1.0)")
