"""DeepLIFT SHAP: the mean of DeepLIFT over baselines, and captum."""

from __future__ import annotations

import warnings

import torch
from captum.attr import DeepLiftShap as Peer
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline import Logit
from sightline.methods.gradient.deep_lift import contributions
from sightline.methods.gradient.deep_lift_shap import DeepLiftShap


def network() -> nn.Sequential:
    """A CNN whose ReLUs are modules of their own, as captum needs them."""
    layers = (nn.Conv2d(3, 6, 5, 2), nn.ReLU(), nn.Conv2d(6, 4, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    return nn.Sequential(*layers).double().eval()


def test_matches_captum(images: Tensor, parity) -> None:
    model, pool = network(), torch.randn(3, 3, 32, 32, dtype=torch.float64)
    got = sightline.explain(model, images, DeepLiftShap(samples=3, pool=pool), target=1).map
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # captum says that it sets hooks
        want = Peer(model).attribute(images, pool, target=1).sum(dim=1)
    assert_close(got, want.detach(), rtol=1e-9, atol=1e-12)
    parity("deep_lift_shap", "captum DeepLiftShap", got, want, 1e-9)


def test_is_the_mean_of_deep_lift_at_every_block_of_a_transformer(tiny_vit: nn.Module, images: Tensor) -> None:
    pool = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    got = sightline.explain(tiny_vit, images, DeepLiftShap(samples=3, pool=pool), target=1)
    adapter = sightline.adapt(tiny_vit)
    with torch.no_grad():
        each = [contributions(adapter, images, x.expand_as(images), [Logit(1)], "tokens")[0] for x in pool]
    for layer, name in enumerate(each[0]):
        mean = torch.stack([one[name].sum(dim=-1) for one in each]).mean(dim=0)
        assert_close(got.values[layer], got.grid.to_map(mean), rtol=1e-12, atol=1e-12)


def test_adds_up_to_the_mean_difference(tiny_cnn: nn.Module, images: Tensor) -> None:
    pool = torch.randn(5, 3, 32, 32, dtype=torch.float64)
    got = sightline.explain(tiny_cnn, images, DeepLiftShap(samples=10, pool=pool), target=1).map.sum(dim=(1, 2))
    with torch.no_grad():
        assert_close(got, tiny_cnn(images)[:, 1] - tiny_cnn(pool)[:, 1].mean())
