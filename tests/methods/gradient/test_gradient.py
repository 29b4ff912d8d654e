"""Gradients: closed forms on a linear model, then captum in the same process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from captum.attr import InputXGradient, LayerGradientXActivation, Saliency
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline.methods.gradient.gradient import Gradient, SmoothGrad
from sightline.perturb.noise import noisy_batches


class Linear(nn.Module):
    """A linear readout of the pixels: its gradient is its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 3 * 8 * 8, dtype=torch.float64))

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) @ self.weight.T


def test_gradient_of_a_linear_model_is_its_weight() -> None:
    model, images = Linear().eval(), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    want = model.weight[2].detach().view(3, 8, 8).sum(dim=0).expand(2, 8, 8)
    assert_close(sightline.explain(model, images, "gradient", target=2).map, want)


def test_input_times_gradient_sums_to_the_logit_of_a_linear_model() -> None:
    model, images = Linear().eval(), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    got = sightline.explain(model, images, "ixg", target=torch.tensor([1, 4])).map.sum(dim=(1, 2))
    assert_close(got, model(images)[[0, 1], [1, 4]].detach())


@pytest.mark.parametrize(("variant", "reduce"), [
    ("sum", lambda g: g.sum(dim=1)),
    ("norm", lambda g: g.norm(dim=1)),
    ("abs_sum", lambda g: g.abs().sum(dim=1)),
    ("abs_max", lambda g: g.abs().amax(dim=1)),
])  # fmt: skip
@pytest.mark.parametrize("network", ["tiny_vit", "tiny_cnn"])
def test_gradient_at_pixels_matches_captum(variant, reduce, network, images, request, parity) -> None:
    model = request.getfixturevalue(network)
    want = reduce(Saliency(model).attribute(images.clone().requires_grad_(), target=2, abs=False))
    got = sightline.explain(model, images, f"gradient(at='pixels', variant='{variant}')", target=2).map
    assert_close(got, want, rtol=1e-5, atol=1e-9)
    parity("gradient", "captum Saliency", got, want, 1e-9)


@pytest.mark.parametrize("network", ["tiny_vit", "tiny_cnn"])
def test_ixg_at_pixels_matches_captum(network, images, request, parity) -> None:
    model = request.getfixturevalue(network)
    want = (
        InputXGradient(model)
        .attribute(images.clone().requires_grad_(), target=torch.tensor([0, 3]))
        .sum(dim=1)
        .detach()
    )
    got = sightline.explain(model, images, "ixg(at='pixels')", target=torch.tensor([0, 3])).map
    assert_close(got, want, rtol=1e-5, atol=1e-9)
    parity("ixg", "captum InputXGradient", got, want, 1e-9)


def test_gradient_at_tokens_sums_to_zero_so_its_length_is_taken(tiny_vit: nn.Module, images: Tensor) -> None:
    summed = sightline.parse("gradient(variant='sum')")(sightline.adapt(tiny_vit), images, sightline.Logit(1)).values
    lengths = sightline.explain(tiny_vit, images, "gradient", target=1).values
    assert summed.abs().max() < 1e-12 < 1e-4 < lengths.min()
    assert_close(lengths, sightline.explain(tiny_vit, images, "gradient(variant='norm')", target=1).values)


def test_ixg_at_tokens_matches_captum_at_every_block(tiny_vit: nn.Module, images: Tensor, parity) -> None:
    got = sightline.explain(tiny_vit, images, "ixg", target=1).values
    assert len(got) == 3
    for index, module in enumerate([tiny_vit.norm_pre, tiny_vit.blocks[1], tiny_vit.blocks[2]]):  # type: ignore[index]
        peer = LayerGradientXActivation(tiny_vit, module)
        want = peer.attribute(images.clone().requires_grad_(), target=1, attribute_to_layer_input=True).sum(dim=-1)
        assert_close(got[index].flatten(1), want[:, 1:].detach(), rtol=1e-5, atol=1e-9)
        parity("ixg", "captum LayerGradientXActivation", got[index].flatten(1), want[:, 1:], 1e-9)


def test_layer_l_of_ixg_is_ixg_of_the_network_from_block_l(tiny_vit: nn.Module, images: Tensor) -> None:
    adapter = sightline.adapt(tiny_vit)
    every = sightline.explain(tiny_vit, images, "ixg", target=1).values
    for start in range(3):
        tokens = adapter.run(adapter.start(images), 0, start).detach().requires_grad_()
        score = adapter.finish(adapter.run(tokens, start))[:, 1].sum()
        (gradient,) = torch.autograd.grad(score, tokens)
        assert_close(every[start], adapter.grid.to_map((tokens * gradient).sum(dim=-1).detach()))


def test_smooth_grad_is_the_mean_gradient_over_its_noise(tiny_cnn: nn.Module, images: Tensor, parity) -> None:
    total = torch.zeros(2, 32, 32, dtype=torch.float64)
    for noisy, rows in noisy_batches(images, samples=4, noise=0.15, seed=7, batch=16):
        peer = Saliency(tiny_cnn).attribute(noisy.requires_grad_(), target=2, abs=False).sum(dim=1)
        total.index_add_(0, torch.tensor(rows), peer / 4)
    got = sightline.explain(tiny_cnn, images, "smooth_grad(samples=4, seed=7)", target=2).map
    assert_close(got, total, rtol=1e-5, atol=1e-9)
    parity("smooth_grad", "captum Saliency", got, total, 1e-9)


def test_smooth_grad_variants_are_the_moments_of_the_gradient() -> None:
    model, images = Linear().eval(), torch.randn(1, 3, 8, 8, dtype=torch.float64)
    weight = model.weight[0].detach().view(3, 8, 8)
    squared = sightline.explain(model, images, "smooth_grad(samples=3, variant='squared')", target=0).map[0]
    assert_close(squared, weight.square().sum(dim=0))
    with pytest.warns(sightline.errors.SightlineWarning, match="constant map"):  # one sample has no variance
        got = sightline.explain(model, images, "smooth_grad(samples=1, variant='variance')", target=0).map
    assert_close(got, torch.zeros_like(got))


def test_noise_does_not_depend_on_the_batch(images: Tensor) -> None:
    together = torch.cat([x for x, _ in noisy_batches(images, 3, 0.1, 5, batch=2)])
    alone = torch.cat([x for x, _ in noisy_batches(images[1:], 3, 0.1, 5, batch=100)])
    assert_close(together.unflatten(0, (3, 2))[:, 1], alone)


def test_tokens_on_a_cnn_are_refused(tiny_cnn: nn.Module, images: Tensor) -> None:
    with pytest.raises(sightline.errors.UnsupportedModel, match="no tokens; write at='pixels'"):
        sightline.explain(tiny_cnn, images, "ixg(at='tokens')", target=0)


@pytest.mark.parametrize("option", ["samples=0", "samples=-3", "noise=-0.1", "noise=1e999"])
def test_wrong_amounts_of_noise_are_refused(option: str) -> None:
    with pytest.raises(sightline.errors.RecipeError, match=rf"got {option.partition('=')[0]}=.*; choose"):
        sightline.parse(f"smooth_grad({option})")


def test_a_method_built_by_hand_is_checked_like_a_recipe(tiny_cnn: nn.Module, images: Tensor) -> None:
    wrong: list[Any] = [(Gradient, {"variant": "x"}), (SmoothGrad, {"variant": "x"}), (Gradient, {"at": "x"})]
    for build, options in wrong:
        with pytest.raises(sightline.errors.RecipeError, match="='x'; "):
            sightline.explain(tiny_cnn, images, build(**options), target=0)
