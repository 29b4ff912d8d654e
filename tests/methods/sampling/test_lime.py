"""LIME: the package's own fit on its segments and samples, the regression written out, superpixels of all kinds."""

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
from sightline import Probability
from sightline.errors import RecipeError, ShapeError
from sightline.methods.sampling.coalitions import coalition_scores, fill_images
from sightline.methods.sampling.lime import Lime, fit_ridge, package_coalitions, proximity, random_coalitions
from sightline.perturb.segments import Segments
from sightline.perturb.superpixels import segments_of


def fitted(numbers: Any, scores: Tensor) -> tuple[Tensor, Tensor]:
    data = torch.from_numpy(numbers["data"]).bool()
    return fit_ridge(data, proximity(data, 0.25), scores, 1.0)


def asked(model: Any, image: Tensor, numbers: Any, target: int) -> Tensor:
    """Score the recorded samples on the recorded segments."""
    pieces = [Segments(torch.from_numpy(numbers["segments"]).long())]
    data = torch.from_numpy(numbers["data"]).bool()
    fill = fill_images(model, image, "segment", pieces)
    return coalition_scores(model, image, fill, pieces, [data], [Probability(target)])[0]


def test_matches_the_package_given_its_segments_and_samples() -> None:
    network, image = reference_cnn.network("tiny_cnn")
    numbers = reference_cnn.numbers("lime_tiny_cnn")
    scores = asked(sightline.adapt(network), image, numbers, 2)
    assert_close(scores[0], torch.from_numpy(numbers["labels"]), rtol=1e-9, atol=1e-9)
    coefficients, intercept = fitted(numbers, scores)
    assert_close(coefficients[0], torch.from_numpy(numbers["coef"]), rtol=0, atol=1e-9)
    assert float(intercept) == pytest.approx(float(numbers["intercept"]), abs=1e-9)


def test_the_packages_seed_gives_its_map() -> None:
    network, image = reference_cnn.network("tiny_cnn")
    numbers = reference_cnn.numbers("lime_tiny_cnn")
    method = Lime(samples=120, seed=7, variant="package", segments=numbers["segments"])
    got = sightline.explain(network, image, method, target=2)
    assert_close(got.map[0], torch.from_numpy(numbers["map"]), rtol=0, atol=1e-9)
    assert torch.equal(package_coalitions(120, 20, 7), torch.from_numpy(numbers["data"]).bool())


@pytest.mark.shared
@pytest.mark.slow
def test_matches_the_package_on_a_photograph(shared: Path) -> None:
    numbers = np.load(shared / "golden" / "cnn_photo" / "lime_lite0.npz")
    given = torch.from_numpy(numbers["labels"]).double()[None]
    assert_close(fitted(numbers, given)[0][0], torch.from_numpy(numbers["coef"]), rtol=0, atol=1e-9)
    scores = asked(sightline.load("package/efficientnet_lite0"), reference_cnn.photograph(shared), numbers, 155)
    reference_cnn.assert_same(fitted(numbers, scores)[0][0], torch.from_numpy(numbers["coef"]), 1e-4)


