"""Extremal perturbation: masks, blur, search and reward, against the authors' numbers and where the answer is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from tests.methods import reference_cnn
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline.data.shapes import Shapes
from sightline.errors import RecipeError, TargetError
from sightline.methods.sampling.extremal_mask import Lattice, area_penalty, blend, pyramid, smooth
from sightline.methods.sampling.extremal_perturbation import ExtremalPerturbation, margin_of
from sightline.types import Passes

PARITY = {
    "simple": ExtremalPerturbation(steps=60),
    "areas": ExtremalPerturbation(areas=(0.05, 0.3), steps=40, contrastive=True, smooth=0.09),
    "delete": ExtremalPerturbation(areas=(0.2,), steps=40, variant="delete"),
    "dual": ExtremalPerturbation(areas=(0.2,), steps=40, variant="dual", contrastive=True),
}


def small() -> tuple[nn.Module, Tensor]:
    """The network of the reference numbers in the precision they were made in, which steers the search."""
    model, image = reference_cnn.network("tiny_cnn")
    return model.float(), image.float()


@pytest.mark.parametrize("name", PARITY)
def test_matches_the_authors_code(name: str) -> None:
    model, image = small()
    method, numbers = PARITY[name], reference_cnn.numbers(f"extremal_{name}_tiny_cnn")
    with torch.no_grad():
        masks = method.masks(sightline.adapt(model), image, sightline.Logit(reference_cnn.TARGET))[0]
    masks = smooth(masks, method.smooth * 64)
    assert_close(masks, torch.from_numpy(numbers["map"]), atol=1e-4, rtol=0)


def test_every_step_is_the_authors() -> None:
    model, image = small()
    method, numbers = PARITY["simple"], reference_cnn.numbers("extremal_simple_tiny_cnn")
    lattice, target = Lattice((64, 64), 7, 21), sightline.Logit(reference_cnn.TARGET)
    with torch.no_grad():
        steps = list(method.search(sightline.adapt(model), image, target, lattice))
    assert_close(steps[0][1][0].detach(), torch.from_numpy(numbers["mask_iter0"]), atol=1e-6, rtol=0)
    assert_close(steps[5][0], torch.from_numpy(numbers["params_5"]), atol=1e-5, rtol=0)
    assert_close(steps[-1][0], torch.from_numpy(numbers["params_last"]), atol=1e-4, rtol=0)


def test_masks_and_blurred_images_are_the_authors() -> None:
    _, image = small()
    numbers, lattice = reference_cnn.numbers("extremal_simple_tiny_cnn"), Lattice((64, 64), 7, 21)
    parameters = torch.from_numpy(numbers["gen_params"])[None]
    full = lattice.draw(parameters, lattice.weights(parameters))
    assert_close(full[0], torch.from_numpy(numbers["gen_full"]), atol=1e-6, rtol=0)
    assert_close(lattice.crop(full)[0], torch.from_numpy(numbers["gen_cropped"]), atol=1e-6, rtol=0)
    levels = pyramid(image, 8, 20.0)[0]
    for level in (0, 4):
        assert_close(levels[level], torch.from_numpy(numbers[f"pyramid_level{level}"]), atol=1e-6, rtol=0)
    assert torch.equal(levels[7], image[0])


@pytest.mark.shared
@pytest.mark.slow
def test_matches_the_authors_code_on_a_photograph(shared: Path) -> None:
    """Noise of 1e-7 on the image moves our own parameters by 1e-5 in five steps and by .025 in sixty."""
    adapter, image = sightline.load("package/efficientnet_lite0"), reference_cnn.photograph(shared)
    numbers = np.load(shared / "golden" / "cnn_photo" / "extremal_simple_lite0.npz")
    lattice, method = Lattice((224, 224), 7, 21), ExtremalPerturbation(steps=60)
    with torch.no_grad(), adapter.evaluating():
        for step, (parameters, masks) in enumerate(method.search(adapter, image, sightline.Logit(155), lattice)):
            got = masks[0].detach()
            if step == 5:
                assert_close(parameters, torch.from_numpy(numbers["params_5"]), atol=3e-5, rtol=0)
    assert_close(got, torch.from_numpy(numbers["pixels"]), atol=0.05, rtol=0)
    pair = torch.stack([got.flatten(), torch.from_numpy(numbers["pixels"]).flatten()])
    assert torch.corrcoef(pair)[0, 1] > 0.999


def test_blur_is_a_gaussian_with_zeros_around() -> None:
    image = torch.randn(20, 24, dtype=torch.float64)
    assert_close(smooth(image, 1.5), torch.from_numpy(gaussian_filter(image.numpy(), 1.5, mode="constant")))
    assert torch.equal(smooth(image, 0.0), image)


@pytest.mark.parametrize(("size", "stride", "sigma"), [((48, 48), 4, 6), ((32, 50), 5, 5), ((30, 31), 7, 20)])
def test_full_parameters_show_the_whole_image_and_none_nothing(size: Any, stride: int, sigma: int) -> None:
    lattice = Lattice(size, stride, sigma)
    full = torch.ones(1, *lattice.shape)
    shown = lattice.crop(lattice.draw(full, lattice.weights(full)))
    assert shown.shape == (1, *size)
    assert shown.min() > 0.7
    assert not lattice.draw(torch.zeros_like(full), lattice.weights(full)).any()


def test_a_mask_takes_each_pixel_from_its_level() -> None:
    blurred = torch.arange(4.0)[None, :, None, None, None].expand(1, 4, 3, 2, 2)
    masks = torch.tensor([[[0.0, 1.0], [0.5, 1 / 3]]])
    assert_close(blend(blurred, masks)[0, 0], torch.tensor([[0.0, 3.0], [1.5, 1.0]]))


def test_a_hard_mask_of_the_right_area_has_no_penalty() -> None:
    masks = torch.zeros(2, 10, 10)
    masks[:, :2] = 1
    masks[1] *= 0.5
    assert_close(area_penalty(masks, torch.tensor([0.2, 0.2])), torch.tensor([0.0, 0.05]))
    assert area_penalty(masks, torch.tensor([0.1, 0.2]))[0] == pytest.approx(0.1)


class Corner(nn.Module):
    """Class 0 is a pattern in one corner, class 1 the same in the opposite one; blur erases both."""

    def __init__(self, image: Tensor) -> None:
        super().__init__()
        weights = torch.zeros(2, *image.shape)
        weights[0, :, :16, :16], weights[1, :, -16:, -16:] = image[:, :16, :16], image[:, -16:, -16:]
        self.head = nn.Linear(image.numel(), 2, bias=False)
        self.head.weight = nn.Parameter(weights.flatten(1))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(images.flatten(1))
        return logits


@pytest.mark.parametrize("variant", ["preserve", "delete", "dual"])
@pytest.mark.parametrize("target", [0, 1])
def test_on_a_linear_model_the_mask_is_where_the_weights_are(variant: str, target: int) -> None:
    image = torch.randn(3, 48, 48)
    image = (image + image.flip(-1)) / 2  # every other step sees the mirror image, and should know it
    model = nn.Sequential(Symmetric(), Corner(image)).eval()
    recipe = f"extremal_perturbation(areas=(0.11,), variant='{variant}', steps=60, stride=4, sigma=6)"
    mask = sightline.explain(model, image[None], recipe, target=target).map[0]
    rows = mask[:16], mask[-16:]
    assert rows[target].mean() > 2 * rows[1 - target].mean()
    assert mask[16:-16].mean() < 0.6 * rows[target].mean()


class Symmetric(nn.Module):
    """Average an image with its mirror image."""

    def forward(self, images: Tensor) -> Tensor:
        return (images + images.flip(-1)) / 2


def test_a_larger_area_gives_a_larger_mask(tiny_cnn: nn.Module, images: Tensor) -> None:
    method = ExtremalPerturbation(areas=(0.05, 0.2, 0.5), steps=60, stride=4, sigma=5)
    with torch.no_grad():
        covered = method.masks(sightline.adapt(tiny_cnn), images, sightline.Logit(1)).mean(dim=(-2, -1))
    assert (covered.diff(dim=1) > 0.05).all()
    together = sightline.explain(tiny_cnn, images, method, target=1)
    assert_close(together.map.mean(dim=(-2, -1)), covered.sum(dim=1))
    assert together.passes == Passes(360, 360)


def test_the_lead_is_over_the_best_other_class() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0]])
    assert margin_of(sightline.Logit((0, 1)))(logits).tolist() == [1.0, -2.0]
    each = sightline.types.PerImage((sightline.Logit(0), sightline.Probability(2)))
    assert margin_of(each)(logits).tolist() == [1.0, -1.0]
    with pytest.raises(TargetError, match="is no class"):
        margin_of(sightline.types.Custom(lambda x: x[:, 0]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bundled/shapes-vit", "bundled/shapes-cnn"])
def test_ranks_the_evidence_first(name: str) -> None:
    adapter, batch = sightline.load(name), Shapes(seed=77).draw(8)
    images, masks = adapter.normalise(batch.images), batch.evidence.long()
    precisions = {}
    for recipe in ("extremal_perturbation(steps=40, stride=4, sigma=8)", "random"):
        attribution = sightline.explain(adapter, images, recipe, batch.labels)
        scores = sightline.evaluate(adapter, images, attribution, ["average_precision"], batch.labels, masks)
        precisions[recipe[:6]] = scores["average_precision"]
    margin = precisions["extrem"] - precisions["random"]
    assert margin.mean() > 5 * margin.std() / len(margin) ** 0.5
    assert precisions["extrem"].mean() > 3 * precisions["random"].mean()


@pytest.mark.parametrize(
    "options",
    [
        {"areas": ()},
        {"areas": (1.5,)},
        {"steps": 0},
        {"levels": 1},
        {"sigma": 5},
        {"blur": 0.0},
        {"blur": float("inf")},
        {"smooth": float("inf")},
        {"smooth": -1.0},
        {"variant": "x"},
    ],
)
def test_refuses_what_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        ExtremalPerturbation(**options)
