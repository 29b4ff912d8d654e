"""Superpixels brought along: label maps, arrays, functions and literals as the option of a method."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline.errors import RecipeError, ShapeError, SightlineError
from sightline.methods.sampling.lime import Lime
from sightline.methods.sampling.occlusion import Occlusion
from sightline.methods.sampling.pami import PartitionAndAggregate
from sightline.methods.shapley.kernel_shap import KernelShap
from sightline.methods.shapley.partition_shap import PartitionShap
from sightline.perturb.segments import Segments, grid_segments
from sightline.perturb.superpixels import about, as_option, check_cut, segments_of

LABELS = grid_segments((32, 32), (2, 4)).labels
EACH = torch.stack([LABELS, LABELS // 3])
METHODS: list[Callable[[Any], Any]] = [
    lambda given: Lime(samples=30, segments=given, blank="mean"),
    lambda given: KernelShap(segments=given),
    lambda given: PartitionShap(segments=given, blank="mean"),
    lambda given: Occlusion(segments=given),
    lambda given: PartitionAndAggregate(segments=(given,), samples=2),
]


@pytest.mark.parametrize("build", METHODS)
def test_labels_may_come_in_any_form(build: Any, tiny_cnn: nn.Module, images: Tensor) -> None:
    wanted = sightline.explain(tiny_cnn, images, build(("grid", 2, 4)), target=(1, 4)).pixels("nearest")
    for given in (
        LABELS, LABELS.numpy(), LABELS.tolist(), LABELS.to(torch.uint8), 3 * LABELS - 9, Segments(LABELS),
        LABELS[None].repeat(2, 1, 1), [LABELS.numpy(), Segments(LABELS)], lambda raw: LABELS,
        lambda raw: LABELS.numpy(), ((0, 1, 2, 3), (4, 5, 6, 7)),
    ):  # fmt: skip
        got = sightline.explain(tiny_cnn, images, build(given), target=(1, 4))
        assert_close(got.map, wanted)


@pytest.mark.parametrize("build", METHODS)
def test_images_may_have_segments_of_their_own(build: Any, tiny_cnn: nn.Module, images: Tensor) -> None:
    adapter, targets = sightline.adapt(tiny_cnn), (1, 4)
    together = sightline.explain(adapter, images, build(EACH), target=targets).map
    for row, target in enumerate(targets):
        alone = sightline.explain(adapter, images[row : row + 1], build(EACH[row]), target=target).map
        assert_close(together[row], alone[0])
    adapter.batch = 1
    assert_close(sightline.explain(adapter, images, build(EACH), target=targets, batch_size=1).map, together)
    with pytest.raises(ShapeError, match="segments of 2 images for a batch of 4; give one label per pixel"):
        sightline.explain(adapter, images.repeat(2, 1, 1, 1), build(EACH), target=1, batch_size=2)


def test_a_small_label_map_is_a_literal_and_stretched_over_the_image(tiny_cnn: nn.Module, images: Tensor) -> None:
    recipe = "kernel_shap(segments=((0, 0, 5), (-2, -2, 5)))"
    got = sightline.explain(tiny_cnn, images, recipe, target=1)
    assert got.recipe == recipe == sightline.recipe.text(sightline.parse(recipe))
    assert got.passes.forward == 2 * 8 == 2 * sightline.parse(recipe).cost(sightline.adapt(tiny_cnn)).forward
    labels = torch.zeros(32, 32, dtype=torch.long)
    labels[16:], labels[:, 22:] = 1, 2
    assert_close(got.map, sightline.explain(tiny_cnn, images, KernelShap(segments=labels), target=1).map)
    odd = segments_of(sightline.adapt(tiny_cnn), torch.zeros(1, 3, 5, 7), ((0, 0, 1), (2, 2, 1)))[0].labels
    assert odd.shape == (5, 7)
    assert odd.unique().tolist() == [0, 1, 2]


def test_a_method_with_labels_is_still_a_value_and_says_what_it_has() -> None:
    method = KernelShap(segments=LABELS)
    assert method == method
    assert hash(method)
    assert KernelShap(segments=method.segments) == method
    assert pickle.loads(pickle.dumps(method)).segments.pieces[0].count == 8
    assert sightline.recipe.text(method) == "kernel_shap(segments=<8 segments in 32×32>)"
    assert "2 images with 3 or 8 segments" in sightline.recipe.text(KernelShap(segments=EACH))
    assert "<function segments_of>" in sightline.recipe.text(KernelShap(segments=segments_of))
    assert Lime(segments=["slic", 60]) == Lime(segments=("slic", 60))
    assert about(as_option(EACH), (32, 32)) == 8


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (LABELS[:5], "one label per pixel"),
        (lambda raw: LABELS[:5], "one label per pixel"),
        (LABELS.repeat(3, 1, 1), "segments of 3 images for a batch of 2"),
        (LABELS.float(), "label map of float32; whole numbers"),
        (LABELS.numpy().astype("float64"), "label map of float64; whole numbers"),
        (LABELS[0], r"label map of shape \(32,\)"),
        (EACH[None], r"label map of shape \(1, 2, 32, 32\)"),
        ([], "label map of shape"),
        (np.array([["a"]]), "got a ndarray as segments; give whole numbers"),
        ({"a": 1}, "got a dict as segments; give whole numbers"),
        (((0, 1), (2,)), "rows of equally many whole numbers"),
        (((0, 1), (2, 0.5)), "rows of equally many whole numbers"),
        (3, "choose from grid"),
        (("quickshift", 0), "kernel of 1 pixel or more"),
        (("felzenszwalb", float("inf")), "choose a finite number"),
    ],
)
def test_what_cannot_be_segments_is_refused_in_a_sentence(
    given: Any, sentence: str, tiny_cnn: nn.Module, images: Tensor
) -> None:
    with pytest.raises(SightlineError, match=sentence):
        sightline.explain(tiny_cnn, images, Lime(samples=4, segments=given), target=1)


@pytest.mark.parametrize("given", [3, None, True, (), ("slic", True), ("slic", "60"), (3, 4)])
def test_what_is_no_cut_is_refused(given: Any) -> None:
    with pytest.raises(RecipeError, match="got segments="):
        check_cut(given)
