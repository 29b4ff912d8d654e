"""Operators: laws."""

from __future__ import annotations

import pytest
import torch
from captum.attr import LayerGradCam, NoiseTunnel
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline import errors
from sightline.perturb.noise import noisy_batches

LAYERED = ["ixg", "gradient", "grad_rollout", "rollout", "grad_cam(variant='stream')"]


@pytest.mark.parametrize("method", LAYERED)
def test_plus_sums_all_layers(method: str, tiny_vit: nn.Module, images: Tensor) -> None:
    every = sightline.explain(tiny_vit, images, method, target=1)
    assert_close(sightline.explain(tiny_vit, images, f"plus({method})", target=1).map, every.values.sum(dim=0))
    assert len(sightline.explain(tiny_vit, images, f"plus({method})", target=1).values) == 1


@pytest.mark.parametrize("method", LAYERED)
def test_skip_plus_from_the_first_block_is_plus(method: str, tiny_vit: nn.Module, images: Tensor) -> None:
    plus = sightline.explain(tiny_vit, images, f"plus({method})", target=1).map
    assert_close(sightline.explain(tiny_vit, images, f"skip_plus({method}, start=0)", target=1).map, plus)
    assert_close(sightline.explain(tiny_vit, images, f"layers({method})", target=1).map, plus)


def test_skip_plus_skips_half_rounded_up(tiny_vit: nn.Module, images: Tensor) -> None:
    every = sightline.explain(tiny_vit, images, "ixg", target=1).values
    assert_close(sightline.explain(tiny_vit, images, "skip_plus(ixg)", target=1).map, every[2])


def test_layers_picks_one(tiny_vit: nn.Module, images: Tensor) -> None:
    every = sightline.explain(tiny_vit, images, "ixg", target=1).values
    assert_close(sightline.explain(tiny_vit, images, "layers(ixg, first=1, last=2)", target=1).map, every[1])


def test_layers_are_counted_in_blocks_also_for_a_method_started_late(tiny_vit: nn.Module, images: Tensor) -> None:
    late = sightline.explain(tiny_vit, images, "layers(rollout(start=1), first=2)", target=1).map
    assert_close(late, sightline.explain(tiny_vit, images, "rollout(start=2)", target=1).map)


def test_plus_of_gae_is_grad_sam(tiny_vit: nn.Module, images: Tensor) -> None:
    """The paper on SkipPLUS: Grad-SAM is GenAtt composed with PLUS instead of rollout. It averages over blocks."""
    sam = sightline.explain(tiny_vit, images, "grad_sam", target=1)
    assert_close(sightline.explain(tiny_vit, images, "plus(gae)", target=1).map, 3 * sam.map)
    assert_close(sightline.explain(tiny_vit, images, "skip_plus(gae)", target=1).map, sam.at(2))
    late = sightline.explain(tiny_vit, images, "plus(gae(start=1))", target=1).map
    assert_close(late, 2 * sam.at(1))


def test_plus_of_raw_attention_sums_every_blocks_own(tiny_vit: nn.Module, images: Tensor) -> None:
    each = [sightline.explain(tiny_vit, images, f"raw_attention(layer={i})", target=1).map for i in range(3)]
    assert_close(sightline.explain(tiny_vit, images, "plus(raw_attention)", target=1).map, sum(each))


def test_plus_costs_what_the_method_costs(tiny_vit: nn.Module, images: Tensor) -> None:
    passes = sightline.explain(tiny_vit, images, "plus(ixg)", target=1).passes
    assert (passes.forward, passes.backward) == (2, 2)


@pytest.mark.parametrize("method", ["ig", "random", "smooth(centre)"])
def test_plus_over_a_method_without_layers_says_so(method: str, tiny_vit: nn.Module, images: Tensor) -> None:
    with pytest.raises(errors.UnsupportedMethod, match="gives one map and no start layers to sum"):
        sightline.explain(tiny_vit, images, f"plus({method})", target=0)


def test_plus_on_a_cnn_says_so(tiny_cnn: nn.Module, images: Tensor) -> None:
    with pytest.raises(errors.UnsupportedMethod, match="has no blocks to start ixg at"):
        sightline.explain(tiny_cnn, images, "plus(ixg)", target=0)


@pytest.mark.parametrize("recipe", ["skip_plus(ixg, start=3)", "layers(ixg, first=2, last=2)", "layers(ixg, last=9)"])
def test_layers_that_are_not_there_are_refused(recipe: str, tiny_vit: nn.Module, images: Tensor) -> None:
    with pytest.raises(errors.RecipeError, match="has blocks 0 to 2"):
        sightline.explain(tiny_vit, images, recipe, target=0)


def test_rectify_and_absolute_are_what_they_say(tiny_vit: nn.Module, images: Tensor) -> None:
    plain = sightline.explain(tiny_vit, images, "ixg", target=1).values
    assert plain.min() < 0
    assert_close(sightline.explain(tiny_vit, images, "rectify(ixg)", target=1).values, plain.clamp(min=0))
    assert_close(sightline.explain(tiny_vit, images, "absolute(ixg)", target=1).values, plain.abs())


def test_layers_survive_an_operator_inside(tiny_vit: nn.Module, images: Tensor) -> None:
    every = sightline.explain(tiny_vit, images, "raw_attention", target=1).values
    assert len(every) == 1
    outer = sightline.explain(tiny_vit, images, "plus(absolute(raw_attention))", target=1).map
    assert_close(outer, sightline.explain(tiny_vit, images, "plus(raw_attention)", target=1).map)


