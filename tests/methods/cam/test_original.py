"""The original CAM: torchcam, Grad-CAM, the logit it averages to, and models without such a map."""

from __future__ import annotations

import pytest
import torch
from tests.methods import reference_cnn
from tests.methods.peer_torchcam import torchcam_map
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline import errors


@pytest.mark.parametrize("name", ["tiny_cnn", "tiny_resnet"])
def test_matches_torchcam(name: str, parity) -> None:
    model, image = reference_cnn.network(name)
    layer = reference_cnn.LAYERS[name]
    got = sightline.explain(model, image, f"cam(layer='{layer}')", target=2).map
    want = torchcam_map("CAM", model, layer, image, 2, fc_layer="fc")
    assert_close(got, want, rtol=1e-9, atol=1e-12)
    parity("cam", "torchcam CAM", got, want, 1e-9)


def test_is_grad_cam_times_the_number_of_cells(tiny_cnn: nn.Module, images: Tensor) -> None:
    got = sightline.explain(tiny_cnn, images, "cam", target=1)
    assert_close(got.map, got.grid.cells * sightline.explain(tiny_cnn, images, "grad_cam", target=1).map)
    with torch.no_grad():
        assert_close(got.map.mean(dim=(1, 2)) + tiny_cnn.head.bias[1], tiny_cnn(images)[:, 1])  # type: ignore[index,union-attr]


def test_takes_the_map_after_a_relu_that_follows_the_layer(tiny_cnn: nn.Module, images: Tensor) -> None:
    before = sightline.explain(tiny_cnn, images, "cam(layer='conv3')", target=1).map
    assert_close(before, sightline.explain(tiny_cnn, images, "cam", target=1).map)


def test_explains_any_function_of_the_logits(tiny_cnn: nn.Module, images: Tensor) -> None:
    a, b = (sightline.explain(tiny_cnn, images, "cam", target=target).map for target in (1, 3))
    assert_close(sightline.explain(tiny_cnn, images, "cam", target=sightline.Contrast(1, 3)).map, a - b)


@pytest.mark.parametrize("layer", [None, "features.2"])
def test_a_model_without_global_pooling_is_refused(layer: str | None) -> None:
    model, image = reference_cnn.network("tiny_vgg" if layer is None else "tiny_cnn")
    with pytest.raises(errors.UnsupportedModel, match="global average pooling and one linear layer"):
        sightline.explain(model, image, f"cam(layer={layer!r})", target=2)
