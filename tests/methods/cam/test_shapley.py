"""ShapleyCAM: grad-cam in the same process, a quadratic head, and Grad-CAM where the score is linear."""

from __future__ import annotations

import torch
from tests.methods.peer_cam import as_the_peer_shows, peer_map
from torch import Tensor, nn
from torch.testing import assert_close

import sightline


class Quadratic(nn.Module):
    """A feature map whose pooled square is read linearly."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 6, 3, 2), nn.Linear(6, 5)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.conv(images).mean(dim=(2, 3)).square())
        return logits


def test_matches_grad_cam_on_a_cnn(tiny_cnn: nn.Module, images: Tensor, parity) -> None:
    tiny_cnn.relu.inplace = False  # type: ignore[union-attr]
    got = sightline.explain(tiny_cnn, images, "shapley_cam(layer='norm2')", target=1)
    want = peer_map("ShapleyCAM", tiny_cnn, tiny_cnn.norm2, images, 1)
    assert_close(as_the_peer_shows(got).float(), want.float(), atol=1e-5, rtol=0)
    parity("shapley_cam", "grad-cam ShapleyCAM", as_the_peer_shows(got), want, 1e-5)


def test_on_a_transformer_the_hessian_is_that_of_finite_differences(tiny_vit: nn.Module, images: Tensor) -> None:
    """The package grad-cam fails on tokens here."""
    adapter, site, step = sightline.adapt(tiny_vit), "block.1.norm1", 1e-4
    with adapter.capture(site) as seen:
        adapter(images)

    def gradient(factor: float) -> Tensor:
        with adapter.edit({site: seen[site] * factor}), adapter.capture(site, gradient=True) as moved:
            score = adapter(images)[:, 1].sum()
            (found,) = torch.autograd.grad(score, moved[site])
        return found

    product = (gradient(1 + step) - gradient(1 - step)) / (2 * step)
    slope, tokens = (gradient(1.0) - product / 2)[:, 1:], seen[site][:, 1:]
    want = torch.einsum("bk,bnk->bn", slope.mean(dim=1), tokens).unflatten(1, (4, 4))
    got = sightline.explain(tiny_vit, images, f"shapley_cam(layer='{site}')", target=1).map
    assert_close(got, want, rtol=1e-6, atol=1e-8)


def test_differentiates_fused_attention_twice(tiny_vit: nn.Module, images: Tensor) -> None:
    fused = sightline.explain(tiny_vit, images, "shapley_cam", target=1).map
    for block in tiny_vit.blocks:  # type: ignore[union-attr]
        block.attn.fused_attn = False  # type: ignore[union-attr]
    assert_close(sightline.explain(tiny_vit, images, "shapley_cam", target=1).map, fused)


def test_a_quadratic_head_leaves_half_of_the_gradient(images: Tensor) -> None:
    model = Quadratic().double().eval()
    cam = sightline.explain(model, images, "grad_cam(layer='conv')", target=1).map
    assert_close(sightline.explain(model, images, "shapley_cam(layer='conv')", target=1).map, cam / 2)


def test_a_linear_score_gives_grad_cam(tiny_cnn: nn.Module, images: Tensor) -> None:
    cam = sightline.explain(tiny_cnn, images, "grad_cam", target=1).map
    assert_close(sightline.explain(tiny_cnn, images, "shapley_cam", target=1).map, cam)
    rest = sightline.explain(tiny_cnn, images, "shapley_cam", target=sightline.ResidualSoftmax(1)).map
    assert not torch.allclose(rest, cam)


def test_elementwise_is_hires_cam_where_the_score_is_linear(tiny_cnn: nn.Module, images: Tensor) -> None:
    got = sightline.explain(tiny_cnn, images, "shapley_cam(variant='elementwise')", target=1).map
    assert_close(got, sightline.explain(tiny_cnn, images, "hires_cam", target=1).map)
