"""torchvision's vision transformer, against nn.MultiheadAttention's own weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from PIL import Image
from tests.models.families_vit import TORCHVISION, images
from torch import nn
from torch.testing import assert_close

from sightline.errors import InputError
from sightline.models import adapt
from sightline.models.vit.adapter import VisionTransformer

FAMILY = TORCHVISION["torchvision/vit"]


@pytest.fixture
def model() -> Any:
    return FAMILY.build()


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_probabilities_are_those_that_multihead_attention_returns_on_request(model: Any, mode: Any) -> None:
    """Without gradients nn.MultiheadAttention takes a native shortcut; it must be seen there too."""
    adapter, pixels = adapt(model), images(FAMILY)
    with mode():
        before = adapter(pixels)
        with adapter.capture("block.*.norm1", "block.*.probabilities", "block.*.attention") as seen:
            logits = adapter(pixels)
        for index, layer in enumerate(model.encoder.layers):
            tokens = seen[f"block.{index}.norm1"]
            output, weights = layer.self_attention(tokens, tokens, tokens, average_attn_weights=False)
            assert_close(seen[f"block.{index}.probabilities"], weights, rtol=1e-5, atol=1e-6)
            assert_close(seen[f"block.{index}.attention"], output, rtol=1e-5, atol=1e-5)
        assert_close(logits, before, rtol=1e-5, atol=1e-5)


def test_gradients_at_probabilities_match_a_model_with_its_attention_written_out(model: Any) -> None:
    adapter, pixels = adapt(model), images(FAMILY)
    with adapter.capture("block.*.probabilities", gradient=True) as seen:
        got = adapter.gradients(adapter(pixels)[:, 1], seen)
    reference, attention = FAMILY.build(), []
    for layer in reference.encoder.layers:  # type: ignore[union-attr, attr-defined]
        layer.self_attention = WrittenOut(layer.self_attention, attention)
    want = torch.autograd.grad(reference(pixels)[:, 1].sum(), attention)
    for index, expected in enumerate(want):
        assert_close(got[f"block.{index}.probabilities"], expected, rtol=1e-4, atol=1e-6)


class WrittenOut(nn.Module):
    """Multi-head attention from its definition, keeping its probabilities."""

    def __init__(self, module: nn.MultiheadAttention, seen: list[torch.Tensor]) -> None:
        super().__init__()
        self.module, self.seen = module, seen

    def forward(self, x: torch.Tensor, *_: Any, need_weights: bool) -> tuple[torch.Tensor, None]:
        batch, tokens, channels = x.shape
        qkv = x @ self.module.in_proj_weight.T + self.module.in_proj_bias
        q, k, v = qkv.reshape(batch, tokens, 3, 2, channels // 2).permute(2, 0, 3, 1, 4)
        probabilities = (q @ k.mT / (channels // 2) ** 0.5).softmax(dim=-1)
        self.seen.append(probabilities)
        return self.module.out_proj((probabilities @ v).transpose(1, 2).reshape(batch, tokens, channels)), None


def test_a_head_of_ones_own_is_run_and_counted(model: Any) -> None:
    model.heads = nn.Linear(32, 3)
    adapter, pixels = adapt(model), images(FAMILY)
    assert isinstance(adapter, VisionTransformer)
    assert adapter.num_classes == 3
    with torch.no_grad():
        assert torch.equal(adapter.finish(adapter.run(adapter.start(pixels))), model(pixels))


def test_a_photograph_becomes_an_image_of_the_models_own_size(model: Any) -> None:
    adapter = adapt(model)
    assert adapter.preprocess is not None
    prepared = adapter.preprocess(Image.new("RGB", (50, 70), (124, 116, 104)))  # ImageNet's mean colour
    assert prepared.shape == (3, 32, 32)
    assert prepared.abs().max() < 0.02
    assert adapter.accept(prepared[None]).shape == (1, 3, 32, 32)


def test_an_image_of_another_size_is_refused_before_torchvision_asserts(model: Any) -> None:
    with pytest.raises(InputError, match="needs 32×32"):
        adapt(model).accept(torch.zeros(1, 3, 40, 40))
