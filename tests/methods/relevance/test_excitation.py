"""Contrastive excitation backprop: zennit from the same features, a closed form, and its sum."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline import errors
from sightline.extras import repair_torchvision
from sightline.methods.relevance.excitation import contrast


def plain() -> nn.Sequential:
    """A network without biases, whose excitation loses nothing."""
    layers = (
        nn.Conv2d(3, 6, 3, 2, bias=False), nn.ReLU(), nn.Conv2d(6, 8, 3, bias=False), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip
    return nn.Sequential(*layers).double().eval()


def test_at_the_last_feature_map_it_is_a_difference_of_shares(tiny_cnn: nn.Module, images: Tensor) -> None:
    got = sightline.explain(tiny_cnn, images, "contrastive_excitation", target=1).map
    with torch.no_grad():
        x = tiny_cnn.relu(tiny_cnn.norm1(tiny_cnn.conv1(images)))  # type: ignore[operator]
        feature = tiny_cnn.relu(tiny_cnn.conv3(tiny_cnn.relu(tiny_cnn.norm2(tiny_cnn.conv2(x)))))  # type: ignore[operator]
        weight = tiny_cnn.head.weight[1][:, None, None]  # type: ignore[index,union-attr]
        parts = [feature * weight.clamp(min=0), feature * -weight.clamp(max=0)]
        positive, negative = (part / part.sum(dim=(1, 2, 3), keepdim=True) for part in parts)
    assert_close(got, (positive - negative).sum(dim=1), rtol=1e-5, atol=1e-8)


def test_matches_zennit_from_the_same_features(images: Tensor, parity) -> None:
    repair_torchvision()
    from zennit.composites import ExcitationBackprop

    model = plain()
    got = sightline.explain(model, images, "contrastive_excitation(layer='1')", target=2).map
    with torch.no_grad():
        hidden = model[:2](images)
    hidden.requires_grad_()
    body = model[2:6]
    with ExcitationBackprop().context(body) as changed:
        features = changed(hidden)
        start = contrast(features.detach(), model[6].weight[2].detach().expand(2, -1))
        (want,) = torch.autograd.grad(features, hidden, start)
    assert_close(got, want.sum(dim=1), rtol=1e-5, atol=1e-7)
    parity("contrastive_excitation", "zennit ExcitationBackprop", got, want.sum(dim=1), 1e-9)


def test_sums_to_zero_without_biases(images: Tensor) -> None:
    model = plain()
    got = sightline.explain(model, images, "contrastive_excitation(layer='1')", target=2).map
    assert_close(got.sum(dim=(1, 2)), torch.zeros(2, dtype=torch.float64), atol=1e-4, rtol=0)
    assert got.abs().sum() > 0.1


def test_a_model_without_a_linear_layer_is_refused(images: Tensor) -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double().eval()
    with pytest.raises(errors.UnsupportedModel, match="no linear layer whose weights could be contrasted"):
        sightline.explain(model, images, "contrastive_excitation", target=1)
