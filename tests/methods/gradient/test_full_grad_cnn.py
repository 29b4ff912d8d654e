"""FullGrad on CNNs: the decomposition is complete; then the authors' numbers and grad-cam's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.methods import reference_cnn
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import sightline
from sightline.methods.gradient.full_grad_cnn import decompose, full_grad_map
from sightline.models.passes import counting
from sightline.perturb.noise import noisy_batches
from sightline.types import Contrast, Logit, Passes

NAMES, TARGET = reference_cnn.NAMES, Logit(reference_cnn.TARGET)


@pytest.mark.parametrize("name", NAMES)
def test_input_and_biases_sum_to_the_logit(name: str) -> None:
    model, image = reference_cnn.network(name)
    (found,) = decompose(sightline.adapt(model), image, [TARGET])
    assert_close(found.total, TARGET(model(image)).detach())
    sums = torch.stack([term.sum() for term in found.biases])
    want = reference_cnn.want(f"fullgrad_{name}", "bias_term_sums")
    assert_close(sums.sort().values, want.sort().values)


def test_modules_used_twice_and_in_place_have_a_term_per_call(images: Tensor) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.stem, self.conv, self.head = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3), nn.Linear(6, 5)
            self.norm, self.relu = nn.BatchNorm2d(6, affine=False), nn.ReLU(inplace=True)
            self.norm.running_mean.uniform_()  # type: ignore[union-attr]

        def forward(self, images: Tensor) -> Tensor:
            x = self.relu(self.norm(self.stem(images)))
            x = self.relu(self.norm(self.conv(self.relu(self.conv(x)))))
            found: Tensor = self.head(x.mean(dim=(2, 3)))
            return found

    model = Twice().double().eval()
    (found,) = decompose(sightline.adapt(model), images, [Logit(1)])
    assert len(found.terms) == 6
    assert_close(found.total, model(images)[:, 1].detach())


@pytest.mark.parametrize(
    ("variant", "file", "name", "tolerance"),
    [("paper", "fullgrad", name, 1e-12) for name in NAMES]
    + [("simple", "simple_fullgrad", name, 1e-12) for name in NAMES]
    + [("pgc", "pgc_fullgrad", name, 1e-5) for name in NAMES],
)
def test_matches_the_references(variant: str, file: str, name: str, tolerance: float) -> None:
    model, image = reference_cnn.network(name)
    with torch.no_grad():
        (got,) = full_grad_map(sightline.adapt(model), image, [TARGET], variant)
    reference_cnn.assert_same(got[0], reference_cnn.want(f"{file}_{name}"), tolerance)


def test_matches_grad_cam_on_a_photograph_where_its_norms_are_no_plain_ones(shared: Path) -> None:
    model, image = sightline.load("package/efficientnet_lite0"), reference_cnn.photograph(shared)
    (got,) = full_grad_map(model, image, [Logit(155)], "pgc")
    want = np.load(shared / "golden" / "cnn_photo" / "pgc_fullgrad_lite0.npz")["pixels"]
    reference_cnn.assert_same(got[0], torch.from_numpy(want), 1e-5)
    assert len(decompose(model, image, [Logit(155)])[0].terms) == 50  # ours sees them all


@pytest.mark.parametrize("name", NAMES)
def test_completeness_on_relu_networks_is_within_a_millionth(name: str) -> None:
    model, image = reference_cnn.network(name)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        network, images = model.to(dtype), image.to(dtype)
        (found,) = decompose(sightline.adapt(network), images, [TARGET])
        gap = (found.total - TARGET(network(images)).detach()).abs() / TARGET(network(images)).detach().abs()
        assert gap.max() < tolerance


def test_smooth_averages_the_terms_before_they_are_shown(images: Tensor) -> None:
    model, _ = reference_cnn.network("tiny_resnet")
    adapter = sightline.adapt(model)
    (got,) = full_grad_map(adapter, images, [Logit((1, 3))], "smooth", samples=3, seed=5)
    totals: list[Tensor] = []
    for noisy, rows in noisy_batches(images, 3, 0.15, 5, adapter.batch):
        (found,) = decompose(adapter, noisy, [Logit((1, 3)).take(rows)])
        parts = [found.image.sum(dim=1, keepdim=True), *(term for term in found.biases if term.ndim == 4)]
        totals = [part.unflatten(0, (2, 3)).mean(dim=1) for part in parts]
    want = torch.zeros(2, 32, 32, dtype=torch.float64)
    for total in totals:
        size = total.abs() - total.abs().amin(dim=(1, 2, 3), keepdim=True)
        size = size / (size.amax(dim=(1, 2, 3), keepdim=True) + 1e-6)
        want += F.interpolate(size, (32, 32), mode="bilinear", align_corners=True).sum(dim=1)
    assert_close(got, want)


def test_smooth_costs_a_pass_per_sample_and_repeats_itself(tiny_cnn: nn.Module, images: Tensor) -> None:
    recipe = "full_grad(variant='smooth', samples=4, seed={})"
    one, same, other = (sightline.explain(tiny_cnn, images, recipe.format(seed), 1) for seed in (0, 0, 1))
    assert one.passes == Passes(8, 8)
    assert torch.equal(one.map, same.map)
    assert not torch.allclose(one.map, other.map)
    alone = sightline.explain(tiny_cnn, images[1:], recipe.format(0), 1)
    assert_close(alone.map[0], one.map[1])


def test_several_targets_share_the_forward_pass(tiny_cnn: nn.Module, images: Tensor) -> None:
    adapter, targets = sightline.adapt(tiny_cnn), [Logit(0), Logit((1, 3)), Contrast(2, 4)]
    with torch.no_grad(), counting() as meter:
        together = full_grad_map(adapter, images, targets)
    assert meter.passes == Passes(2, 6)
    for one, target in zip(together, targets, strict=True):
        assert one.shape == (2, 32, 32)
        assert_close(one, full_grad_map(adapter, images, [target])[0])


def test_an_unknown_variant_is_refused(tiny_cnn: nn.Module, images: Tensor) -> None:
    with pytest.raises(sightline.errors.RecipeError, match="variant='x'"):
        full_grad_map(sightline.adapt(tiny_cnn), images, [Logit(0)], "x")
