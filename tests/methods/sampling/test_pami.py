"""PAMI: regions alone on a blurred image, written out; shifts, given regions, and where the evidence is known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy.ndimage import gaussian_filter
from skimage.color import rgb2gray
from skimage.filters import sobel
from skimage.segmentation import felzenszwalb, slic, watershed
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import sightline
from sightline.data.shapes import Shapes
from sightline.errors import RecipeError
from sightline.methods.sampling.pami import SHIFTS, PartitionAndAggregate, authors_cuts, most_segments
from sightline.models.passes import counting
from sightline.perturb.segments import grid_segments


def blurred(raw: Tensor, radius: int, sigma: float) -> Tensor:
    """A point under a Gaussian filter is the kernel; pixels beyond the border are black."""
    point = torch.zeros(2 * radius + 1, 2 * radius + 1, dtype=torch.float64)
    point[radius, radius] = 1
    kernel = torch.from_numpy(gaussian_filter(point.numpy(), sigma))
    return F.conv2d(raw[:, None], kernel[None, None], padding=radius)[:, 0]


def written_out(model: Any, raw: Tensor, target: int, cuts: list[Any], shifts: list[tuple[int, int]]) -> Tensor:
    total, count = torch.zeros(raw.shape[-2:], dtype=torch.float64), 0
    for down, right in shifts:
        moved = raw.roll((-down, -right), dims=(1, 2))
        rest = blurred(moved, 3, 100 * 3 / 24)
        for cut in cuts:
            labels = torch.as_tensor(cut(moved.movedim(0, -1).numpy()))
            scores = torch.zeros_like(total)
            for label in labels.unique():
                kept = torch.where(labels == label, moved, rest)
                scores[labels == label] = model(sightline.adapt(model).normalise(kept)[None]).softmax(dim=1)[0, target]
            total, count = total + scores.roll((down, right), dims=(0, 1)), count + 1
    return total / count


@torch.no_grad()
def test_equals_the_definition_written_out(tiny_cnn: nn.Module) -> None:
    raw = F.interpolate(torch.rand(1, 3, 8, 8), size=32, mode="bilinear")[0].double()
    smallest = round(784 * 32 * 32 / 224**2)
    cuts = [
        *(lambda x, s=s: felzenszwalb(x, scale=s, sigma=0.8, min_size=smallest) for s in (250, 200, 150, 100, 70, 50)),
        *(lambda x, n=n: slic(x, n_segments=n, compactness=20) for n in range(10, 90, 10)),
        *(lambda x, n=n: watershed(sobel(rgb2gray(x)), markers=n, compactness=1e-4) for n in (10, 20, 30)),
    ]
    adapter = sightline.adapt(tiny_cnn)
    got = sightline.explain(adapter, adapter.normalise(raw)[None], "pami(samples=3)", target=3).map[0]
    want = written_out(tiny_cnn, raw, 3, cuts, [(0, 0), (round(36 / 7), 0), (0, round(36 / 7))])
    assert_close(got, want, atol=1e-12, rtol=0)


def test_the_shifts_are_three_lengths_to_four_sides() -> None:
    assert len(set(SHIFTS)) == 12
    assert {abs(down) + abs(right) for down, right in SHIFTS} == {24, 30, 36}
    assert all(0 in pair for pair in SHIFTS)


class Quarter(nn.Module):
    """Class k is the contrast in the k-th quarter of the image, which blur takes away."""

    def forward(self, images: Tensor) -> Tensor:
        mean = F.avg_pool2d(images.square().mean(dim=1, keepdim=True), 16)
        return 20 * mean.flatten(1)


def test_a_given_cut_gives_each_region_what_it_shows_alone() -> None:
    images = torch.randint(2, (1, 3, 32, 32)).double() * 2 - 1
    got = sightline.explain(Quarter().eval(), images, "pami(segments=(('grid', 2),), samples=1)", target=2)
    values = got.map[0, ::16, ::16].flatten()
    assert values.argmax() == 2
    assert values[2] > 0.9
    assert got.passes.forward == 4
    assert torch.equal(got.map[0, :16, :16], values[0].expand(16, 16))


def test_regions_can_be_given(tiny_cnn: nn.Module, images: Tensor) -> None:
    method, adapter, target = PartitionAndAggregate(samples=1), sightline.adapt(tiny_cnn), sightline.Logit(1)
    by_name = sightline.explain(tiny_cnn, images, "pami(segments=(('grid', 4),), samples=1)", target=1).map
    labels = grid_segments((32, 32), (4, 4)).labels
    for given in (labels, labels[None].repeat(2, 1, 1) + 5, grid_segments((32, 32), (4, 4)), lambda raw: labels):
        assert_close(method.on(adapter, images, [target], [given])[0].map, by_name)


def test_shifts_are_drawn_from_a_seed(tiny_cnn: nn.Module, images: Tensor) -> None:
    recipe = "pami(segments=(('grid', 3),), samples=4, seed={})"
    first, same, other = (sightline.explain(tiny_cnn, images, recipe.format(seed), 1).map for seed in (3, 3, 4))
    assert torch.equal(first, same)
    assert not torch.allclose(first, other)
    alone = sightline.explain(tiny_cnn, images[1:], recipe.format(3), 1).map
    assert_close(alone[0], first[1])


def test_costs_no_more_than_it_says(tiny_cnn: nn.Module, images: Tensor) -> None:
    adapter, method = sightline.adapt(tiny_cnn), PartitionAndAggregate(samples=1)
    with torch.no_grad(), counting() as meter:
        method(adapter, images[:1], sightline.Logit(0))
    size = (32, 32)
    assert 100 < meter.passes.forward <= sum(most_segments(cut, size) for cut in authors_cuts(size))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bundled/shapes-vit", "bundled/shapes-cnn"])
def test_lies_on_the_evidence(name: str) -> None:
    adapter, batch = sightline.load(name), Shapes(seed=77).draw(10)
    images, masks = adapter.normalise(batch.images), batch.evidence.long()
    precisions = {}
    for recipe in ("pami(segments=(('grid', 4), ('grid', 3)), samples=5)", "random"):
        attribution = sightline.explain(adapter, images, recipe, batch.labels)
        scores = sightline.evaluate(adapter, images, attribution, ["average_precision"], batch.labels, masks)
        precisions[recipe[:4]] = scores["average_precision"]
    margin = precisions["pami"] - precisions["rand"]
    assert margin.mean() > 3 * margin.std() / len(margin) ** 0.5


@pytest.mark.parametrize(
    "options",
    [
        {"segments": ()},
        {"segments": "slic"},
        {"segments": ("x",)},
        {"segments": ("slic", 50)},
        {"samples": 0},
        {"samples": 14},
    ],
)
def test_refuses_what_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        PartitionAndAggregate(**options)