def test_against_itself_is_zero(tiny_vit: nn.Module, images: Tensor) -> None:
    with pytest.warns(errors.SightlineWarning, match="constant map"):
        zero = sightline.explain(tiny_vit, images, "against(gae, 1)", target=1).values
    assert_close(zero, torch.zeros_like(zero))


def test_against_is_the_method_on_a_contrast_where_it_is_linear(tiny_vit: nn.Module, images: Tensor) -> None:
    contrast = sightline.explain(tiny_vit, images, "skip_plus(ixg)", target=sightline.Contrast(1, 4)).map
    assert_close(sightline.explain(tiny_vit, images, "skip_plus(against(ixg, 4))", target=1).map, contrast)
    assert_close(sightline.explain(tiny_vit, images, "against(skip_plus(ixg), 4)", target=1).map, contrast)


def test_against_a_class_that_is_not_there_is_refused(tiny_vit: nn.Module, images: Tensor) -> None:
    with pytest.raises(errors.TargetError, match="got class 9 to contrast with; VisionTransformer has 5 classes"):
        sightline.explain(tiny_vit, images, "against(ixg, 9)", target=1)
    with pytest.raises(errors.TargetError, match="needs a target of one class, and got Contrast"):
        sightline.explain(tiny_vit, images, "against(ixg, 3)", target=sightline.Contrast(0, 1))


def test_smooth_is_the_mean_over_its_noise(tiny_vit: nn.Module, images: Tensor) -> None:
    total = torch.zeros(3, 2, 4, 4, dtype=torch.float64)
    for noisy, rows in noisy_batches(images, samples=3, noise=0.2, seed=4, batch=16):
        values = sightline.explain(tiny_vit, noisy, "ixg", target=1).values
        total.index_add_(1, torch.tensor(rows), values / 3)
    got = sightline.explain(tiny_vit, images, "smooth(ixg, samples=3, noise=0.2, seed=4)", target=1).values
    assert_close(got, total)


@pytest.mark.parametrize(("stat", "statistic"), [
    ("mean", lambda maps: maps.mean(dim=0)),
    ("square", lambda maps: maps.square().mean(dim=0)),
    ("variance", lambda maps: maps.var(dim=0, correction=0)),
    ("max", lambda maps: maps.amax(dim=0)),
])  # fmt: skip
@pytest.mark.parametrize("batch", [2, 16])
def test_smooth_takes_other_statistics_of_the_same_maps(stat, statistic, batch, tiny_vit, images) -> None:
    maps = []
    for noisy, rows in noisy_batches(images, samples=4, noise=0.2, seed=4, batch=batch):
        values = sightline.explain(tiny_vit, noisy, "ixg", target=1).values
        maps += [values[:, copy::count] for count in [len(rows) // 2] for copy in range(count)]
    adapter = sightline.adapt(tiny_vit, batch=batch)
    got = sightline.explain(adapter, images, f"smooth(ixg, samples=4, noise=0.2, seed=4, stat='{stat}')", target=1)
    assert_close(got.values, statistic(torch.stack(maps)))


def test_smooth_matches_the_noise_tunnel_of_captum(tiny_cnn: nn.Module, images: Tensor, monkeypatch, parity) -> None:
    ((noisy, _),) = noisy_batches(images, samples=3, noise=0.2, seed=0, batch=16)
    drawn = noisy - images.repeat_interleave(3, dim=0)
    monkeypatch.setattr(torch, "normal", lambda mean, std: drawn)
    tiny_cnn.relu.inplace = False  # type: ignore[union-attr]
    for name, stat in (("smoothgrad", "mean"), ("smoothgrad_sq", "square"), ("vargrad", "variance")):
        peer = NoiseTunnel(LayerGradCam(tiny_cnn, tiny_cnn.conv3))
        want = peer.attribute(images, nt_type=name, nt_samples=3, target=1)[:, 0]
        recipe = f"smooth(grad_cam(layer='conv3'), samples=3, noise=0.2, stat='{stat}')"
        got = sightline.explain(tiny_cnn, images, recipe, target=1).map
        assert_close(got, want.detach(), rtol=1e-9, atol=1e-15)
        parity("smooth", "captum NoiseTunnel", got, want, 1e-9)


def test_smooth_without_noise_is_the_method(tiny_vit: nn.Module, images: Tensor) -> None:
    got = sightline.explain(tiny_vit, images, "smooth(gae, samples=2, noise=0.0)", target=1).values
    assert_close(got, sightline.explain(tiny_vit, images, "gae", target=1).values)


def test_smooth_of_gradient_is_smooth_grad(tiny_vit: nn.Module, images: Tensor) -> None:
    got = sightline.explain(tiny_vit, images, "smooth(gradient(at='pixels'), samples=5)", target=1).values
    assert_close(got, sightline.explain(tiny_vit, images, "smooth_grad(samples=5, at='pixels')", target=1).values)


def test_what_cannot_be_summed_has_no_cost_either(tiny_cnn):
    with pytest.raises(errors.UnsupportedMethod, match="layers are summed on transformers only"):
        sightline.parse("plus(ixg)").cost(sightline.adapt(tiny_cnn))
