"""RefineCAM: grad-cam's and torchcam's products, its formula, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import sightline
from sightline import errors
from sightline.extras import repair_torchvision


def unit(maps: Tensor) -> Tensor:
    maps = maps - maps.amin(dim=(1, 2), keepdim=True)
    return maps / (1e-7 + maps.amax(dim=(1, 2), keepdim=True))


def test_is_the_product_of_scaled_layers(tiny_cnn: nn.Module, images: Tensor) -> None:
    layers = ("conv2", "conv3")
    got = sightline.explain(tiny_cnn, images, f"refine_cam(layer_cam, layer={layers})", target=1).map
    each = [sightline.explain(tiny_cnn, images, f"layer_cam(layer='{layer}')", target=1).map for layer in layers]
    up = [F.interpolate(x.clamp(min=0)[:, None], (32, 32), mode="bilinear")[:, 0] for x in each]
    assert_close(got, unit(up[0]) * unit(up[1]))


def test_matches_grad_cam(tiny_cnn: nn.Module, images: Tensor, parity) -> None:
    repair_torchvision()
    from pytorch_grad_cam import RefineCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    tiny_cnn.relu.inplace = False  # type: ignore[union-attr]
    peer = RefineCAM(tiny_cnn, [tiny_cnn.norm1, tiny_cnn.norm2])
    want = torch.from_numpy(peer(images, [ClassifierOutputTarget(1)] * 2)).float()
    got = sightline.explain(tiny_cnn, images, "refine_cam(grad_cam_pp, layer=('norm1', 'norm2'))", target=1)
    assert_close(unit(got.map).float(), want, atol=1e-4, rtol=0)
    parity("refine_cam", "grad-cam RefineCAM", unit(got.map), want, 1e-5)


def test_takes_every_stage_of_a_cnn_by_default(tiny_cnn: nn.Module, images: Tensor) -> None:
    layers = sightline.adapt(tiny_cnn).layers  # type: ignore[attr-defined]
    want = sightline.explain(tiny_cnn, images, f"refine_cam(grad_cam, layer={layers})", target=1)
    got = sightline.explain(tiny_cnn, images, "refine_cam(grad_cam)", target=1)
    assert_close(got.map, want.map)
    named = sightline.explain(tiny_cnn, images, f"grad_cam(layer={layers}, fusion='product')", target=1)
    assert_close(got.map, named.map)
    assert got.passes.forward == named.passes.forward


def test_what_has_no_layers_is_refused(tiny_vit: nn.Module, images: Tensor) -> None:
    with pytest.raises(errors.UnsupportedMethod, match="and ixg is none"):
        sightline.parse("refine_cam(ixg)")
    with pytest.raises(errors.RecipeError, match="two layers at least"):
        sightline.parse("refine_cam(grad_cam, layer=('a',))")
    with pytest.raises(errors.UnsupportedMethod, match="have to be given"):
        sightline.explain(tiny_vit, images, "refine_cam(grad_cam)", target=1)
    got = sightline.explain(tiny_vit, images, "refine_cam(grad_cam, layer=(1, 2))", target=1)
    assert got.map.shape == (2, 32, 32)