@pytest.mark.filterwarnings("ignore")
def test_equals_the_package_in_the_same_process(parity) -> None:
    lime_image = pytest.importorskip("lime.lime_image")
    network, image = reference_cnn.network("tiny_cnn")
    model, labels = sightline.adapt(network), segments_of(sightline.adapt(network), image, ("grid", 4, 3))[0].labels

    def classify(batch: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            probabilities: np.ndarray = network(torch.from_numpy(batch).movedim(-1, 1)).softmax(dim=-1).numpy()
        return probabilities

    explained = lime_image.LimeImageExplainer(random_state=3, verbose=False).explain_instance(
        image[0].movedim(0, -1).numpy(), classify, labels=(2,), top_labels=None, num_samples=80,
        segmentation_fn=lambda _: labels.numpy(),
    )  # fmt: skip
    random = np.random.RandomState(3)
    random.randint(0, 1000)  # the package draws a seed it does not use first
    data = torch.from_numpy(random.randint(0, 2, 80 * 12).reshape(80, 12)).bool()
    data[0] = True
    pieces = [Segments(labels)]
    scores = coalition_scores(
        model, image, fill_images(model, image, "segment", pieces), pieces, [data], [Probability(2)]
    )
    got = fit_ridge(data, proximity(data, 0.25), scores[0], 1.0)[0][0]
    wanted = torch.tensor([dict(explained.local_exp[2])[i] for i in range(12)], dtype=torch.float64)
    assert_close(got, wanted, rtol=1e-5, atol=1e-10)
    parity("lime", "lime LimeImageExplainer", got, wanted, 1e-9)


def test_a_linear_model_is_found_and_the_ridge_shrinks_it() -> None:
    coalitions = random_coalitions(200, 6, torch.Generator().manual_seed(0))
    slope = torch.arange(6.0, dtype=torch.float64) - 2
    scores = (coalitions.double() @ slope + 3)[None]
    weights = proximity(coalitions, 0.25)
    coefficients, intercept = fit_ridge(coalitions, weights, scores, 0.0)
    assert_close(coefficients[0], slope)
    assert_close(intercept, torch.tensor([3.0], dtype=torch.float64))
    assert fit_ridge(coalitions, weights, scores, 50.0)[0].norm() < coefficients.norm()


@pytest.mark.filterwarnings("ignore:.*constant map")
@pytest.mark.parametrize("score", [0.0, 0.1, -3.7])
def test_a_constant_score_gives_zeros_and_not_its_rounding(score: float, images: Tensor) -> None:
    got = sightline.explain(
        lambda x: x.new_full((len(x), 3), score), images, Lime(samples=40, segments="grid"), target=1
    )
    assert (got.map == 0).all()
    assert got.flags == ("constant map", "constant map")


def test_the_nearest_sample_is_the_image_itself() -> None:
    coalitions = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]]).bool()
    assert_close(proximity(coalitions, 0.25), torch.tensor([0.0, -2.0, -8.0]).double().exp())


def test_the_map_has_a_value_per_segment_whatever_cut_the_image(tiny_cnn: nn.Module) -> None:
    model = sightline.adapt(tiny_cnn)
    images = torch.rand(1, 3, 32, 32, dtype=torch.float64).round() - 0.5
    labels = torch.zeros(32, 32, dtype=torch.long)
    labels[8:20, 4:12], labels[20:] = 7, 3  # any whole numbers
    method, targets = Lime(samples=40), [Probability(1)]
    whole = method.on(model, images, targets, labels)[0]
    assert len(whole.map.unique()) == 3
    for given in (labels[None], [labels], Segments(labels.unique(return_inverse=True)[1]), lambda raw: labels):
        assert torch.equal(method.on(model, images, targets, given)[0].map, whole.map)
    with pytest.raises(ShapeError, match="one label per pixel"):
        method.on(model, images, targets, labels[:5])
    with pytest.raises(ShapeError, match="one label per pixel"):
        method.on(model, images, targets, [labels, labels])
    grid = Lime(samples=40, segments=("grid", 2, 4))(model, images, Probability(1))
    assert (grid.grid.height, grid.grid.width) == (2, 4)


@pytest.mark.parametrize("cut", ["quickshift", ("slic", 12, 5.0), ("felzenszwalb", 20, 0.5, 5)])
def test_superpixels_follow_the_image(cut: Any, tiny_cnn: nn.Module) -> None:
    pytest.importorskip("skimage")
    images = torch.zeros(1, 3, 32, 32, dtype=torch.float64)
    images[0, 0, :, 16:] = 1.0
    model = sightline.adapt(tiny_cnn)
    labels = segments_of(model, images, cut)[0].labels
    assert not set(labels[:, :14].flatten().tolist()) & set(labels[:, 18:].flatten().tolist())
    # their own mean colour would leave these flat segments as they are
    got = sightline.explain(tiny_cnn, images, Lime(samples=20, segments=cut, blank="white"), target=0)
    assert got.map.shape == (1, 32, 32)
    assert got.passes.forward == 20
    assert len(got.map.unique()) == labels.max() + 1


@pytest.mark.parametrize(
    "options",
    ["samples=1", "width=0.0", "alpha=-1.0", "alpha=1e400", "variant='mine'", "variant='package', seed=-1",
     "blank='grey'", "segments='voronoi'", "segments=('grid', 0)",
     "segments=('grid', 2, 2, 2)", "segments=('slic', 2.5)", "score='loss'"],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(options: str) -> None:
    with pytest.raises(RecipeError, match="got "):
        sightline.recipe.parse(f"lime({options})")
