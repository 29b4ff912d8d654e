"""Recipro-CAM: its formula with masks written out, on a CNN and a transformer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import sightline
from sightline import errors
from sightline.methods.cam.recipro import cell_masks

KERNEL = torch.tensor([[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]], dtype=torch.float64) / 16


@pytest.mark.parametrize("variant", ["cell", "gaussian"])
def test_on_a_cnn_it_is_the_tail_of_one_cell(variant: str, tiny_cnn: nn.Module, images: Tensor) -> None:
    got = sightline.explain(tiny_cnn, images, f"recipro_cam(variant='{variant}')", target=1).map
    with torch.no_grad():
        x = tiny_cnn.relu(tiny_cnn.norm1(tiny_cnn.conv1(images)))  # type: ignore[operator]
        feature = tiny_cnn.relu(tiny_cnn.conv3(tiny_cnn.relu(tiny_cnn.norm2(tiny_cnn.conv2(x)))))  # type: ignore[operator]
        for row, column in ((0, 0), (3, 5), (7, 7)):
            mask = torch.zeros(8, 8, dtype=torch.float64)
            mask[row, column] = 1.0
            if variant == "gaussian":
                mask = F.conv2d(mask[None, None], KERNEL[None, None], padding=1)[0, 0]
            logits = tiny_cnn.head((feature * mask).mean(dim=(2, 3)))  # type: ignore[operator]
            assert_close(got[:, row, column], logits.softmax(dim=-1)[:, 1])


def test_on_a_transformer_tokens_are_masked_before_and_after_the_norm(tiny_vit: nn.Module, images: Tensor) -> None:
    got = sightline.explain(tiny_vit, images, "recipro_cam(score='logit')", target=1).map
    model: nn.Module = tiny_vit
    with torch.no_grad():
        tokens = model.norm_pre(model._pos_embed(model.patch_embed(images)))  # type: ignore[operator]
        for block in model.blocks[:2]:  # type: ignore[index]
            tokens = block(tokens)
        last = model.blocks[2]  # type: ignore[index]
        for cell in (0, 5, 15):
            alone = torch.zeros(4, 4, dtype=torch.float64)
            alone[cell // 4, cell % 4] = 1.0
            mask = torch.cat([torch.ones(1), F.conv2d(alone[None, None], KERNEL[None, None], padding=1).flatten()])
            x = tokens * mask[:, None] + last.attn(last.norm1(tokens) * mask[:, None])  # type: ignore[operator]
            x = x + last.mlp(last.norm2(x))  # type: ignore[operator]
            logits = model.forward_head(model.norm(x))  # type: ignore[operator]
            assert_close(got.flatten(1)[:, cell], logits[:, 1])


def test_gaussian_masks_are_cut_at_the_border() -> None:
    masks = cell_masks((2, 3), "gaussian")
    assert_close(masks[0], torch.tensor([[4.0, 2.0, 0.0], [2.0, 1.0, 0.0]]) / 16)
    assert_close(cell_masks((2, 3), "cell").sum(dim=0), torch.ones(2, 3))


def test_a_layer_that_is_bypassed_is_refused() -> None:
    from tests.methods import reference_cnn

    model, image = reference_cnn.network("tiny_resnet")
    with pytest.raises(errors.SiteError, match=r"a connection bypasses 'layer4\.0\.conv2'"):
        sightline.explain(model, image, "recipro_cam(layer='layer4.0.conv2')", target=1)
