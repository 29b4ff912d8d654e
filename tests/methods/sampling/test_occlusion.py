"""Occlusion: captum's and PAIR's windows, captum's feature ablation, closed forms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.methods import reference_cnn
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline import Logit, Probability
from sightline.errors import RecipeError
from sightline.methods.sampling.occlusion import FeatureAblation, Occlusion, spans
from sightline.types import Contrast


def test_matches_captum() -> None:
    network, image = reference_cnn.network("tiny_cnn")
    model = sightline.adapt(network)
    got = Occlusion(window=16, stride=8)(model, image, Logit(2)).map[0]
    reference_cnn.assert_same(got, reference_cnn.want("captum_occlusion_16_8_tiny_cnn", "map")[0], 1e-7)
    reference_cnn.assert_same(3 * got, reference_cnn.want("captum_occlusion_16_8_tiny_cnn"), 1e-7)  # channel by channel
    half = Occlusion(window=15, stride=10).with_fill(model, image, torch.full_like(image, 0.5), [Logit(2)])[0].map[0]
    reference_cnn.assert_same(half, reference_cnn.want("captum_occlusion_15_10_tiny_cnn", "map")[0], 1e-7)
    recipe = "occlusion(window=15, stride=10, blank=0.5)"
    assert torch.equal(sightline.explain(network, image, recipe, target=2).map[0], half)
    assert sightline.recipe.text(sightline.parse(recipe)) == recipe


def test_matches_pair() -> None:
    network, image = reference_cnn.network("tiny_cnn")
    got = Occlusion(window=15, stride=1, fusion="sum")(sightline.adapt(network), image, Logit(2)).map[0]
    reference_cnn.assert_same(3 * got, reference_cnn.want("pair_occlusion_tiny_cnn"), 1e-9)


@pytest.mark.shared
@pytest.mark.slow
def test_matches_captum_on_a_photograph(shared: Path) -> None:
    numbers = np.load(shared / "golden" / "cnn_photo" / "captum_occlusion_32_16_lite0.npz")
    model, image = sightline.load("package/efficientnet_lite0"), reference_cnn.photograph(shared)
    got = Occlusion(window=32, stride=16)(model, image, Logit(155)).map[0].double()
    reference_cnn.assert_same(3 * got, torch.from_numpy(numbers["pixels"]).double(), 1e-4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("window", "stride"), [(8, 4), (7, 5), (10, 10), (32, 3), (5, 5)])
def test_equals_captum_in_the_same_process(
    window: int, stride: int, tiny_cnn: nn.Module, images: Tensor, parity
) -> None:
    captum = pytest.importorskip("captum.attr")
    got = Occlusion(window=window, stride=stride)(sightline.adapt(tiny_cnn), images, Logit((1, 4))).map
    wanted = captum.Occlusion(tiny_cnn).attribute(
        images, target=torch.tensor([1, 4]), sliding_window_shapes=(3, window, window), strides=(3, stride, stride)
    )
    assert_close(got, wanted[:, 0].detach().double(), rtol=1e-5, atol=1e-6)
    parity("occlusion", "captum Occlusion", got, wanted[:, 0], 1e-5)


@pytest.mark.filterwarnings("ignore")
def test_superpixels_equal_captums_feature_ablation(tiny_vit: nn.Module, images: Tensor, parity) -> None:
    captum = pytest.importorskip("captum.attr")
    labels = (torch.rand(32, 32) * 6).long()
    got = Occlusion().on(sightline.adapt(tiny_vit), images, [Logit(3)], labels)[0].map
    wanted = captum.FeatureAblation(tiny_vit).attribute(images, target=3, feature_mask=labels[None, None])
    assert_close(got, wanted[:, 0].detach().double(), rtol=1e-5, atol=1e-6)
    named = sightline.explain(tiny_vit, images, FeatureAblation(segments=labels), target=3).map
    assert_close(named, got, rtol=1e-12, atol=1e-15)
    parity("feature_ablation", "captum FeatureAblation", named, wanted[:, 0], 1e-9)


def test_a_sum_over_pixels_gives_every_window_what_it_covers() -> None:
    images = torch.rand(1, 3, 10, 10, dtype=torch.float64)
    model = sightline.adapt(lambda x: x.sum(dim=(2, 3)))
    got = Occlusion(window=4, stride=4)(model, images, Logit(1)).map[0]
    for rows, columns in ((slice(0, 4), slice(4, 8)), (slice(8, 10), slice(8, 10))):
        assert_close(got[rows, columns], images[0, 1, rows, columns].sum().expand_as(got[rows, columns]))
    cells = Occlusion(segments=("grid", 5))(model, images, Logit(1))
    assert_close(cells.map[0], images[0, 1].unflatten(0, (5, 2)).unflatten(2, (5, 2)).sum(dim=(1, 3)))
    assert cells.grid.cells == 25


def test_shares_of_the_side_are_the_same_windows_at_any_size() -> None:
    images = torch.rand(1, 3, 24, 32)
    model = sightline.adapt(lambda x: x.mean(dim=(2, 3)))
    got = sightline.explain(model, images, "occlusion(window=0.5, stride=0.25)", target=0)
    assert got.passes.forward == 10 == Occlusion(window=0.5, stride=0.25).cost(model).forward
    assert Occlusion().cost(model).forward == 1 + 27**2


def test_pixels_that_no_window_covers_have_zero() -> None:
    images = torch.ones(1, 3, 12, 12)
    got = Occlusion(window=2, stride=5)(sightline.adapt(lambda x: x.sum(dim=(2, 3))), images, Logit(0)).map[0]
    assert spans(12, 2, 5) == [(0, 2), (5, 7), (10, 12)]
    assert got[0, 0] == 4
    assert (got[2:5] == 0).all()


def test_targets_share_the_passes_and_need_no_class(tiny_cnn: nn.Module, images: Tensor) -> None:
    model, targets = sightline.adapt(tiny_cnn), [Contrast(0, 2), Logit((1, 3)), Probability(1)]
    for method in (Occlusion(), Occlusion(segments=("grid", 3))):
        with sightline.models.passes.counting() as meter:
            attributions = method.multi_target(model, images, targets)
        assert meter.passes.forward == 2 * 10
        for target, got in zip(targets, attributions, strict=True):
            assert_close(got.values, method(model, images, target).values)
    probability = Occlusion(score="probability")(model, images, Logit(1)).values
    assert_close(probability, Occlusion()(model, images, Probability(1)).values)


@pytest.mark.parametrize("blank", ["black", "white", "blur", "segment"])
def test_what_covers_is_the_blank(blank: str, tiny_cnn: nn.Module, images: Tensor) -> None:
    model = sightline.adapt(tiny_cnn)
    got = Occlusion(segments=("grid", 1), blank=blank)(model, images, Logit(0)).map.flatten()  # type: ignore[arg-type]
    filled = {
        "black": model.normalise(torch.zeros_like(images)),
        "white": model.normalise(torch.ones_like(images)),
        "segment": images.mean(dim=(2, 3), keepdim=True).expand_as(images),
    }.get(blank)
    if filled is not None:
        assert_close(got, (tiny_cnn(images) - tiny_cnn(filled))[:, 0].detach())
    assert not torch.allclose(got, Occlusion(segments=("grid", 1))(model, images, Logit(0)).map.flatten())


@pytest.mark.parametrize(
    "options",
    ["window=0", "stride=0", "window=1.5", "stride=0.0", "fusion='max'", "blank='segment'", "blank=1e400", "blank=True",
     "segments='voronoi'",
     "score='loss'"],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(options: str) -> None:
    with pytest.raises(RecipeError, match="got "):
        sightline.recipe.parse(f"occlusion({options})")
