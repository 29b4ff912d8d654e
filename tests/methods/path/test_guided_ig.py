"""Guided integrated gradients: where the path goes, what it adds up to, and the authors' program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import saliency.core as pair
import torch
from tests import tiny
from tests.methods import reference_cnn
from torch import Tensor, nn
from torch.testing import assert_close

import sightline


def gradient_of(model: nn.Module, target: int, dtype: torch.dtype) -> Any:
    """Return the function through which PAIR's package asks a model, images being (batch, height, width, channel)."""

    def call_model(values: Any, call_model_args: Any = None, expected_keys: Any = None) -> dict[str, Any]:
        images = torch.from_numpy(values).permute(0, 3, 1, 2).to(dtype).contiguous().requires_grad_()
        (found,) = torch.autograd.grad(model(images)[:, target].sum(), images)
        return {pair.INPUT_OUTPUT_GRADIENTS: found.permute(0, 2, 3, 1).numpy()}

    return call_model


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """PAIR's GuidedIG, which passes an argument to np.quantile that NumPy has renamed."""
    plain = np.quantile
    monkeypatch.setattr(
        np, "quantile", lambda a, q, interpolation="linear", **more: plain(a, q, method=interpolation, **more)
    )

    def says(model: nn.Module, image: Tensor, target: int, **options: Any) -> Tensor:
        pixels = image[0].permute(1, 2, 0).double().numpy()
        ask = gradient_of(model, target, image.dtype)
        return torch.from_numpy(pair.GuidedIG().GetMask(pixels, ask, **options)).sum(dim=-1)

    return says


@pytest.mark.parametrize(
    ("recipe", "key"),
    [("guided_ig", "default"), ("guided_ig(steps=25, fraction=0.5, distance=1.0)", "iia")],
)
def test_matches_its_authors_numbers(recipe: str, key: str) -> None:
    model, image = reference_cnn.network("tiny_cnn")
    got = sightline.explain(model, image, recipe, target=2).map[0]
    reference_cnn.assert_same(got, reference_cnn.want("paths", f"guided_ig_{key}_tiny_cnn"), 1e-9)


@pytest.mark.parametrize(("fraction", "distance"), [(0.25, 0.02), (0.1, 0.3), (0.9, 1.0), (0.0, 0.05)])
def test_matches_its_authors_program(fraction: float, distance: float, peer: Any, tiny_cnn: nn.Module, parity) -> None:
    image = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    image[0, :, :3] = 0  # some pixels do not differ from the reference
    want = peer(tiny_cnn, image, 1, x_steps=15, fraction=fraction, max_dist=distance)
    got = sightline.explain(tiny_cnn, image, f"guided_ig(steps=15, {fraction=}, {distance=})", target=1).map[0]
    reference_cnn.assert_same(got, want, 1e-9)
    parity("guided_ig", "PAIR GuidedIG", got, want, 1e-9)


def test_matches_its_authors_program_on_a_photograph(peer: Any, shared: Path) -> None:
    adapter, image = sightline.load("package/efficientnet_lite0"), reference_cnn.photograph(shared)
    want = peer(adapter.model, image, 155, x_steps=6, fraction=0.25, max_dist=0.1)
    got = sightline.explain(adapter, image, "guided_ig(steps=6, distance=0.1)", target=155).map[0]
    reference_cnn.assert_same(got, want, 1e-5)


@pytest.mark.slow
def test_matches_its_authors_numbers_on_a_photograph(shared: Path) -> None:
    adapter, image = sightline.load("package/efficientnet_lite0"), reference_cnn.photograph(shared)
    want = np.load(shared / "golden" / "cnn_photo" / "guided_ig_s40_lite0.npz")["pixels"]
    got = sightline.explain(adapter, image, "guided_ig(steps=40)", target=155).map[0]
    reference_cnn.assert_same(got, torch.from_numpy(want), 1e-3)


def test_a_linear_network_gives_the_weight_times_the_difference(images: Tensor) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(900, 5)).double().eval()
    want = sightline.explain(model, images, "ixg(at='pixels')", target=1).map
    assert_close(sightline.explain(model, images, "guided_ig(steps=7, distance=0.2)", target=1).map, want)


@pytest.mark.parametrize("distance", [0.02, 0.3, 1.0])
def test_sums_to_the_difference_of_the_two_ends(distance: float) -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.SiLU(), nn.Flatten(), nn.Linear(24, 5))
    tiny.awake(model).double().eval()
    image = torch.randn(1, 3, 4, 4, dtype=torch.float64)  # so few values that a step moves less than one
    with torch.no_grad():
        want = (model(image) - model(torch.zeros_like(image)))[0, 3]
    few, many = (
        abs(sightline.explain(model, image, f"guided_ig({steps=}, {distance=})", target=3).map.sum() - want)
        for steps in (100, 800)
    )
    assert many < 0.02 * abs(want)
    assert many < few / 4


def test_without_room_beside_the_line_is_integrated_gradients_by_left_sums(tiny_cnn: nn.Module, images: Tensor) -> None:
    got = sightline.explain(tiny_cnn, images, "guided_ig(steps=8, distance=0.0)", target=0).map
    want = torch.zeros_like(got)
    for step in range(8):
        point = (images * step / 8).requires_grad_()
        (gradient,) = torch.autograd.grad(tiny_cnn(point)[:, 0].sum(), point)
        want += (gradient * images).sum(dim=1) / 8
    assert_close(got, want)


def test_the_flattest_pixels_go_first() -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.arange(1.0, 13).double().view(1, 3, 2, 2))
            self.seen: list[Tensor] = []

        def forward(self, images: Tensor) -> Tensor:
            self.seen.append(images.detach().clone())
            score = (self.weight * images).flatten(1).sum(dim=1, keepdim=True)
            return torch.cat([score, -score], dim=1)

    model, image = Weighted().eval(), torch.ones(1, 3, 2, 2, dtype=torch.float64)
    sightline.explain(model, image, "guided_ig(steps=4, fraction=0.25, distance=1.0)", target=0)
    path = [x.flatten().tolist() for x in model.seen[-4:]]
    assert [sum(x) for x in path] == pytest.approx([0, 3, 6, 9])  # equal steps
    assert path[1] == pytest.approx([1, 1, 1, *[0] * 9])
    assert path[2] == pytest.approx([1] * 6 + [0] * 6)


def test_the_image_as_its_own_reference_gets_nothing(tiny_cnn: nn.Module) -> None:
    with pytest.warns(sightline.errors.SightlineWarning, match="constant map"):
        got = sightline.explain(tiny_cnn, torch.zeros(1, 3, 32, 32), "guided_ig(steps=3)", target=1).map
    assert not got.any()


def test_a_corridor_narrower_than_a_rounding_error_ends(tiny_cnn: nn.Module) -> None:
    image = torch.full((1, 3, 32, 32), 1e-5, dtype=torch.float64)
    got = sightline.explain(tiny_cnn, image, "guided_ig(steps=3, distance=1e-300, blank='black')", target=1).map
    assert torch.isfinite(got).all()


@pytest.mark.parametrize("options", ["steps=0", "fraction=1.5", "distance=-0.1", "blank='grey'"])
def test_wrong_options_are_refused(options: str) -> None:
    with pytest.raises(sightline.errors.RecipeError):
        sightline.parse(f"guided_ig({options})")
