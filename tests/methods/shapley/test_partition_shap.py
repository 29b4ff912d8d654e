"""Partition SHAP: shap's own search on pixels and on given segments, Owen values by their definition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.methods import reference_cnn
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline import Logit
from sightline.data.shapes import Shapes
from sightline.errors import RecipeError, ShapeError
from sightline.methods.shapley.kernel_shap import KernelShap
from sightline.methods.shapley.owen import Box, Group, leaves, spatial_tree
from sightline.methods.shapley.partition_shap import PartitionShap
from sightline.perturb.mirror import box_blur, mirrored
from sightline.perturb.segments import Segments, grid_segments

GRID = ("grid", 2, 4)


def by_segment(values: Tensor, labels: Tensor) -> Tensor:
    """Add a map, (height, width), up inside each segment."""
    return Segments(labels).sums(values)


@pytest.mark.parametrize(("name", "options"), [("blur", {"window": 8}), ("zero", {"blank": "mean"})])
def test_matches_shap_down_to_the_pixel(name: str, options: Any) -> None:
    network, image = reference_cnn.network("tiny_cnn")
    numbers = reference_cnn.numbers(f"partition_shap_{name}_tiny_cnn")
    model, method = sightline.adapt(network), PartitionShap(samples=200, per_step=10, **options)
    with sightline.models.passes.counting() as meter:
        got = method(model, image, Logit(2)).map[0]
    assert meter.passes.forward == 200
    reference_cnn.assert_same(got, torch.from_numpy(numbers["pixels"]), 1e-9)
    assert float(got.sum()) == pytest.approx(float(numbers["total"]), abs=1e-9)


@pytest.mark.shared
@pytest.mark.slow
def test_matches_shap_on_a_photograph(shared: Path) -> None:
    numbers = np.load(shared / "golden" / "cnn_photo" / "partition_shap_blur_lite0.npz")
    model, image = sightline.load("package/efficientnet_lite0"), reference_cnn.photograph(shared)
    got = PartitionShap(samples=200, per_step=10, window=32)(model, image, Logit(155)).map[0]
    reference_cnn.assert_same(got.double(), torch.from_numpy(numbers["pixels"]).double(), 1e-4)


@pytest.mark.filterwarnings("ignore")
def test_equals_shap_on_the_same_segments_and_hierarchy(tiny_cnn: nn.Module, images: Tensor, parity) -> None:
    shap = pytest.importorskip("shap")
    labels, tree = grid_segments((32, 32), (2, 4)).labels, (((0, 4), (1, 7)), (2, (3, (5, 6))))
    # rows of shap's matrix: left, right, distance, leaves; inner nodes count on from 8
    rows = [(0, 4, 2), (1, 7, 2), (5, 6, 2), (3, 10, 3), (2, 11, 4), (8, 9, 4), (13, 12, 8)]
    clustering = np.array([[left, right, 1, size] for left, right, size in rows], dtype=float)

    def play(z: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            logits: np.ndarray = tiny_cnn(images[:1] * torch.from_numpy(z)[:, labels][:, None]).numpy()[:, 1]
        return logits

    masker = shap.maskers.Partition(np.zeros((1, 8)), clustering=clustering)
    for samples in (500, 24):
        explainer = shap.explainers.Partition(play, masker)
        wanted = explainer(np.ones((1, 8)), max_evals=samples, batch_size=4, silent=True).values[0]
        method = PartitionShap(samples=samples, per_step=2, blank="mean")
        got = method.on(sightline.adapt(tiny_cnn), images[:1], [Logit(1)], labels, tree)[0].map[0]
        assert_close(by_segment(got, labels), torch.from_numpy(wanted), rtol=1e-9, atol=1e-12)
        parity("partition_shap", "shap Partition", by_segment(got, labels), wanted, 1e-9)


def owen(play: Any, tree: Any, context: frozenset[int] = frozenset()) -> dict[int, float]:
    """Owen values by their definition: each half in both contexts that the other half makes."""
    here = frozenset(leaves(tree))
    if isinstance(tree, int):
        return {tree: play(context | here) - play(context)}
    a, b = tree
    values: dict[int, float] = {}
    for half, other in ((a, b), (b, a)):
        alone, beside = owen(play, half, context), owen(play, half, context | frozenset(leaves(other)))
        values |= {leaf: (alone[leaf] + beside[leaf]) / 2 for leaf in alone}
    return values


def test_with_enough_passes_the_values_are_owen_values(tiny_cnn: nn.Module, images: Tensor) -> None:
    pieces = grid_segments((32, 32), (2, 3))
    tree = spatial_tree(pieces)
    assert tree == ((0, 3), ((1, 2), (4, 5)))

    def play(there: frozenset[int]) -> float:
        mask = torch.isin(pieces.labels, torch.tensor(sorted(there), dtype=torch.long))
        return float(tiny_cnn(images[:1] * mask)[0, 3].detach())

    got = PartitionShap(segments=("grid", 2, 3), blank="mean")(sightline.adapt(tiny_cnn), images[:1], Logit(3))
    wanted = owen(play, tree)
    assert_close(by_segment(got.map[0], pieces.labels), torch.tensor([wanted[i] for i in range(6)]).double())


@pytest.mark.parametrize("name", ["bundled/shapes-cnn", "bundled/shapes-vit"])
def test_on_shapes_they_come_near_the_exact_shapley_values(name: str) -> None:
    model, batch = sightline.load(name), Shapes(seed=5).draw(3)
    model.batch = 64
    images, target = model.normalise(batch.images), Logit(tuple(batch.labels.tolist()))
    exact = KernelShap(segments=GRID, blank="blur")(model, images, target).map.flatten(1)
    got = PartitionShap(segments=GRID)(model, images, target).map
    labels = grid_segments((64, 64), (2, 4)).labels
    for row in range(3):
        pair = torch.stack([by_segment(got[row], labels), exact[row]])
        assert float(torch.corrcoef(pair)[0, 1]) > 0.95


def test_the_values_add_up_and_targets_have_searches_of_their_own(tiny_cnn: nn.Module, images: Tensor) -> None:
    model, method = sightline.adapt(tiny_cnn), PartitionShap(samples=30, blank="white")
    targets = [Logit(0), Logit((1, 2))]
    with sightline.models.passes.counting() as meter:
        attributions = method.multi_target(model, images, targets)
    assert meter.passes.forward <= 2 * method.multi_target_cost(model, 2).forward
    white = model.normalise(torch.ones_like(images))
    for target, got in zip(targets, attributions, strict=True):
        assert_close(got.map, method(model, images, target).map)
        assert_close(got.map.sum(dim=(1, 2)), target(tiny_cnn(images)) - target(tiny_cnn(white)))


def test_what_matters_is_looked_at_more_closely() -> None:
    images = torch.ones(1, 3, 32, 32, dtype=torch.float64)
    model = sightline.adapt(lambda x: x[:, :2, 5, 20])
    # 31 splits are five levels, for every level has twice the contexts of the one above
    got = PartitionShap(samples=64, per_step=1, blank="mean")(model, images, Logit(0)).map[0]
    assert (got != 0).sum() == 32
    assert got[5, 20] == pytest.approx(1 / 32)
    assert got.sum() == pytest.approx(1)


def test_boxes_are_halved_down_to_the_pixel() -> None:
    box = Box((3, 4), (0, 3), (0, 4))
    left, right = box.split() or (box, box)
    assert (left.columns, right.columns) == ((0, 2), (2, 4))
    top, bottom = left.split() or (box, box)
    assert (top.rows, bottom.rows) == ((0, 1), (1, 3))
    assert torch.equal(left.mask | right.mask, box.mask)
    assert Box((3, 4), (1, 2), (1, 2)).split() is None


def test_segments_are_grouped_with_their_neighbours() -> None:
    assert spatial_tree(grid_segments((8, 8), (2, 2))) == ((0, 1), (2, 3))
    pieces = grid_segments((8, 24), (1, 5))
    assert spatial_tree(pieces) == ((0, 1), (2, (3, 4)))
    assert Group(pieces, (0, 1)).mask.sum() == pieces.pixels[:2].sum()
    rings = torch.zeros(9, 9, dtype=torch.long)
    rings[3:6, 3:6] = 1  # the same centre
    assert spatial_tree(Segments(rings)) == (0, 1)


def test_a_hierarchy_holds_every_segment_once(tiny_cnn: nn.Module, images: Tensor) -> None:
    model, labels = sightline.adapt(tiny_cnn), grid_segments((32, 32), (1, 3)).labels
    for tree in ((0, 1), (0, (1, 1)), ((0, 1), (2, 3))):
        with pytest.raises(ShapeError, match="every number from 0 to 2"):
            PartitionShap().on(model, images, [Logit(0)], labels, tree)


@pytest.mark.parametrize("window", [1, 4, 5, 31])
def test_the_blur_is_opencvs(window: int) -> None:
    cv2 = pytest.importorskip("cv2")
    image = torch.randn(1, 3, 12, 17, dtype=torch.float64)
    wanted = cv2.blur(image[0].movedim(0, -1).numpy().copy(), (window, window))
    assert_close(box_blur(image, window)[0].movedim(0, -1), torch.from_numpy(wanted))
    assert mirrored(torch.tensor([-5, 0, 7]), 1).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "options",
    ["samples=3", "per_step=0", "window=0", "blank='mean', window=3", "blank='segment'", "segments='voronoi'",
     "blank='grey'", "score='loss'"],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(options: str) -> None:
    with pytest.raises(RecipeError, match="got "):
        sightline.recipe.parse(f"partition_shap({options})")
